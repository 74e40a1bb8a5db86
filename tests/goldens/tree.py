"""One of the two trees that are compared: its names, its commands, and what a golden stores of it.

Goldens speak in the names of the commit before the redesign. On the working tree `renames.yaml` (keys,
values, recipes, commands) and `names.yaml` (modules, classes, attributes) say what these are called there,
and what is stored is named as before, so that both stores can be compared row by row.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL.Image import Image
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
Side = Literal["before", "after"]
PORT = re.compile(r"\b127\.0\.0\.1:\d{4,5}\b")
LONG = 2000
"""Bytes are stored as they are up to this length; of longer ones the digest is."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file as plain Python."""
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


CASES: dict[str, Any] = read_yaml(HERE / "cases.yaml")
"""What goldens run, send and read."""


def words_of(parts: Iterable[str]) -> list[str]:
    """Return the words of a command line among `CASES`."""
    return shlex.split(" ".join(parts))


@dataclasses.dataclass
class Names:
    """What is called otherwise in the working tree; empty for the tree before."""

    keys: dict[str, str] = dataclasses.field(default_factory=dict)
    values: dict[str, dict[Any, Any]] = dataclasses.field(default_factory=dict)
    commands: dict[str, str] = dataclasses.field(default_factory=dict)
    modules: dict[str, str] = dataclasses.field(default_factory=dict)
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    attributes: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, side: Side, folder: Path = HERE) -> Names:
        """Read both tables, or return empty ones for the tree before."""
        if side == "before":
            return cls()
        tables = read_yaml(folder / "renames.yaml") | read_yaml(folder / "names.yaml")
        return cls(**{name: table or {} for name, table in tables.items()})

    def key(self, key: str) -> str:
        """Return the new name of a configuration key: the row of its longest beginning counts."""
        return _moved(key, self.keys)

    def old_key(self, key: str) -> str:
        """Return the old name of a configuration key of the working tree."""
        return _moved(key, _turned(self.keys))

    def value(self, key: str, value: Any) -> Any:
        """Return the new name of a value, given its key's old name."""
        return self.values.get(key, {}).get(value, value) if isinstance(value, str | int | bool) else value

    def old_value(self, key: str, value: Any) -> Any:
        """Return the old name of a value, given its key's old name."""
        back = _turned(self.values.get(key, {}))
        return back.get(value, value) if isinstance(value, str | int | bool) else value

    def stored_value(self, key: str, value: Any) -> Any:
        """Return the old name of a value that is stored under its key, or under the key's last part."""
        for row in self.values:
            if key == row or key == row.rpartition(".")[2]:
                value = self.old_value(row, value)
        return value

    def place(self, spec: str) -> tuple[str, str]:
        """Return module and name of ``module:name``; what is behind a dot in the name is kept."""
        module, _, name = spec.partition(":")
        head, dot, rest = name.partition(".")
        found = self.names.get(f"{module}:{head}")
        if found is None:
            return _moved(module, self.modules), name
        new_module, _, new_name = found.partition(":")
        return new_module, new_name + dot + rest

    def attribute(self, owner: str, name: str) -> str:
        """Return the new name of an attribute, field or keyword of an old class or function."""
        return self.attributes.get(owner, {}).get(name, name)

    def old_attribute(self, owner: str, name: str) -> str:
        """Return the old name of an attribute of an old class."""
        return _turned(self.attributes.get(owner, {})).get(name, name)

    def old_class(self, name: str) -> str:
        """Return the old name of a class."""
        known = {new.partition(":")[2]: old.partition(":")[2] for old, new in self.names.items()}
        return known.get(name, name)


def _turned(table: Mapping[Any, Any]) -> dict[Any, Any]:
    return {new: old for old, new in table.items()}


def _moved(name: str, table: Mapping[str, str]) -> str:
    for old in sorted(table, key=len, reverse=True):
        if name == old or name.startswith((f"{old}.", f"{old}[")):
            return table[old] + name[len(old) :]
    return name


