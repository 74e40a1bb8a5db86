"""The formats of the gateway: requests with their images, and errors.

A request has OpenAI's fields, and ``best_of``, which says how one of several answers is chosen. Its images
are read from data URLs and checked; messages get the request for the answer format, and a place for each
image. Errors are told in OpenAI's envelope.
"""

from __future__ import annotations

import asyncio
import binascii
import io
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import ceil
from typing import Any, TypeVar

from aiohttp import web
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticSerializationError, from_json, to_json

from selfverify.clients.usage import MOST_TOKENS
from selfverify.core.errors import ConfigError, ServerError
from selfverify.core.images import to_rgb
from selfverify.core.tags import SCORE_INSTRUCTION
from selfverify.data.images import FORMATS
from selfverify.serving.config import BestOfConfig, ImageLimits


def json_bytes(data: Any) -> bytes:
    """Return data as JSON. NaN and Infinity, which servers write and JSON does not know, become nulls."""
    try:
        return to_json(data, inf_nan_mode="null")
    except PydanticSerializationError:  # half of a surrogate pair, whose other half is in the next chunk
        return json.dumps(data).encode()


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response of JSON."""
    return web.Response(
        body=json_bytes(data),
        status=status,
        headers=headers,
        content_type="application/json",
        charset="utf-8",
    )


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An error that a client is told.

    Args:
        status: The HTTP status.
        message: The text for people.
        code: The code for programs, such as ``invalid_image``.
        param: The field of the request that is wrong.
        retry_after: Seconds after which the client may ask again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's envelope."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def api_error(error: Exception) -> ApiError | None:
    """Return the error that a client is told for an exception; None for a fault of our own.

    If an upstream refuses the gateway's own key, the client is not at fault: the status is 502.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError):
        return ApiError(400, str(error), "invalid_value")
    if isinstance(error, web.HTTPException):  # aiohttp's own refusals
        if error.status == 413:
            return ApiError(413, "the request is too large", "request_too_large")
        if error.status == 404:
            text = "there is no such path; chat completions are at /v1/chat/completions"
            return ApiError(404, text, "not_found")
        return ApiError(error.status, error.reason or "refused")
    if not isinstance(error, ServerError):
        return None
    if error.status in (401, 403):
        # Not in the server's words: some quote the key.
        return ApiError(502, "the model server does not accept the gateway's key", "upstream_refused_key")
    return ApiError(
        error.status, error.message, error.code or "upstream_error", retry_after=error.retry_after
    )


def invalid_value(param: str, why: str) -> ApiError:
    """Return the error for a field of a request that has a wrong value."""
    return ApiError(400, f"{param}: {why}", "invalid_value", param)


def invalid(error: ValidationError, prefix: str = "") -> ApiError:
    """Return the error for a request that does not validate: its first fault."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    names = [str(part) for part in fault["loc"] if not str(part).startswith(("function-", "tagged-union"))]
    param = ".".join([prefix, *names] if prefix else names)
    code = "unknown_parameter" if fault["type"] == "extra_forbidden" else "invalid_value"
    message = fault["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}: {message}" if param else message, code, param or None)


def error_response(error: ApiError) -> web.Response:
    """Return the response that tells a client of an error."""
    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, ceil(error.retry_after)))}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(error.body, status=error.status, headers=headers)


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


def best_of(request: ChatRequest, defaults: BestOfConfig) -> tuple[str, BestOfConfig | None]:
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
        chosen = BestOfConfig.model_validate(defaults.model_dump(exclude_defaults=True) | suffix)
        # A suffix is a text, so that its values are texts; those of an object have types of their own.
        chosen = BestOfConfig.model_validate(chosen.model_dump(exclude_unset=True) | given, strict=True)
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


_OF_SERVERS = (
    "bad_words", "best_of_n", "ignore_eos", "min_p", "min_tokens", "repetition_penalty", "stop_token_ids",
    "top_a", "top_k",
)  # fmt: skip
"""Fields of model servers that look like OpenAI's and ours."""

KNOWN = {*CompletionCreateParamsBase.__annotations__, *ChatRequest.model_fields, *_OF_SERVERS}
"""OpenAI's fields, as its client knows them, ours, and those of servers."""

_MOST_CHECKED = 16
"""The most unknown names that are compared: a request may have thousands."""


def refuse_misspelt(names: Iterable[str]) -> None:
    """Refuse a field that is almost called like one of `KNOWN`.

    Servers have many fields of their own, which pass; but a misspelt one would do nothing.

    Raises:
        ApiError: Such a field; the message says which one may be meant.
    """
    unknown = [name for name in names if name not in KNOWN and len(name) <= 32][:_MOST_CHECKED]
    for name in unknown:
        for meant in get_close_matches(name.lower(), KNOWN, 1, 0.85):
            text = f"{name}: there is no such field; is {meant} meant? With MODEL@plain any field passes"
            raise ApiError(400, text, "unknown_parameter", name)


_DATA_URL = re.compile(r"data:image/[a-zA-Z0-9.+-]{1,32};base64,", re.ASCII)


