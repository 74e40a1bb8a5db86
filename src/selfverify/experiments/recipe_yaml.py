"""Reads and writes recipes and other settings files: YAML 1.2, with every key's line for messages.

YAML 1.2 reads ``3e-4`` as a number and ``off``, ``no`` and ``1:30`` as texts; YAML 1.1 does the opposite.
`complaints` turns pydantic's validation errors into lines: the file and line, what is wrong, what was meant.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver

from selfverify.core.errors import ConfigError
from selfverify.core.files import open_regular

Key = tuple[str | int, ...]
"""The path of a value in a document, such as ``("learner", "betas", 0)``."""

MOST_DEPTH = 50
"""How many sections and lists may stand inside each other."""

MOST_BYTES = 1_000_000
"""How large a file may be."""

MOST_VALUES = 10_000
"""How many values a file may have, those counted again that its aliases repeat."""


_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class _DatesAreTexts(VersionedResolver):
    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)
        return self.DEFAULT_SCALAR_TAG if str(tag).endswith((":timestamp", ":value")) else tag


class _NamesLines(SafeConstructor):
    """Says where a value stands that is not what its tag says, as in ``!!int x``."""

    quotes = True

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError):
            shown = repr(node.value) if self.quotes else "this"
            problem = f"{shown} is no {str(node.tag).rpartition(':')[2]}"
            raise ConstructorError(problem=problem, problem_mark=node.start_mark) from None


class _PlainForAll(SafeRepresenter):
    """Writes scalars so that readers of YAML 1.1, such as PyYAML, understand the same."""

    other = VersionedResolver(version=(1, 1))

    def represent_str(self, data: str) -> ScalarNode:
        """Quote what YAML 1.1 would not read as a text; escape what editors and readers may change."""
        tag = self.other.resolve(ScalarNode, data, (True, False))
        style = "'" if tag != self.other.DEFAULT_SCALAR_TAG else None
        return self.represent_scalar(
            "tag:yaml.org,2002:str", data, style=style if data.isprintable() else '"'
        )

    def represent_float(self, data: float) -> ScalarNode:
        """Write ``5.0e-07``: YAML 1.1 reads ``5e-07`` as a text."""
        node = super().represent_float(data)
        if "." not in node.value:
            node.value = node.value.replace("e", ".0e")
        return node


_PlainForAll.add_representer(str, _PlainForAll.represent_str)
_PlainForAll.add_representer(float, _PlainForAll.represent_float)


def _yaml() -> Any:
    yaml: Any = YAML(typ="safe", pure=True)  # Any: its attributes are declared as None
    yaml.Resolver, yaml.Constructor, yaml.Representer = _DatesAreTexts, _NamesLines, _PlainForAll
    yaml.max_depth = MOST_DEPTH
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output, yaml.width = False, False, 10**6
    return yaml


def dump_yaml(data: dict[str, Any]) -> str:
    """Return plain values as YAML, in their order; readers of YAML 1.1 and 1.2 read them back unchanged."""
    text = StringIO()
    _yaml().dump(data, text)
    return text.getvalue()


SHORT: dict[Key, str] = {
    ("task",): "name",
    ("method",): "name",
    **{("task", split): "path" for split in ("train", "validation", "test")},
}
"""Sections that may be written as one text, and the key that the text is for: `task: math` is
`task: {name: math}`."""


@dataclass
class Document:
    """A recipe, or another file of settings, as it was read, with the origin of its keys.

    Args:
        source: The file's path, for messages.
        data: The plain values.
        lines: The line (from 1) of each key in the file.
        overridden: The override that set each key which does not come from the file.
        kind: What it is, for messages.
        secret: The sections of which messages quote nothing.
    """

    source: str
    data: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)
    overridden: dict[Key, str] = field(default_factory=dict)
    kind: str = "recipe"
    secret: Sequence[Key] = ()

    def is_secret(self, key: Key) -> bool:
        """Whether what stands at ``key`` may be a secret."""
        return _is_within(key, self.secret)

    def place(self, key: Key) -> str:
        """Return where ``key``, or else the section around it, was written, such as ``file.yaml:12``."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.overridden:
                return f"override {self.overridden[key[:length]]!r}"
            if key[:length] in self.lines:
                return f"{self.source}:{self.lines[key[:length]]}"
        # A fault of a whole section that an override made: `seed.x=1` turns `seed` into a section.
        inside = [text for path, text in self.overridden.items() if path[: len(key)] == key]
        return f"override {inside[0]!r}" if key and inside else self.source


def read_document(path: Path, kind: str = "recipe", secret: Sequence[Key] = ()) -> Document:
    """Return the document in a YAML file, whose top level has to be a mapping.

    Args:
        path: The file.
        kind: What messages call it.
        secret: Sections of which messages quote nothing.

    Raises:
        ConfigError: The file cannot be read, is broken YAML, or has a key twice; with file and line.
    """
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"{path}: a {kind} has at most {MOST_BYTES:,} bytes")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read this {kind}: {error}") from None
    document = Document(str(path), {}, kind=kind, secret=secret)
    data = _load(text, str(path), document.lines, secret)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a {kind} is a mapping of keys to values, this is {_kind(data)}")
    document.data = data
    return document


