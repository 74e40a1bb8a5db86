"""Requests: OpenAI's fields, and ``best_of``, which says how one of several answers is chosen."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from selfverify.clients.openai_client import MOST_TOKENS
from selfverify.serving.api_errors import ApiError, invalid, invalid_value
from selfverify.serving.best_of import BestOf

_SUFFIX = re.compile(
    r"(?P<model>.+)@(?:bo(?P<n>[0-9]{1,4})(?P<settings>(?:,[a-z_]+=[^,@]*)*)|(?P<plain>plain))"
)


Asked = TypeVar("Asked", bound=BaseModel)


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The fields of a chat completion request that the gateway reads. Others go to an upstream unchanged.

    As with OpenAI a text is no number and no boolean, whatever it says, and neither is the other.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(min_length=1, max_length=512)
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    n: int = Field(1, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: list[str] = Field(default_factory=list, max_length=16)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    best_of: dict[str, Any] | None = None
    look: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nulls(cls, data: Any) -> Any:
        """Drop nulls, which OpenAI takes for "not given"; ``stop`` may be one text, ``best_of`` false."""
        if not isinstance(data, dict):
            raise ValueError("the request has to be a JSON object")
        found = {name: value for name, value in data.items() if value is not None}
        if isinstance(found.get("stop"), str):
            found["stop"] = [found["stop"]]
        if found.get("best_of") is False:
            found["best_of"] = {"plain": True}
        return found

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a candidate."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class VerifyRequest(BaseModel):
    """A request to score given answers to a question."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(min_length=1, max_length=512)
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    answer: str | list[str] = Field(description="One answer, or up to 64.")
    verifier: str | None = None

    @property
    def answers(self) -> list[str]:
        """The answers as a list.

        Raises:
            ApiError: There are none, or more than 64.
        """
        found = [self.answer] if isinstance(self.answer, str) else self.answer
        if not 1 <= len(found) <= 64 or not all(text.strip() for text in found):
            raise invalid_value("answer", "between 1 and 64 texts that are not empty")
        return found


async def read_as(request: web.Request, kind: type[Asked], within_s: float) -> tuple[dict[str, Any], Asked]:
    """Return a request's JSON object, as it came and as a ``kind``.

    Raises:
        ApiError: The request is no JSON object, is not declared as JSON, is compressed, comes too slowly, or
            is no ``kind``; the message names the field.
        HTTPRequestEntityTooLarge: It is larger than the application takes.
    """
    if request.content_type != "application/json":
        # Browsers let every page send other types anywhere, without asking the server first.
        raise ApiError(415, "Content-Type: application/json is needed", "unsupported_media_type")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiError(415, "compressed requests are not taken", "unsupported_encoding")
    try:
        async with asyncio.timeout(within_s):
            data = await request.read()
    except TimeoutError:
        raise ApiError(408, f"the request did not arrive within {within_s:g} s", "timeout") from None
    try:
        raw = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the request is no JSON: {error}", "invalid_json") from None
    if not isinstance(raw, dict):
        raise ApiError(400, "the request has to be a JSON object", "invalid_json")
    try:
        return raw, kind.model_validate(raw)
    except ValidationError as error:
        raise invalid(error) from None


def best_of(request: ChatRequest, defaults: BestOf) -> tuple[str, BestOf | None]:
    """Return the model's own name and how its answer is chosen; None means without selection.

    The suffix ``@bo8`` or ``@bo8,strategy=best,stop=beta`` overrides the gateway's defaults; the object
    ``best_of`` overrides both. ``@plain`` and ``"best_of": false`` turn selection off.

    Raises:
        ApiError: A setting is unknown or wrong.
    """
    model, suffix = split_model(request.model)
    given = dict(request.best_of or {})
    plain = suffix.pop("plain", False)
    if request.best_of is not None:
        plain = given.pop("plain", False)
    if not isinstance(plain, bool):
        raise invalid_value("best_of.plain", "true or false is needed")
    if plain:
        return model, None
    try:
        # Without those at their own default: `model_fields_set` says what somebody has decided.
        chosen = BestOf.model_validate(defaults.model_dump(exclude_defaults=True) | suffix)
        # A suffix is a text, so that its values are texts; those of an object have types of their own.
        chosen = BestOf.model_validate(chosen.model_dump(exclude_unset=True) | given, strict=True)
    except ValidationError as error:
        raise invalid(error, "best_of") from None
    if request.n > chosen.n:
        if "n" in suffix | given:
            text = f"{request.n} answers are asked for, and only {chosen.n} candidates to choose them from"
            raise invalid_value("n", text)
        chosen = chosen.model_copy(update={"n": request.n})
    return model, chosen


def split_model(name: str) -> tuple[str, dict[str, Any]]:
    """Return a model's name without its suffix, and the suffix's settings; see `best_of`.

    Raises:
        ApiError: What looks like a suffix is none.
    """
    if "@" not in name:
        return name, {}
    found = _SUFFIX.fullmatch(name)
    if not found:
        if re.search(r"@(bo[0-9]|plain)", name):
            text = f"{name!r}: a suffix looks like @bo8 or @bo8,strategy=best,verifier=inline"
            raise invalid_value("model", text)
        return name, {}
    if found["plain"]:
        return found["model"], {"plain": True}
    pairs = [pair.partition("=") for pair in found["settings"].split(",") if pair]
    return found["model"], {"n": int(found["n"])} | {key: value for key, _, value in pairs}
