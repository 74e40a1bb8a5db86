"""The formats of the gateway: requests with their images, and errors.

A request has OpenAI's fields, and ``best_of``, which says how one of several answers is chosen. `ChatRequest`
lists the fields that the gateway honours. A model that runs here refuses all others; a server gets them as
they are, but for misspelt ones (`refuse_unknown`). Images are read from data URLs and checked; messages get
the request for the answer format, and a place for each image. Errors are told in OpenAI's envelope.
"""

from __future__ import annotations

import asyncio
import binascii
import io
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import ceil, isfinite
from typing import Annotated, Any, TypeVar

from aiohttp import web
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from PIL import Image
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticSerializationError, from_json, to_json

from selfverify.clients.replies import MOST_TOKENS
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError, ServerError
from selfverify.core.images import to_rgb
from selfverify.core.tags import SCORE_INSTRUCTION
from selfverify.data.images import FORMATS
from selfverify.serving.config import BestOfConfig, Temperature


def json_bytes(data: Any) -> bytes:
    """Return data as JSON. NaN and Infinity, which servers write and JSON does not know, become nulls."""
    try:
        return to_json(data, inf_nan_mode="null")
    except PydanticSerializationError:  # half of a surrogate pair, whose other half is in the next chunk
        return json.dumps(json.loads(json.dumps(data), parse_constant=lambda _: None)).encode()


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response of JSON."""
    headers = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
    return web.Response(body=json_bytes(data), status=status, headers=headers)


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


@dataclass(eq=False)
class ApiError(Exception):
    """An error that a client is told.

    Args:
        status: The HTTP status.
        message: The text for people.
        code: The code for programs, such as ``invalid_image``.
        param: The field of the request that is wrong.
        headers: Further headers of the response, such as when to ask again.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    @property
    def response(self) -> web.Response:
        """The error in OpenAI's envelope, with its status and headers."""
        return json_response(self.body, status=self.status, headers=self.headers)

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's envelope."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def api_error(error: Exception) -> ApiError | None:
    """Return the error that a client is told for an exception; None for a fault of our own.

    If an upstream refuses the gateway's own key, the client is not at fault: the status is 502.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError):
        return ApiError(400, str(error), "invalid_value")
    if isinstance(error, TimeoutError):
        return ApiError(504, "there was no answer within the time allowed", "timeout")
    if isinstance(error, web.HTTPMethodNotAllowed):
        methods = ", ".join(sorted(error.allowed_methods))
        return ApiError(405, f"this path takes {methods}", "method_not_allowed", headers={"Allow": methods})
    if isinstance(error, web.HTTPException):  # aiohttp's own refusals
        code, text = _REFUSALS.get(error.status, (None, error.reason or "refused"))
        return ApiError(error.status, text, code)
    if isinstance(error, DataError):
        return ApiError(400, str(error), error.code, "messages")
    if not isinstance(error, ServerError):
        return ApiError(500, str(error), "model_failed") if isinstance(error, SelfVerifyError) else None
    if error.status in (401, 403):
        # Not in the server's words: some quote the key.
        return ApiError(502, "the model server does not accept the gateway's key", "upstream_refused_key")
    code, after = error.code or "upstream_error", error.retry_after
    headers = {} if after is None else {"Retry-After": str(max(1, ceil(after)))}
    param = "model" if code == "model_not_found" else None
    return ApiError(error.status, error.message, code, param, headers)


_REFUSALS = {
    404: ("not_found", "there is no such path; chat completions are at /v1/chat/completions"),
    413: ("request_too_large", "the request is too large; send fewer or smaller images"),
}


def invalid_value(param: str, why: str) -> ApiError:
    """Return the error for a field of a request that has a wrong value."""
    return ApiError(400, f"{param}: {why}", "invalid_value", param)


def unsupported(param: str, why: str) -> ApiError:
    """Return the error for a field of a request that cannot be honoured here."""
    return ApiError(400, f"{param}: {why}", "unsupported_parameter", param)


def invalid(error: ValidationError, prefix: str = "") -> ApiError:
    """Return the error for a request that does not validate: its first fault."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    names = [str(part) for part in fault["loc"] if not str(part).startswith(("function-", "tagged-union"))]
    param = ".".join([prefix, *names] if prefix else names)
    code, message = "invalid_value", fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        code, message = "unknown_parameter", "there is no such field; leave it out"
    return ApiError(400, f"{param}: {message}" if param else message, code, param or None)


