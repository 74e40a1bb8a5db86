"""Reads and writes recipes and other settings files: YAML 1.2, with the place of every key for messages.

YAML 1.2 reads ``3e-4`` as a number and ``off``, ``no`` and ``1:30`` as texts; YAML 1.1 does the opposite.
`Document.complaints` turns pydantic's validation errors into lines: the file and line, what is wrong, what
was meant.
Of a file that is broken nothing but keys is quoted, since a value may be a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, StreamMark, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from selfverify.core.errors import ConfigError
from selfverify.core.files import read_regular

Checked = TypeVar("Checked", bound=BaseModel)
Key = tuple[str | int, ...]
"""The path of a value in a document, such as ``("learner", "optim", "betas", 0)``."""

_SHORT = {"task": "name", "method": "name", "train": "path", "validation": "path", "test": "path"}
"""Sections that may be written as one text, and the key that the text is for: `task: math` is
`task: {name: math}`."""


class Section(dict[str, Any]):
    """A mapping, and the place where each key was written, such as ``file.yaml:12``."""

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data or {})
        self.places: dict[str, str] = {**data.places} if isinstance(data, Section) else {}


class _SectionReader(SafeConstructor):
    """Makes plain values of YAML, and of mappings `Section`; the keys that YAML 1.1 has more are texts."""

    place: Callable[[StreamMark], str]

    def section(self, node: MappingNode) -> Section:
        """Return a mapping, after a check that its keys are words and that none stands twice."""
        found = Section()
        for name, value in node.value:
            key = self.construct_object(name, deep=True)
            if not isinstance(key, str):
                raise _fault(name, f"{key!r} cannot be a key; keys are words")
            if key in found:
                raise _fault(name, f"{key} stands twice (first in {found.places[key]})")
            found[key] = self.construct_object(value, deep=True)
            found.places[key] = self.place(name.start_mark)
        return found

    def text(self, node: Node) -> str:
        """Return a text that files and paths may hold."""
        if re.search("[\0\ud800-\udfff]", node.value):
            raise _fault(node, "a text that holds a null character or half of one (a lone surrogate)")
        return str(node.value)


_SectionReader.add_constructor("tag:yaml.org,2002:map", _SectionReader.section)
for _kind in ("str", "timestamp", "value", "merge"):  # of YAML 1.1: 2024-01-01, = and <<
    _SectionReader.add_constructor(f"tag:yaml.org,2002:{_kind}", _SectionReader.text)


class _TextWriter(SafeRepresenter):
    """Escapes in texts what editors and readers may change."""

    def text(self, data: str) -> ScalarNode:
        """Quote a text that cannot be printed as it is."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_TextWriter.add_representer(str, _TextWriter.text)


