"""Refuse what a server behind the gateway could fetch, or be sent to: addresses, files, unchecked images."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from selfverify.serving.api_errors import ApiError, invalid_value
from selfverify.serving.request_images import parts_of

_FETCHED = {
    "url", "uri", "path", "image", "images", "video", "videos", "audios", "filedata", "fileid",
    "apibase", "proxy", "proxies", "kvtransferparams", "ectransferparams", "bootstrapport", "bootstraproom",
    "remoteport",
}  # fmt: skip
"""Fields that some servers fetch from or connect to, in small letters without anything between them."""

_LAST = ("url", "urls", "uri", "uris")
"""What the names of such fields end with."""

_LAST_WORDS = ("host", "hosts", "hostname", "hostnames", "endpoint", "endpoints")
"""What they end with as a word of its own: a `ghost` is no host."""

_LAST_WORD = re.compile(
    r"(?:[^A-Za-z](?i:hosts?|hostnames?|endpoints?)|[a-z](?:Host|Endpoint)[a-z]*)[^A-Za-z0-9]*\Z"
)
"""Such a word behind another one."""

_BETWEEN = dict.fromkeys(map(ord, "_-. /:$\t\n"))
"""What stands between words."""

_SCHEMAS = {
    "schema", "json_schema", "parameters", "guided_json", "json", "format", "input_schema", "output_schema",
    "inputSchema", "outputSchema", "parameters_json_schema", "returns", "response",
}  # fmt: skip
"""The names of JSON schemas, whose properties may have any name."""

_WITH_SCHEMAS = {
    "response_format", "tools", "functions", "structured_outputs", "guided_decoding", "guided_json",
    "json_schema", "format", "nvext", "extra_body",
}  # fmt: skip
"""The fields of a request that are JSON schemas or hold some."""

_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
"""What a validator of a schema may fetch."""

_WRITTEN_REFERENCE = re.compile(r'"(\$(?:dynamic|recursive)?[Rr]ef)"\s*:\s*"(?!#)')
"""Such a reference in a schema that is written as JSON."""

_READ_HERE = {
    "model", "messages", "prompt", "input", "n", "best_of", "stream", "max_tokens", "max_completion_tokens",
}  # fmt: skip
"""Fields that decide what a request may do."""

_ADDRESS = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*://\S+\s*\Z|data:[^\s,]{0,200},)", re.IGNORECASE)
"""A text that is an address or a data URL."""

_OTHER_DATA = re.compile(r"data:(?!\s*image)", re.IGNORECASE)
"""The beginning of a data URL of no image."""

_MOST_PLACE = 200
"""The characters of a place that are told. Clients make up the names in it, and each value in it has one."""

_LONG = 64
"""The characters of a name that are looked at, from its end."""


def refuse_addresses(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse messages with anything that an upstream could fetch, other than the images that were checked.

    Those are in parts of type ``image_url``. Servers know more than OpenAI does: ``video_url``, images
    without a type, images of a message or inside the result of a tool. Other data may be there as data URLs.

    Raises:
        ApiError: A message names an address, or holds an image where none is looked for.
    """
    for place, part in parts_of(messages):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise invalid_value(place, "a part is an object with a type")
        kind = _squashed(part["type"])
        if part["type"] != "image_url" and kind.startswith(("image", "inputimage")):
            raise _refused(f"{place}.type", "only images, in parts of type image_url, may have an address")
    for m, message in enumerate(messages):
        for place, name, value in _in_message(message, f"messages.{m}"):
            if not _is_inside(name, value):
                raise _refused(place, "only images, in parts of type image_url, may have an address")


def refuse_fields(body: Mapping[str, Any]) -> None:
    """Refuse fields beside the messages with anything that an upstream could fetch or connect to.

    The properties of JSON schemas may have any name.

    Raises:
        ApiError: There is such a field, or one that differs in letter case only from one that is read here.
    """
    for name, value in body.items():
        _refuse_twins(name)
        if name == "messages":
            continue
        for place, _, given in _in_field(name, value):
            if given not in (None, "", [], {}):
                text = "servers are given no addresses, and images in messages only"
                raise _refused(place, text)


def refuse_any_address(body: Mapping[str, Any]) -> None:
    """Refuse a request with anything that an upstream could fetch, and with images, wherever they are.

    Raises:
        ApiError: It names an address or holds an image.
    """
    text = "images and addresses are taken by /v1/chat/completions only"
    for name, value in body.items():
        _refuse_twins(name)
        for place, _, given in _in_field(name, value):
            if given not in (None, "", [], {}):
                raise _refused(place, text)
        if name == "input":
            for place, given in _texts(value, name):
                if _ADDRESS.match(given):
                    raise _refused(place, text)
        if _squashed(name) in ("modality", "modalities") and any(
            _squashed(given) != "text" for _, given in _texts(value, name)
        ):
            raise _refused(_under("", name)[1:], text)


