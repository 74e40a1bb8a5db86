"""Reads recipe files: YAML with the scalars people mean, and the line of every key for messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from selfverify.errors import ConfigError

Key = tuple[str | int, ...]
"""Where a value stands: ``("learner", "betas", 0)``."""


_FLOAT = (
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's scalars.

    YAML 1.1 reads ``3e-4`` as a string, ``off`` as False and ``1:30`` as 90: every one of them a
    setting that somebody writes and that would silently mean something else.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", _FLOAT, list("-+0123456789.")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that also quotes texts which look like numbers to YAML 1.2, such as ``"3e-4"``."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT})$"), None)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # PyYAML writes U+0085, a line separator, so that it reads it back as a space; escaped it survives.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump_yaml(data: dict[str, Any]) -> str:
    """Plain values as YAML, in their order, so that any YAML reader reads them back unchanged."""
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    assert isinstance(text, str)
    return text


SHORT: dict[Key, str] = {
    ("task",): "name",
    ("method",): "name",
    **{("task", split): "path" for split in ("train", "validation", "test")},
}
"""Sections that may be written as one text, and what that is: `task: math` is `task: {name: math}`."""


@dataclass
class Document:
    """A recipe as it was read, with the origin of its keys.

    Args:
        source: The file, for messages.
        data: The plain values.
        lines: Line (from 1) of each key that the file holds.
        overridden: The override that set a key, by key.
    """

    source: str
    data: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)
    overridden: dict[Key, str] = field(default_factory=dict)

    def place(self, key: Key) -> str:
        """Where ``key``, or the nearest thing around it, was written: ``file.yaml:12``."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.overridden:
                return f"override {self.overridden[key[:length]]!r}"
            if key[:length] in self.lines:
                return f"{self.source}:{self.lines[key[:length]]}"
        # A fault of a whole section that an override made: `seed.x=1` turns `seed` into a section.
        inside = [text for path, text in self.overridden.items() if path[: len(key)] == key]
        return f"override {inside[0]!r}" if key and inside else self.source


def read_document(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping.

    Raises:
        ConfigError: Unreadable file, broken YAML, a key that stands twice; with file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read this recipe: {error}") from None
    document = Document(str(path), {})
    data = _load(text, str(path), document.lines)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of keys to values, this is {_kind(data)}")
    document.data = data
    return document


def parse_override(override: str, document: Document) -> None:
    """Apply ``section.key=value`` to a document.

    Raises:
        ConfigError: There is no ``=``, no key, the value is broken YAML, or a part of the key is no mapping.
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


def overridden_name(section: str, overrides: Sequence[str]) -> str | None:
    """The name that the last ``section.name=NAME`` gives a section; None where there is no such override."""
    document = Document("overrides", {})
    for override in overrides:
        if override.partition("=")[0].strip() == f"{section}.name":
            parse_override(override, document)
    name = document.data.get(section, {}).get("name")
    return None if name is None else str(name)


def _load(text: str, source: str, lines: dict[Key, int]) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _walk(node, (), source, lines, set())
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}" if mark and source.endswith((".yaml", ".yml")) else source
        raise ConfigError(f"{place}: broken YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: broken YAML: {error}") from None
    finally:
        loader.dispose()


def _walk(node: yaml.Node, key: Key, source: str, lines: dict[Key, int], above: set[int]) -> None:
    """Note the line of every key, and refuse what YAML would let pass: a key that stands twice."""
    if id(node) in above:
        raise ConfigError(f"{source}:{node.start_mark.line + 1}: a value that contains itself")
    above = above | {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*key, index)] = item.start_mark.line + 1
            _walk(item, (*key, index), source, lines, above)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            if isinstance(name, yaml.ScalarNode) and name.tag.endswith(":str"):
                if name.value in seen:
                    raise ConfigError(
                        f"{source}:{line}: {'.'.join(map(str, (*key, name.value)))} stands twice "
                        f"(first in line {seen[name.value]})"
                    )
                seen[name.value] = line
                lines[(*key, name.value)] = line
                _walk(value, (*key, name.value), source, lines, above)
            elif not name.tag.endswith(":merge"):
                raise ConfigError(f"{source}:{line}: {name.value!r} cannot be a key; keys are words")


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    names: dict[type, str] = {dict: "a mapping", list: "a list", str: "a text"}
    return names.get(type(value), f"the value {value!r}")