def _fault(node: Node, problem: str) -> MarkedYAMLError:
    return MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _yaml() -> Any:
    yaml: Any = YAML(typ="safe", pure=True)  # Any: its attributes are declared as None
    yaml.Constructor, yaml.max_depth, yaml.default_flow_style, yaml.width = _SectionReader, 50, False, 10**6
    yaml.Representer, yaml.sort_base_mapping_type_on_output = _TextWriter, False
    return yaml


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return plain values as YAML, in their order."""
    text = StringIO()
    _yaml().dump(data, text)
    return text.getvalue()


def load_yaml(text: str | bytes, source: str, numbered: bool = False) -> Any:
    """Return the plain value of a YAML text, which messages call ``source``, with lines if ``numbered``.

    Raises:
        ConfigError: It is broken YAML, or not UTF-8.
    """

    def place(mark: StreamMark) -> str:
        return f"{source}:{mark.line + 1}" if numbered else source

    yaml = _yaml()
    yaml.constructor.place = place
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        problem = str(error.problem or error.context).partition(" '")[0]  # what it quotes may be a secret
        where = place(error.problem_mark or error.context_mark)
    except (YAMLError, ValueError, LookupError):
        problem, where = "a value does not fit its tag, or it is not UTF-8", source
    raise ConfigError(f"{where}: broken YAML: {problem}")


class Document:
    """A recipe, or another file of settings.

    Args:
        source: The file's path, for messages.
        data: The plain values.
        kind: Its kind, for messages.
    """

    def __init__(self, source: str, data: Mapping[str, Any], kind: str = "recipe") -> None:
        self.source, self.data, self.kind = source, Section(data), kind

    def place(self, key: Key) -> str:
        """Return where ``key``, or else the section around it, was written, such as ``file.yaml:12``."""
        found, here = self.source, self.data
        for part in key:
            if not isinstance(here, Section) or part not in here:
                break
            found, here = here.places.get(str(part), found), here[str(part)]
        return found

    def override(self, override: str) -> None:
        """Apply ``section.key=value``.

        Raises:
            ConfigError: There is no ``=`` or no key, the value is broken YAML, or a part of the key is not a
                section.
        """
        dotted, equals, text = override.partition("=")
        *above, last = (part.strip() for part in dotted.split("."))
        source, target = f"override {override!r}", self.data
        if not equals or not all((*above, last)):
            raise ConfigError(f"{source}: write section.key=value, such as learner.steps=100")
        for part in above:
            inner = target.get(part)
            inner = {_SHORT[part]: inner} if isinstance(inner, str) and part in _SHORT else inner
            if not isinstance(inner, dict | None):
                raise ConfigError(f"{source}: {part} is {inner!r:.80}, not a section")
            target.places.setdefault(part, source)
            target[part] = target = Section(inner)  # an alias may repeat it, which stays as it is
        target[last], target.places[last] = load_yaml(text, source), source

    def validated(self, model: type[Checked], data: Any = None, prefix: Key = (), about: str = "") -> Checked:
        """Return the document as a ``model``, or ``data``, a part of it; see `complaints`.

        Raises:
            ConfigError: It does not fit; one line per fault.
        """
        try:
            return model.model_validate(self.data if data is None else data)
        except ValidationError as error:
            raise ConfigError("\n".join(self.complaints(error.errors(), model, prefix, about))) from None

    def complaints(
        self, faults: Iterable[ErrorDetails], model: type[BaseModel], prefix: Key = (), about: str = ""
    ) -> Iterator[str]:
        """Yield one line per fault that validating ``model`` has found.

        Args:
            faults: The list of `pydantic.ValidationError.errors`.
            model: The class that was validated.
            prefix: The path of ``model``'s section in the document.
            about: A text after the key, such as which method the options belong to.
        """
        for fault in faults:
            own, key = fault["loc"], (*prefix, *fault["loc"])
            said = _unknown(own, model, prefix) if fault["type"] == "extra_forbidden" else reason(fault)
            for line in said.splitlines():
                yield f"{self.place(key)}: {'.'.join(map(str, key)) + about or self.kind}: {line}"


def read_document(path: Path, kind: str = "recipe") -> Document:
    """Return the document in a YAML file, whose top level has to be a mapping; messages call it ``kind``.

    Raises:
        ConfigError: The file is broken YAML, or has a key twice; with file and line.
        FileError: It cannot be read.
    """
    data = load_yaml(read_regular(path), str(path), numbered=True)
    if not isinstance(data, Section):
        raise ConfigError(f"{path}: a {kind} is a mapping of keys to values")
    return Document(str(path), data, kind)


def reason(fault: ErrorDetails) -> str:
    """Return what is wrong with a value, as a phrase that follows the value's key.

    The value is quoted, unless an address with a password may stand in it.
    """
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "missing":
        return "is missing"
    said, shown = fault["msg"].replace("Input should", "should"), repr(fault["input"])
    # An address with a user may have a password.
    return f"{said}, but is {shown:.80}" if not re.search(r"//[^/\s]*@", shown) else said


def _unknown(key: Key, model: type[BaseModel], prefix: Key) -> str:
    """Say of a key that there is none, and which one was meant: the same name in another section, else the
    nearest one beside it, else anywhere."""
    *section, wrong = (str(part) for part in key if not isinstance(part, int))
    anywhere = {names[-1]: names for names in _all_keys(model)}
    beside = {names[-1]: names for names in _all_keys(model) if [*names[:-1]] == section}
    near = [] if wrong in anywhere else difflib.get_close_matches(wrong, beside, n=1, cutoff=0.6)
    hint = f"; there are: {', '.join(beside) or 'none'}" if beside or not section else ""
    if near := near or difflib.get_close_matches(wrong, anywhere, n=1, cutoff=0.75):
        hint = f"; did you mean {'.'.join(map(str, (*prefix, *(anywhere | beside)[near[0]])))}?"
    return f"there is no such key{hint}"


def _all_keys(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        yield (*above, name)
        for inner in (info.annotation, *get_args(info.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel) and len(above) < 8:
                yield from _all_keys(inner, (*above, name))