Asked = TypeVar("Asked", bound=BaseModel)


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The fields of a chat completion request that the gateway honours; `model_extra` holds the others.

    As with OpenAI a text is no number and no boolean, and neither is the other.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(min_length=1, max_length=512)
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    n: int = Field(1, ge=1, le=128)
    temperature: Annotated[float | None, Temperature] = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list, max_length=16)
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    best_of: dict[str, Any] | None = None
    look: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nulls(cls, data: Any) -> Any:
        """Drop nulls, which OpenAI takes for "not given"; ``stop`` may be one text, ``best_of`` false."""
        found = {name: value for name, value in data.items() if value is not None}
        if isinstance(found.get("stop"), str):
            found["stop"] = [found["stop"]]
        if found.get("best_of") is False:
            found["best_of"] = {"plain": True}
        return found

    @field_validator("max_completion_tokens", "stream_options", "top_logprobs")
    @classmethod
    def _agrees(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what would do nothing beside the fields before it."""
        if info.field_name == "max_completion_tokens" and info.data.get("max_tokens") not in (None, value):
            raise ValueError("max_tokens says another limit; leave one out")
        needed = {"stream_options": "stream", "top_logprobs": "logprobs"}.get(str(info.field_name))
        if value and needed and not info.data.get(needed):
            raise ValueError(f"it needs {needed}: true")
        return value

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class VerifyRequest(BaseModel):
    """A request to score given answers to a question."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(min_length=1, max_length=512)
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    answer: list[str] = Field(description="One answer, or up to 64.", min_length=1, max_length=64)
    verifier: str | None = None

    @field_validator("answer", mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        texts = [given] if isinstance(given, str) else given
        if isinstance(texts, list) and "" in [text.strip() for text in texts if isinstance(text, str)]:
            raise ValueError("an answer is empty")
        return texts


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
    if (request.content_length or 0) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, request.content_length or 0)
    try:
        async with asyncio.timeout(within_s):
            data = await request.read()
    except TimeoutError:
        raise ApiError(408, f"the request did not arrive within {within_s:g} s", "timeout") from None
    try:
        json.loads(data, object_pairs_hook=_checked)
        raw = from_json(data, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request is no JSON: {error}", "invalid_json") from None
    if not isinstance(raw, dict):
        raise ApiError(400, "the request has to be a JSON object", "invalid_json")
    try:
        return raw, kind.model_validate(raw)
    except ValidationError as error:
        raise invalid(error) from None


def _checked(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object in which a key stands twice (one value would be lost) or has no finite number."""
    names = set[str]()
    for name, value in pairs:
        if name in names:
            raise ValueError(f"the key {name[:64]!r} stands twice in one object")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"the value of {name[:64]!r} is no finite number")
        names.add(name)


def best_of(request: ChatRequest, defaults: BestOfConfig) -> tuple[str, BestOfConfig | None]:
    """Return the model's own name and how its answer is chosen; None means without selection.

    The suffix ``@bo8`` or ``@bo8,strategy=best,stop=beta`` overrides the gateway's defaults; the object
    ``best_of`` overrides both. ``@plain`` and ``"best_of": false`` turn selection off.

    Raises:
        ApiError: A setting is unknown or wrong.
    """
    (model, suffix), given = split_model(request.model), dict(request.best_of or {})
    named = suffix.pop("plain", False)
    plain = named if request.best_of is None else given.pop("plain", False)
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


_SUFFIX = re.compile(r"(.+)@(?:plain|bo([0-9]{1,4})((?:,[a-z_]+=[^,@]*)*))")


def split_model(name: str) -> tuple[str, dict[str, Any]]:
    """Return a model's name without its suffix, and the suffix's settings; see `best_of`.

    Raises:
        ApiError: The text behind the name looks like a suffix and is none.
    """
    if found := _SUFFIX.fullmatch(name):
        model, n, settings = found.groups()
        pairs = [pair.split("=", 1) for pair in settings.split(",") if pair] if n else []
        return model, {"n": int(n), **dict(pairs)} if n else {"plain": True}
    if re.search(r"@(bo[0-9]|plain)", name):
        text = f"{name!r}: a suffix looks like @bo8 or @bo8,strategy=best,verifier=inline"
        raise invalid_value("model", text)
    return name, {}


_OF_SERVERS = {
    "bad_words", "best_of_n", "ignore_eos", "min_p", "min_tokens", "repetition_penalty", "stop_token_ids",
    "top_a", "top_k",
}  # fmt: skip
"""Fields of model servers that look like OpenAI's and ours."""

KNOWN = {*CompletionCreateParamsBase.__annotations__, *ChatRequest.model_fields} | _OF_SERVERS
"""OpenAI's fields, as its client knows them, ours, and those of servers."""

_MOST_CHECKED = 16
"""The most unknown names that are compared: a request may have thousands."""

_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "function_call": ("none", "auto"),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "tool_choice": ("none", "auto"),
    "top_k": (-1,),
}
"""Values that change nothing, besides empty ones, of fields that a model that runs here does not know."""

_FOR_RECORDS = {"metadata", "prompt_cache_key", "safety_identifier", "store", "user"}
"""Fields for who keeps records of requests."""


def refuse_unknown(fields: Mapping[str, Any], here: bool) -> None:
    """Refuse a field that would do nothing.

    A model that runs here knows those of `ChatRequest` alone. Servers have many of their own, which pass, but
    for one that is almost called like one of `KNOWN`.

    Args:
        fields: The fields that `ChatRequest` does not have.
        here: Whether the model runs here.

    Raises:
        ApiError: There is such a field; the message says what to do.
    """
    unknown, known = [name for name in fields if name not in KNOWN], KNOWN
    if here:
        known = {*ChatRequest.model_fields}
        unknown = [
            name
            for name, value in fields.items()
            # Zero and false are the defaults of known fields; of others, such as do_sample, they may be none.
            if (value or (value == 0 and name not in KNOWN))
            and value not in _NEUTRAL.get(name, ())
            and name not in _FOR_RECORDS
        ]
    for name in unknown[:_MOST_CHECKED]:
        for meant in get_close_matches(name[:32].lower(), known, 1, 0.85):
            text = f"{name[:64]}: there is no such field; is {meant} meant? MODEL@plain passes it to a server"
            raise ApiError(400, text, "unknown_parameter", name[:64])
        if here:
            text = "it is not supported by a model that runs here; leave it out, or serve an upstream"
            raise unsupported(name[:64], text)


MOST_IMAGES = 16
"""The most images of a request."""

_DATA_URL = re.compile(
    r"data:image/[a-z0-9.+-]{1,32}(;[a-z0-9-]{1,32}=[^;,]{0,64}){0,4};base64,", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A checked image: its encoded bytes, its format (``PNG``), how many pixels it has, and its field."""

    data: bytes
    format: str
    pixels: int
    place: str

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
            text = f"the image cannot be decoded: {type(error).__name__}: {error}"
            raise _bad(text, param=self.place) from None


async def take_images(messages: Sequence[Mapping[str, Any]], most_pixels: int) -> list[Picture]:
    """Return every image of a conversation, in order, checked by its header.

    Args:
        messages: OpenAI's messages, which are not changed.
        most_pixels: The most pixels that the images may have together.

    Raises:
        ApiError: There are too many images, or one is missing, too large, no image, or
            elsewhere than in the request.
    """
    places = [
        (f"messages.{m}.content.{p}.image_url", part.get("image_url"))
        for m, message in enumerate(messages)
        for p, part in enumerate(_listed(message.get("content")))
        if isinstance(part, Mapping) and part.get("type") == "image_url"
    ]
    if len(places) > MOST_IMAGES:
        text = f"{len(places)} images in a request, and {MOST_IMAGES} are allowed"
        raise _bad(text, 413, "too_many_images")
    found: list[Picture] = []
    for place, inner in places:
        url = inner.get("url") if isinstance(inner, Mapping) else inner
        if not isinstance(url, str) or not url:
            raise invalid_value(f"{place}.url", "there is no url")
        found.append(await asyncio.to_thread(_from_data_url, url, place))
        total = sum(picture.pixels for picture in found)
        if total > most_pixels:
            text = f"the images have {total:,} pixels together, and {most_pixels:,} are allowed: shrink them"
            raise _bad(text, 413, "image_too_large", place)
    return found


def _from_data_url(url: str, place: str) -> Picture:
    head = _DATA_URL.match(url)
    if not head:
        if url[:5].lower() == "data:":
            raise _bad("an image's data URL has to begin with data:image/TYPE;base64,", param=place)
        text = "images are not fetched from addresses; send the image itself (data:image/png;base64,...)"
        raise _bad(text, code="remote_image_refused", param=place)
    try:
        data = binascii.a2b_base64(url[head.end() :], strict_mode=True)
    except ValueError as error:
        raise _bad(f"an image's base64 is broken: {error}; it has no line breaks", param=place) from None
    try:
        with warnings.catch_warnings():  # PIL's own limits are a warning here and an error there
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return Picture(data, str(image.format), image.width * image.height, place)
    except Image.DecompressionBombError:
        raise _bad("an image has too many pixels: shrink it", 413, "image_too_large", place) from None
    except Exception:  # PIL raises many types for what is no image
        text = f"what was sent as an image is none, or in none of the formats {', '.join(FORMATS)}"
        raise _bad(text, param=place) from None


def _bad(message: str, status: int = 400, code: str = "invalid_image", param: str = "messages") -> ApiError:
    return ApiError(status, message, code, param)


def _listed(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


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
    *before, last = messages
    content = last.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if last.get("role") != "user" or not isinstance(parts, list):
        return messages
    texts = [p for p, part in enumerate(parts) if _is_text(part)]
    if any("<score>" in parts[p]["text"] for p in texts):
        return messages
    place = texts[-1] if texts else len(parts)
    said = f"{parts[place]['text'].strip()} {SCORE_INSTRUCTION}" if texts else SCORE_INSTRUCTION
    part = {**(parts[place] if texts else {"type": "text"}), "text": said}
    changed = said if isinstance(content, str) else [*parts[:place], part, *parts[place + 1 :]]
    return [*before, {**last, "content": changed}]


def with_places(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as parts of text, and a place for each image.

    Raises:
        ApiError: A message or a part is of another kind, or has fields that would be lost.
    """
    found = []
    for m, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant"):
            text = f"{role!r} is not understood by this model; there are system, user and assistant"
            raise invalid_value(f"messages.{m}.role", text)
        lost = [name for name, value in message.items() if value and name not in ("role", "content")]
        if lost:
            raise unsupported(
                f"messages.{m}.{lost[0][:64]}", "a model that runs here does not read it; leave it out"
            )
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not content:
            raise invalid_value(f"messages.{m}.content", "a text or a list of parts is needed")
        parts = [_plain(part, f"messages.{m}.content.{p}") for p, part in enumerate(content)]
        found.append({"role": role, "content": parts})
    return found


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _plain(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not _is_text(part) and kind != "image_url":
        text = f"a part of type {kind!r} is not understood by this model; there are text and image_url"
        raise invalid_value(place, text)
    inner = part[kind] if isinstance(part[kind], Mapping) else {}
    lost = [f"image_url.{name}" for name in inner.keys() - {"url"} if inner[name] not in (None, "auto")]
    for name in [*(part.keys() - {"type", kind, "cache_control"}), *lost]:
        raise unsupported(f"{place}.{name[:64]}", "a model that runs here does not read it; leave it out")
    return {"type": "text", "text": part["text"]} if kind == "text" else {"type": "image"}