def parse_override(override: str, document: Document) -> None:
    """Apply ``section.key=value`` to a document.

    Raises:
        ConfigError: There is no ``=`` or no key, the value is broken YAML, or a part of the key is not a
            section.
    """
    dotted, equals, text = override.partition("=")
    parts = tuple(part.strip() for part in dotted.split("."))
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r}: write section.key=value, such as learner.steps=100")
    value = _load(text, f"override {override!r}", {})
    target = document.data
    for depth, part in enumerate(parts[:-1], start=1):
        inner = target.get(part)
        if isinstance(inner, str) and (short := SHORT.get(parts[:depth])):
            inner = {short: inner}
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise ConfigError(
                f"override {override!r}: {'.'.join(parts[:depth])} is {_kind(inner)}, not a section"
            )
        # A copy, because YAML aliases make two keys share one mapping.
        target[part] = dict(inner)
        target = target[part]
    target[parts[-1]] = value
    document.overridden[parts] = override
    for key in [key for key in document.lines if key[: len(parts)] == parts]:
        del document.lines[key]  # what stood in the file is no longer there


def overridden_name(section: str, overrides: Sequence[str]) -> str | None:
    """Return the name in the last override ``section.name=NAME``; None where there is no such override."""
    document = Document("overrides", {})
    for override in overrides:
        if override.partition("=")[0].strip() == f"{section}.name":
            parse_override(override, document)
    name = document.data.get(section, {}).get("name")
    return None if name is None else str(name)


def _load(text: str, source: str, lines: dict[Key, int], secret: Sequence[Key] = ()) -> Any:
    """Return the plain value of a YAML text, and note the line of every key in ``lines``."""
    yaml = _yaml()
    yaml.constructor.quotes = not secret
    try:
        node = yaml.compose(text)
        if node is None:
            return None
        _walk(node, (), source, lines, secret)
        return yaml.constructor.construct_document(node)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}" if mark and source.endswith((".yaml", ".yml")) else source
        raise ConfigError(f"{place}: broken YAML: {_problem(error)}") from None
    except YAMLError as error:
        raise ConfigError(f"{source}: broken YAML: {error}") from None


def _problem(error: MarkedYAMLError) -> str:
    """Return what is wrong, in our words where the parser's are about its own settings or half a sentence."""
    problem = str(error.problem or error.context)
    if problem.startswith("maximum depth"):
        return f"more than {MOST_DEPTH} sections and lists stand inside each other"
    if problem == "but found another document":
        return "a second document begins here; a file is one document"
    if problem.startswith("found undefined alias"):
        return "an alias of nothing; a text that begins with * has to be quoted"
    return problem


def _walk(node: Node, key: Key, source: str, lines: dict[Key, int], secret: Sequence[Key]) -> None:
    """Note the line of every key. Refuse a key that stands twice, and aliases that repeat without end."""
    hides = _is_within(key, secret)
    if len(key) > MOST_DEPTH:
        raise ConfigError(f"{source}:{node.start_mark.line + 1}: a value that contains itself")
    if len(lines) > MOST_VALUES:
        raise ConfigError(f"{source}: more than {MOST_VALUES:,} values, counting what its aliases repeat")
    _refuse_halves(node, source, hides)
    inner: list[tuple[str | int, Node, int]] = []
    if isinstance(node, SequenceNode):
        inner = [(index, item, item.start_mark.line) for index, item in enumerate(node.value)]
    elif isinstance(node, MappingNode):
        for name, value in node.value:
            if not isinstance(name, ScalarNode) or not str(name.tag).endswith((":str", ":merge")):
                line = name.start_mark.line + 1
                shown = repr(name.value) if isinstance(name, ScalarNode) else "a list or a section"
                shown = "this" if hides else shown
                raise ConfigError(f"{source}:{line}: {shown} cannot be a key; keys are words")
            _refuse_halves(name, source, hides)
            inner.append((name.value, value, name.start_mark.line))
    for part, value, line in inner:
        path = (*key, part)
        if path in lines:
            dotted = ".".join(map(str, key)) + ": a key" if hides else ".".join(map(str, path))
            raise ConfigError(f"{source}:{line + 1}: {dotted} stands twice (first in line {lines[path]})")
        lines[path] = line + 1
        _walk(value, path, source, lines, secret)


def _refuse_halves(node: Node, source: str, hides: bool) -> None:
    if isinstance(node, ScalarNode) and _NO_TEXT.search(node.value):
        shown = "this" if hides else f"{node.value!r:.80}"
        raise ConfigError(
            f"{source}:{node.start_mark.line + 1}: {shown} holds a null character or half of one "
            "(a lone surrogate), which no name and no path can have"
        )


def _is_within(key: Key, sections: Sequence[Key]) -> bool:
    return any(key[: len(section)] == section for section in sections)


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    names: dict[type, str] = {dict: "a mapping", list: "a list", str: "a text"}
    return names.get(type(value), f"the value {value!r}")


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