@dataclass(frozen=True, slots=True)
class Picture:
    """A checked image: its encoded bytes, its format, such as ``PNG``, and how many pixels it has."""

    data: bytes
    format: str
    pixels: int

    def decode(self) -> Image.Image:
        """Return the image decoded, in RGB: 24 bits a pixel.

        Raises:
            ApiError: The image is cut off or broken inside.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                return to_rgb(Image.open(io.BytesIO(self.data), formats=[self.format]))
        except Exception as error:  # PIL raises many types for broken files
            raise _bad(f"the image cannot be decoded: {type(error).__name__}: {error}") from None


async def take_images(messages: Sequence[Mapping[str, Any]], limits: ImageLimits) -> list[Picture]:
    """Return every image of a conversation, in order, checked.

    Args:
        messages: OpenAI's messages, which are not changed.
        limits: Which images are accepted.

    Raises:
        ApiError: There are too many images, or one is missing, too large, no image, or
            elsewhere than in the request.
    """
    urls = [
        image_url(part, place)
        for place, part in parts_of(messages)
        if isinstance(part, Mapping) and part.get("type") == "image_url"
    ]
    if len(urls) > limits.count:
        raise _bad(f"{len(urls)} images in a request, and {limits.count} are allowed", 413, "too_many_images")
    found: list[Picture] = []
    for url in urls:
        if not url.startswith("data:"):
            raise _bad(
                "images are not fetched from addresses; send the image itself (data:image/png;base64,...)",
                code="remote_image_refused",
            )
        found.append(await asyncio.to_thread(_from_data_url, url, limits))
        total = sum(picture.pixels for picture in found)
        if total > limits.pixels:
            text = f"the images have {total:,} pixels together, and {limits.pixels:,} are allowed"
            raise _bad(text, 413, "image_too_large")
    return found


def parts_of(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of all messages, each with its place, such as ``messages.0.content.1``."""
    for m, message in enumerate(messages):
        content = message.get("content")
        for p, part in enumerate(content if isinstance(content, list) else ()):
            yield f"messages.{m}.content.{p}", part


def image_url(part: Mapping[str, Any], place: str) -> str:
    """Return the address in an ``image_url`` part, which is an object or the address itself.

    Raises:
        ApiError: There is none.
    """
    inner = part.get("image_url")
    url = inner.get("url") if isinstance(inner, Mapping) else inner
    if not isinstance(url, str) or not url:
        raise invalid_value(f"{place}.image_url.url", "there is no url")
    return url


def _from_data_url(url: str, limits: ImageLimits) -> Picture:
    head = _DATA_URL.match(url)
    if not head:
        raise _bad("an image's data URL has to begin with data:image/TYPE;base64,")
    if (len(url) - head.end()) * 3 // 4 > limits.bytes + 2:
        raise _too_large(limits)
    try:
        data = binascii.a2b_base64(url[head.end() :], strict_mode=True)
    except ValueError as error:
        raise _bad(f"an image's base64 is broken: {error}") from None
    return check_image(data, limits)


def check_image(data: bytes, limits: ImageLimits) -> Picture:
    """Check an image by its header.

    Raises:
        ApiError: The bytes are no image, or the image is larger than allowed.
    """
    if len(data) > limits.bytes:
        raise _too_large(limits)
    try:
        with warnings.catch_warnings():  # PIL's own limits are a warning here and an error there
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                (width, height), kind = image.size, image.format
    except Image.DecompressionBombError:
        raise _bad(f"an image has more than {limits.pixels:,} pixels", 413, "image_too_large") from None
    except Exception:  # PIL raises many types for what is no image
        raise _bad(
            f"what was sent as an image is none, or in none of the formats {', '.join(FORMATS)}"
        ) from None
    if width * height > limits.pixels:
        text = f"an image has {width} x {height} pixels, and {limits.pixels:,} are allowed: make it smaller"
        raise _bad(text, 413, "image_too_large")
    return Picture(data, str(kind), width * height)


def _too_large(limits: ImageLimits) -> ApiError:
    return _bad(f"an image takes more than {limits.bytes:,} bytes", 413, "image_too_large")


def _bad(message: str, status: int = 400, code: str = "invalid_image") -> ApiError:
    return ApiError(status, message, code, "messages")


def wants_instruction(settings: BestOfConfig, body: Mapping[str, Any]) -> bool:
    """Whether the request for the answer format belongs to a question.

    A model that is to call tools, or to write another format, would have to do both; unless somebody says so.
    """
    if "instruction" in settings.model_fields_set:
        return settings.instruction
    return settings.instruction and not (is_formatted(body) or body.get("tools") or body.get("functions"))


def is_formatted(body: Mapping[str, Any]) -> bool:
    """Whether a request asks for a format of its own."""
    return body.get("response_format") not in (None, {"type": "text"})


def with_instruction(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, the last of them with the request for the answer format at its end.

    A last message that is not a user's, or that mentions ``<score>``, stays as it is.
    """
    last = messages[-1]
    content = last.get("content")
    if last.get("role") != "user":
        return messages
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        return messages
    texts = [part for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    texts = [part for part in texts if part.get("type") == "text"]
    if any("<score>" in part["text"] for part in texts):
        return messages
    if texts:
        text = f"{texts[-1]['text'].strip()} {SCORE_INSTRUCTION}"
        parts = [{**part, "text": text} if part is texts[-1] else part for part in parts]
    else:
        parts = [*parts, {"type": "text", "text": SCORE_INSTRUCTION}]
    changed = parts[0]["text"] if isinstance(content, str) else parts
    return [*messages[:-1], {**last, "content": changed}]


def with_places(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as parts of text, and a place for each image.

    Raises:
        ApiError: A message or a part is of another kind.
    """
    found = []
    for m, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant"):
            raise invalid_value(f"messages.{m}.role", f"{role!r} is not understood by this model")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not content:
            raise invalid_value(f"messages.{m}.content", "a text or a list of parts is needed")
        parts = [_plain(part, f"messages.{m}.content.{p}") for p, part in enumerate(content)]
        found.append({"role": role, "content": parts})
    return found


def _plain(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        return {"type": "image"}
    raise invalid_value(place, f"a part of type {kind!r} is not understood by this model")
