"""Reads and writes recipes and other settings files: YAML 1.2, with every key's line for messages.

YAML 1.2 reads ``3e-4`` as a number and ``off``, ``no`` and ``1:30`` as texts; YAML 1.1 does the opposite.
`complaints` turns pydantic's validation errors into lines: the file and line, what is wrong, what was meant.
Of a file that is broken nothing but keys is quoted, since a value may be a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
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
_PARSER_FAULTS = {
    "maximum depth": f"more than {MOST_DEPTH} sections and lists stand inside each other",
    "but found another document": "a second document begins here; a file is one document",
    "found undefined alias": "an alias of nothing; a text that begins with * has to be quoted",
}
"""Our words for what the parser says about its own settings, in half a sentence, or with a value."""


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
    yaml.Representer, yaml.max_depth = _PlainForAll, MOST_DEPTH
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
    """

    source: str
    data: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)
    overridden: dict[Key, str] = field(default_factory=dict)
    kind: str = "recipe"

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


def read_document(path: Path, kind: str = "recipe") -> Document:
    """Return the document in a YAML file, whose top level has to be a mapping; messages call it ``kind``.

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
    document = Document(str(path), {}, kind=kind)
    document.data = load_yaml(text, str(path), document.lines)
    if not isinstance(document.data, dict):
        raise ConfigError(f"{path}: a {kind} is a mapping of keys to values, this is {_kind(document.data)}")
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
    value, target = load_yaml(text, f"override {override!r}"), document.data
    for depth, part in enumerate(parts[:-1], start=1):
        inner = target.get(part)
        if isinstance(inner, str) and (short := SHORT.get(parts[:depth])):
            inner = {short: inner}
        if not isinstance(inner, dict | None):
            raise ConfigError(
                f"override {override!r}: {'.'.join(parts[:depth])} is {_kind(inner)}, not a section"
            )
        target[part] = dict(inner or {})
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


def load_yaml(text: str, source: str, lines: dict[Key, int] | None = None) -> Any:
    """Return the plain value of a YAML text.

    Args:
        text: The text.
        source: What messages call it.
        lines: Gets the line of every key, and messages name lines; None for the value of an override.

    Raises:
        ConfigError: It is broken YAML.
    """
    yaml = _yaml()
    try:
        node = yaml.compose(text)
        return None if node is None else _plain(node, (), {} if lines is None else lines, yaml.constructor)
    except MarkedYAMLError as error:
        mark, problem = error.problem_mark or error.context_mark, str(error.problem or error.context)
        ours = (words for begin, words in _PARSER_FAULTS.items() if problem.startswith(begin))
        place = source if lines is None else f"{source}:{mark.line + 1}"
        raise ConfigError(f"{place}: broken YAML: {next(ours, problem)}") from None
    except YAMLError as error:
        raise ConfigError(f"{source}: broken YAML: {error}") from None


def _plain(node: Node, key: Key, lines: dict[Key, int], constructor: Any) -> Any:
    """Return a node's plain value, and note the line of every key in it.

    An alias becomes a copy of what it repeats, so that an override changes one of them only.
    """
    kind = str(node.tag).rpartition(":")[2]
    if len(key) > MOST_DEPTH:
        raise _fault(node, "a value that contains itself")
    if len(lines) > MOST_VALUES:
        raise _fault(node, f"more than {MOST_VALUES:,} values, counting what aliases repeat")
    if isinstance(node, ScalarNode):
        return _scalar(node, kind, constructor)
    if kind not in ("map", "seq"):
        raise _fault(node, f"{node.tag} is no section and no list; leave the tag out")
    inner: list[tuple[Any, Node, Node]] = [(n, item, item) for n, item in enumerate(node.value)]
    if isinstance(node, MappingNode):
        inner = [(_plain(name, key, lines, constructor), name, value) for name, value in node.value]
    found = {}
    for part, written, value in inner:
        path = (*key, part)
        if isinstance(node, MappingNode) and not isinstance(part, str):
            shown = f"{written.value!r}" if isinstance(written, ScalarNode) else "a list or a section"
            raise _fault(written, f"{shown} cannot be a key; keys are words")
        if path in lines:
            dotted = ".".join(map(str, path))
            raise _fault(written, f"{dotted} stands twice (first in line {lines[path]})")
        lines[path] = written.start_mark.line + 1
        found[part] = _plain(value, path, lines, constructor)
    return found if isinstance(node, MappingNode) else [*found.values()]


def _scalar(node: ScalarNode, kind: str, constructor: Any) -> Any:
    if _NO_TEXT.search(node.value):
        raise _fault(
            node,
            "a text that holds a null character or half of one (a lone surrogate), which no name and no "
            "path can have",
        )
    if kind in ("timestamp", "value", "merge"):  # of YAML 1.1: 2024-01-01, = and <<
        return node.value
    try:
        return constructor.construct_object(node)
    except (ValueError, LookupError):
        raise _fault(node, f"this is no {kind}") from None


def _fault(node: Node, problem: str) -> MarkedYAMLError:
    return MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    names: dict[type, str] = {dict: "a mapping", list: "a list", str: "a text"}
    return names.get(type(value), f"the value {value!r}")


_SECTION = "should be a section of keys and values"
WORDS = {
    **dict.fromkeys(("int_parsing", "int_from_float", "int_type"), "should be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "should be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "should be true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), _SECTION),
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
    faults = error.errors(include_url=False)
    return [line for fault in faults for line in complaint(fault, model, document, prefix, about)]


def complaint(
    fault: ErrorDetails, model: type[BaseModel], document: Document, prefix: Key = (), about: str = ""
) -> list[str]:
    """Return the lines of one fault; see `complaints`."""
    inner: Key = tuple(fault["loc"])
    key = (*prefix, *inner)
    if fault["type"] == "extra_forbidden":
        said = f"there is no such key{_nearest(inner, model, prefix)}"
    elif fault["type"] == "missing":
        said = "is missing"
    else:
        said = reason(fault)
    dotted = ".".join(map(str, key)) + about
    return [f"{document.place(key)}: {dotted or document.kind}: {line}" for line in said.splitlines()]


def reason(fault: ErrorDetails) -> str:
    """Return what is wrong with a value, as a phrase that follows the value's key.

    The value is quoted, unless an address with a password may stand in it.
    """
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    said = WORDS.get(fault["type"]) or fault["msg"].replace("Input should", "should")
    shown = repr(fault["input"])
    return f"{said}, but is {shown:.80}" if not _WITH_USER.search(shown) else said


def _nearest(key: Key, model: type[BaseModel], prefix: Key) -> str:
    """Return a hint: the same name in another section, else the nearest one beside it, else anywhere."""
    *section, wrong = (str(part) for part in key if not isinstance(part, int))
    known = [*_all_keys(model)]
    anywhere = {names[-1]: names for names in known}
    beside = {names[-1]: names for names in known if [*names[:-1]] == section}
    near = [] if wrong in anywhere else difflib.get_close_matches(wrong, beside, n=1, cutoff=0.6)
    near = near or difflib.get_close_matches(wrong, anywhere, n=1, cutoff=0.75)
    if near:
        return f"; did you mean {'.'.join(map(str, (*prefix, *(anywhere | beside)[near[0]])))}?"
    return f"; there are: {', '.join(beside) or 'none'}" if beside or not section else ""


def _all_keys(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        yield (*above, name)
        for inner in _models_in(info.annotation):
            if len(above) < 8:  # a model that contains itself must not recurse for ever
                yield from _all_keys(inner, (*above, name))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
