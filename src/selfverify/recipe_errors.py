"""Turns pydantic's validation errors into lines that say where, what, and what was probably meant."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from selfverify.recipe_yaml import Document, Key

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
"""Our words for pydantic's commonest complaints; the others keep pydantic's."""


def complaints(
    error: ValidationError, model: type[BaseModel], document: Document, prefix: Key = (), about: str = ""
) -> list[str]:
    """One line per fault.

    Args:
        error: What pydantic found when it validated ``model``.
        model: The class that was validated.
        document: Where the values came from, for file and line.
        prefix: Where ``model`` stands in the document.
        about: Added after the key, such as which method the options belong to.
    """
    lines = []
    for fault in error.errors(include_url=False):
        inner: Key = tuple(fault["loc"])
        key = (*prefix, *inner)
        dotted = ".".join(map(str, key)) + about
        if fault["type"] == "extra_forbidden":
            text = f"{dotted}: there is no such key{_nearest(inner, model, prefix)}"
        elif fault["type"] == "missing":
            text = f"{dotted}: is missing"
        elif fault["type"] == "value_error":
            text = f"{dotted or 'recipe'}: {fault['ctx']['error']}"
        else:
            reason = WORDS.get(fault["type"]) or fault["msg"].replace("Input should", "should")
            text = f"{dotted or 'recipe'}: {reason}, but is {fault['input']!r:.80}"
        lines.append(f"{document.place(key)}: {text}")
    return lines


def _nearest(key: Key, model: type[BaseModel], prefix: Key) -> str:
    """A hint after an unknown key: the same name elsewhere, else the nearest beside it, else anywhere."""
    wrong = str(key[-1])
    around = _model_at(model, key[:-1])
    by_last = {dotted[-1]: (*prefix, *dotted) for dotted in _all_keys(model)}
    if around is not None and wrong not in by_last:
        beside = difflib.get_close_matches(wrong, around.model_fields, n=1, cutoff=0.6)
        if beside:
            return f"; did you mean {'.'.join(map(str, (*prefix, *key[:-1], beside[0])))}?"
    anywhere = difflib.get_close_matches(wrong, by_last, n=1, cutoff=0.75)
    if anywhere:
        return f"; did you mean {'.'.join(map(str, by_last[anywhere[0]]))}?"
    if around is not None:
        return f"; there are: {', '.join(around.model_fields) or 'none'}"
    return ""


def _all_keys(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        inner = _model_in(field.annotation)
        if inner is not None and len(prefix) < 8:  # a model that contains itself must not recurse for ever
            yield from _all_keys(inner, (*prefix, name))


def _model_at(model: type[BaseModel], key: Key) -> type[BaseModel] | None:
    """The class of the section at ``key``, or None where pydantic's path does not lead to a class."""
    current: type[BaseModel] | None = model
    for part in key:
        if current is None:
            return None
        if isinstance(part, int):
            continue  # an item of a list: its class was found with the list
        field = current.model_fields.get(part)
        current = _model_in(field.annotation) if field is not None else None
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not get_origin(annotation):
        return annotation if issubclass(annotation, BaseModel) else None
    if get_origin(annotation) in (Union, types.UnionType, list, tuple):
        found = [inner for inner in map(_model_in, get_args(annotation)) if inner is not None]
        return found[0] if len(found) == 1 else None
    return None
