"""The settings of `selfverify serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from selfverify.serving.best_of import MOST_SAMPLES, RequestDefaults

_STRICT = ConfigDict(extra="forbid", frozen=True)

KEYS_VARIABLE = "SELFVERIFY_API_KEYS"
"""Environment variable with the keys of clients, separated by commas."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Which images are accepted.

    Args:
        bytes: The largest encoded image.
        pixels: The most pixels that a request's images have together, by their headers.
        count: The most images of a request.
    """

    bytes: int = 20 * 2**20
    pixels: int = 50_000_000
    count: int = 16


class BackendSettings(BaseModel):
    """What writes the candidates: a model that is run here, or a server."""

    model_config = _STRICT

    model: str | None = Field(None, description="Run this model here: `builtin:NAME`, a folder, or a hub id.")
    upstream: str | None = Field(None, description="Stand in front of this OpenAI-compatible server instead.")
    judge: list[str] = Field(
        default_factory=list,
        description="With --model: offer this verifier too, `judge:MODEL` or `ask:MODEL`; repeat it for "
        "several.",
    )
    max_tokens: int = Field(
        256, ge=1, description="With --model: the length of a candidate where a request gives none."
    )
    max_batch: int = Field(
        64, ge=1, description="With --model: the number of candidates that are sampled together."
    )
    separate: bool = Field(
        False, description="With --upstream: ask for every candidate in a request of its own, without `n`."
    )
    tries: int = Field(3, ge=1, description="With --upstream: how often a request is tried.")

    @model_validator(mode="after")
    def _one_backend(self) -> BackendSettings:
        if (self.model is None) == (self.upstream is None):
            raise ValueError("give either --model (run one here) or --upstream (an address of a server)")
        if self.upstream is not None and self.judge:
            raise ValueError("--judge needs --model; in front of a server say --verifier judge:MODEL")
        if self.model is not None and self.separate:
            raise ValueError("--separate needs --upstream")
        return self


class ListeningSettings(BaseModel):
    """Where the gateway listens, and how it stops."""

    model_config = _STRICT

    host: str = Field("127.0.0.1", min_length=1, description="The address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="The port; 0 takes a free one.")
    grace: float = Field(
        30.0, ge=0.0, description="Seconds that requests in flight have left when the gateway is stopped."
    )


class GatewaySettings(BaseModel):
    """How a gateway treats requests."""

    model_config = _STRICT

    defaults: RequestDefaults = RequestDefaults()
    calibration: Path | None = Field(
        None, description="A file of `selfverify calibrate`; used for requests that it was fitted for."
    )
    timeout: float = Field(120.0, ge=0.1, description="The longest time for a request, in seconds.")
    api_keys: Path | None = Field(
        None, description=f"A file with the keys of clients, one a line; or set ${KEYS_VARIABLE}."
    )
    rate_limit: float | None = Field(
        None, ge=0.1, description="Requests a minute of one key, or without keys of one address."
    )
    max_body_mb: float = Field(64.0, ge=0.001, description="The largest request, in MiB.")
    max_image_mb: float = Field(20.0, ge=0.001, description="The largest image, in MiB.")
    max_megapixels: float = Field(
        50.0, ge=0.001, description="The most megapixels that the images of a request have together."
    )
    max_n: int = Field(
        64, ge=1, le=MOST_SAMPLES, description="The most candidates that a request may ask for."
    )
    max_in_flight: int = Field(
        1024, ge=1, description="Requests that are worked on at once; others are told to come back."
    )
    remote_images: bool = Field(False, description="Fetch images by address, from public addresses only.")
    log_prompts: bool = Field(False, description="Write questions and answers into the log.")

    @property
    def most_samples(self) -> int:
        """The most candidates that a request may ask for; never fewer than it gets by default."""
        return max(self.max_n, self.defaults.n)

    @property
    def images(self) -> ImageLimits:
        """Which images are accepted."""
        return ImageLimits(int(self.max_image_mb * 2**20), int(self.max_megapixels * 1e6))


class ServeSettings(BaseModel):
    """A gateway: what writes, where it listens, and how it treats requests."""

    model_config = _STRICT

    backend: BackendSettings
    listening: ListeningSettings = ListeningSettings()
    gateway: GatewaySettings = GatewaySettings()
