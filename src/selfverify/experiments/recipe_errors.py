"""Turns pydantic's validation errors into lines: the file and line, what is wrong, and what was meant."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from selfverify.experiments.recipe_yaml import Document, Key

WORDS = {
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "int_type": "should be a whole number",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "model_type": "should be a section of keys and values",
    "model_attributes_type": "should be a section of keys and values",
    "list_type": "should be a list, such as [a, b]",
    "dict_type": "should be a section of keys and values",
}
"""Our words for the commonest kinds of pydantic's errors; other errors keep pydantic's words."""

_WITH_USER = re.compile(r"//[^/\s]*@")
"""An address with a user, who may have a password."""


def complaints(
    error: ValidationError, model: type[BaseModel], document: Document, prefix: Key = (), about: str = ""
) -> list[str]:
    """Return one line per fault.

    Args:
        error: The error that validating ``model`` raised.
        model: The class that was validated.
        document: The document of the values, which knows their files and lines.
        prefix: The path of ``model``'s section in the document.
        about: A text after the key, such as which method the options belong to.
    """
    lines = []
    for fault in error.errors(include_url=False):
        lines += complaint(fault, model, document, prefix, about)
    return lines


def complaint(
    fault: ErrorDetails, model: type[BaseModel], document: Document, prefix: Key = (), about: str = ""
) -> list[str]:
    """Return the lines of one fault. See `complaints`."""
    inner: Key = tuple(fault["loc"])
    key = (*prefix, *inner)
    dotted, secret = ".".join(map(str, key)) + about, document.is_secret(key)
    if fault["type"] == "extra_forbidden" and secret:
        dotted = ".".join(map(str, key[:-1]))  # what stands there as a key may be one
        said = f"has a key that there is not{_nearest(inner, model, prefix)}"
    elif fault["type"] == "extra_forbidden":
        said = f"there is no such key{_nearest(inner, model, prefix)}"
    elif fault["type"] == "missing":
        said = "is missing"
    else:
        said = reason(fault, quoted=not secret)
    return [f"{document.place(key)}: {dotted or document.kind}: {line}" for line in said.splitlines()]


def reason(fault: ErrorDetails, quoted: bool = True) -> str:
    """Return what is wrong with a value, as a phrase that follows the value's key.

    The value is ``quoted``, unless an address with a password may stand in it.
    """
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    said = WORDS.get(fault["type"]) or fault["msg"].replace("Input should", "should")
    shown = repr(fault["input"])
    return f"{said}, but is {shown:.80}" if quoted and not _WITH_USER.search(shown) else said


def _nearest(key: Key, model: type[BaseModel], prefix: Key) -> str:
    """Return a hint: the same name in another section, else the nearest one beside it, else anywhere."""
    *section, wrong = (str(part) for part in key if not isinstance(part, int))
    known = list(_all_keys(model))
    beside = {last: (*above, last) for *above, last in known if above == section}
    anywhere = {last: (*above, last) for *above, last in known}
    for names, cutoff in ((beside, 0.6), (anywhere, 0.75)):
        near = difflib.get_close_matches(wrong, names, n=1, cutoff=cutoff)
        if near and (names is anywhere or wrong not in anywhere):
            return f"; did you mean {'.'.join(map(str, (*prefix, *names[near[0]])))}?"
    return f"; there are: {', '.join(beside) or 'none'}" if beside or not section else ""


def _all_keys(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        yield (*prefix, name)
        inner = _model_in(info.annotation)
        if inner is not None and len(prefix) < 8:  # a model that contains itself must not recurse for ever
            yield from _all_keys(inner, (*prefix, name))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not get_origin(annotation):
        return annotation if issubclass(annotation, BaseModel) else None
    if get_origin(annotation) in (Union, types.UnionType, list, tuple):
        found = [inner for inner in map(_model_in, get_args(annotation)) if inner is not None]
        return found[0] if len(found) == 1 else None
    return None