def _refuse_twins(name: str) -> None:
    """Some servers read fields in any letter case, and the last one counts."""
    meant = name.casefold()
    if name not in _READ_HERE and len(name) <= _LONG and meant in _READ_HERE:
        text = f"{name}: there is no such field; is {meant} meant?"
        raise ApiError(400, text, "unknown_parameter", name)


def _is_inside(name: str, value: Any) -> bool:
    """Whether a field's value is data of the request itself, and no image."""
    if value in (None, "", []) or isinstance(value, dict):
        return True  # what an object holds is looked at by itself
    if _squashed(name).startswith("image"):
        return False
    texts = value if isinstance(value, list) else [value]
    return all(isinstance(text, str) and _OTHER_DATA.match(text) for text in texts)


def _in_message(message: Mapping[str, Any], place: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the fetched fields of a message, less the images in its content, which were checked."""
    for name, value in message.items():
        here = _under(place, name)
        if name == "content" and isinstance(value, list):
            for p, part in enumerate(value):
                yield from _in_part(part, _under(here, p))
        elif name in ("tool_calls", "function_call"):
            yield from _fetched(value, here, skipped={"arguments"})  # names that the client's tools have
        else:
            yield from _named(name, value, here)


def _in_part(part: Mapping[str, Any], place: str) -> Iterator[tuple[str, str, Any]]:
    for name, value in part.items():
        here = _under(place, name)
        if name == "image_url" == part["type"]:
            others = value.items() if isinstance(value, dict) else ()
            yield from _fetched({k: inner for k, inner in others if k != "url"}, here)
        else:
            yield from _named(name, value, here)


def _in_field(name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the fetched fields of a request's field; of JSON schemas only references to elsewhere."""
    if name == "metadata":  # what clients note for themselves
        return
    place = _under("", name)[1:]
    if name in _SCHEMAS and name in _WITH_SCHEMAS:
        yield from _references(value, place)
        if isinstance(value, str) and (found := _WRITTEN_REFERENCE.search(value)):
            yield name, name, found[1]
    else:
        yield from _named(name, value, place, _SCHEMAS if name in _WITH_SCHEMAS else frozenset())


def _named(
    name: str, value: Any, place: str, schemas: Collection[str] = (), skipped: Collection[str] = ()
) -> Iterator[tuple[str, str, Any]]:
    if _is_fetched(name[-_LONG:]):
        yield place, name, value
    yield from _fetched(value, place, schemas, skipped)


def _fetched(
    value: Any, place: str, schemas: Collection[str] = (), skipped: Collection[str] = ()
) -> Iterator[tuple[str, str, Any]]:
    """Yield place, name and value of every field, however deep, that something may be fetched from."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _fetched(item, _under(place, i), schemas, skipped)
    elif isinstance(value, dict):
        for name, inner in value.items():
            here = _under(place, name)
            if name in schemas and isinstance(inner, dict):
                yield from _references(inner, here)
            elif name not in skipped:
                yield from _named(name, inner, here, schemas, skipped)


def _references(schema: Any, place: str) -> Iterator[tuple[str, str, Any]]:
    """Yield a JSON schema's references to anything but itself."""
    if isinstance(schema, list):
        for i, item in enumerate(schema):
            yield from _references(item, _under(place, i))
    elif isinstance(schema, dict):
        for name, inner in schema.items():
            if name in _REFERENCES and isinstance(inner, str) and not inner.startswith("#"):
                yield _under(place, name), name, inner
            yield from _references(inner, _under(place, name))


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield the strings in a value with their places."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _texts(item, _under(place, i))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, _under(place, name))


def _is_fetched(name: str) -> bool:
    """Whether something may be fetched from a field of this name, however it is spelt."""
    squashed = _squashed(name)
    if squashed in _FETCHED or squashed.endswith(_LAST):
        return True
    if not squashed.endswith(_LAST_WORDS):
        return False
    return squashed in _LAST_WORDS or _LAST_WORD.search(name) is not None


def _squashed(name: str) -> str:
    """Return a name in small letters, without what stands between its words."""
    name = name[-_LONG:]
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).casefold()
    return name.translate(_BETWEEN).lower()


def _under(place: str, name: str | int) -> str:
    """Return the place of what stands in another place; a long one is cut off, as are all places below it."""
    if len(place) > _MOST_PLACE:
        return place
    here = f"{place}.{name[:_MOST_PLACE] if isinstance(name, str) else name}"
    return here if len(here) <= _MOST_PLACE else f"{here[:_MOST_PLACE]}..."


def _refused(place: str, text: str) -> ApiError:
    return ApiError(400, f"{place}: {text}", "remote_content_refused", place)