class Tree:
    """A checkout whose package is imported in this process, and the folder of what is stored of it.

    Args:
        side: Which of the two it is.
        root: The checkout.
        folder: Gets the rows and tensors of one golden, and its scratch folder.
    """

    def __init__(self, side: Side, root: Path, folder: Path) -> None:
        self.side, self.root, self.folder = side, root, folder
        self.names = Names.read(side)
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._rows: dict[str, dict[str, Any]] = {}
        self._tensors: dict[str, torch.Tensor] = {}

    # Names.

    def get(self, spec: str) -> Any:
        """Import ``module:name`` by its old name; only ``module`` gives the module."""
        module, name = self.names.place(spec)
        found: Any = importlib.import_module(module)
        for part in name.split(".") if name else ():
            found = getattr(found, part)
        return found

    def attr(self, owner: Any, name: str) -> Any:
        """Return an attribute by its old name, which a class above the owner's own may have given it."""
        for above in type(owner).__mro__:
            found = self.names.attribute(self.names.old_class(above.__name__), name)
            if found != name:
                return getattr(owner, found)
        return getattr(owner, name)

    # Commands.

    def settings(self, words: Iterable[str]) -> list[str]:
        """Rename keys, values and inner keys of the ``key=value`` of a command line."""
        renamed = []
        for word in words:
            key, equals, value = word.partition("=")
            if word.startswith("-") or not equals:
                renamed.append(word)
                continue
            parsed = YAML(typ="safe").load(value)
            if isinstance(parsed, dict):
                inner = {self.names.key(f"{key}.{k}"): v for k, v in flat(parsed).items()}
                renamed += [f"{k}={json.dumps(v)}" for k, v in inner.items()]
            else:
                new = self.names.value(key, parsed)
                renamed.append(f"{self.names.key(key)}={value if new == parsed else new}")
        return renamed

    def options(self, room: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Rename the keys and values of a room of a recipe (``task``), given as nested mappings."""
        found: dict[str, Any] = {}
        for key, value in flat(given, room).items():
            *rooms, last = self.names.key(key).split(".")
            inside = found
            for name in rooms:
                inside = inside.setdefault(name, {})
            inside[last] = self.names.value(key, value)
        return found.get(self.names.key(room), {})

    def words(self, command: str, *words: str) -> list[str]:
        """Return the words behind the interpreter for a command by its old name."""
        named = self.names.commands.get(command, command)
        return ["-m", "selfverify", *named.split(), *self.settings(words)]

    def python(self, *words: str) -> None:
        """Run the interpreter in the checkout to its end.

        Raises:
            RuntimeError: It failed; the message has the end of what it said.
        """
        call = [sys.executable, *words]
        done = subprocess.run(call, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr[-3000:]}")

    def inline(self, command: str, *words: str) -> str:
        """Run a command in this process, which spares the imports; return what it prints.

        Raises:
            RuntimeError: It failed.
        """
        from typer.testing import CliRunner

        shown = CliRunner().invoke(self.get("selfverify.cli.main:app"), self.words(command, *words)[2:])
        if shown.exit_code:
            raise RuntimeError(f"{command} {' '.join(words)}: {shown.output[-3000:]}") from shown.exception
        return shown.stdout

    # What is stored.

    def row(self, row: str, /, **values: Any) -> None:
        """Store a row; its values are made plain, and named as before.

        Raises:
            ValueError: There is such a row already.
        """
        if row in self._rows:
            raise ValueError(f"two rows {row}")
        self._rows[row] = {"id": row, "values": {key: self.plain(value) for key, value in values.items()}}

    def tensor(self, name: str, value: Any) -> None:
        """Store a tensor."""
        if name in self._tensors:
            raise ValueError(f"two tensors {name}")
        self._tensors[name] = torch.as_tensor(value).detach().cpu().clone().contiguous()

    def jsonl(self, row: str, path: Path) -> None:
        """Store a file of JSON lines, one row for each line; journals' in the order of their problems.

        A journal keeps them in the order in which conversations end.
        """
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for number, line in enumerate(sorted(lines, key=lambda line: line.get("index", -1))):
            self.row(f"{row} {number}", line=line)

    def files(self, row: str, folder: Path, paths: Iterable[Path]) -> None:
        """Store files of a folder: JSON, JSON lines and tensors by their values, others by their bytes."""
        for path in sorted(paths):
            name = f"{row} {path.relative_to(folder)}"
            if path.suffix == ".jsonl":
                self.jsonl(name, path)
            elif path.suffix == ".safetensors":
                for key, tensor in load_file(path).items():
                    self.tensor(f"{name} {key}", tensor)
            elif path.suffix == ".json":
                self.row(name, content=json.loads(path.read_text(encoding="utf-8")))
            else:
                self.row(name, bytes=path.read_bytes())

    def write(self) -> None:
        """Write what is stored."""
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=True) for row in self._rows.values()]
        (self.folder / "rows.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        save_file(self._tensors, self.folder / "tensors.safetensors")

    def scrub(self, text: str) -> str:
        """Return a text without what depends on where this tree is."""
        for path, word in ((self.scratch, "SCRATCH"), (self.folder, "FOLDER"), (self.root, "ROOT")):
            text = text.replace(str(path), word)
        return PORT.sub("127.0.0.1:PORT", text)

    def plain(self, value: Any) -> Any:
        """Make a value plain JSON: objects by fields under old names, images and long bytes as digests."""
        if isinstance(value, Enum):
            return self.plain(value.value)
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str | Path):
            return self.scrub(str(value))
        if isinstance(value, bytes | bytearray):
            short = len(value) <= LONG
            return base64.b64encode(value).decode() if short else digest(bytes(value))
        if isinstance(value, np.generic | np.ndarray | torch.Tensor):
            return self.plain(value.tolist())
        if isinstance(value, Image):
            return image_digest(value)
        kind = type(value)
        fields = getattr(kind, "model_fields", None) or getattr(kind, "_fields", ())  # pydantic's, a tuple's
        if dataclasses.is_dataclass(kind):
            fields = [field.name for field in dataclasses.fields(kind)]
        if fields:
            return self._fields(value, fields)
        if isinstance(value, Mapping):
            named = {str(self.plain(key)): self.plain(inner) for key, inner in value.items()}
            return {key: self.names.stored_value(key, inner) for key, inner in named.items()}
        if isinstance(value, set | frozenset):
            return sorted((self.plain(inner) for inner in value), key=str)
        if isinstance(value, Iterable):
            return [self.plain(inner) for inner in value]
        return f"a {self.names.old_class(kind.__name__)}"

    def _fields(self, owner: Any, fields: Iterable[str]) -> dict[str, Any]:
        name = self.names.old_class(type(owner).__name__)
        named = {self.names.old_attribute(name, key): self.plain(getattr(owner, key)) for key in fields}
        return {key: self.names.stored_value(key, inner) for key, inner in named.items()}


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings and lists by their paths (``a.b[0].c``)."""
    if isinstance(value, Mapping) and value:
        pairs = [(f"{path}.{k}" if path else str(k), v) for k, v in value.items()]
    elif isinstance(value, list) and value:
        pairs = [(f"{path}[{index}]", inner) for index, inner in enumerate(value)]
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for name, inner in pairs:
        found |= flat(inner, name)
    return found


def digest(data: bytes) -> str:
    """Return the digest by which two strings of bytes are compared, with their length."""
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:24]}"


def image_digest(image: Image) -> str:
    """Return mode, size and digest of an image's pixels."""
    return f"{image.mode} {image.width}x{image.height}, {hashlib.sha256(image.tobytes()).hexdigest()[:24]}"
