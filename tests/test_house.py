"""House rules that a program can check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tables import read_tables

SOURCE = Path(__file__).parents[1] / "src" / "selfverify"
MORE = [*sorted(SOURCE.parents[1].glob("environments/*/selfverify_*")), SOURCE.parents[1] / "reproduce"]
"""The distributions beside the package, and the notebook."""


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package and of what stands beside it, with its path."""
    for folder in (SOURCE, *MORE):
        for path in sorted(folder.rglob("*.py")):
            yield str(path.relative_to(folder)), ast.parse(path.read_text(encoding="utf-8"))


def members(tree: ast.Module) -> Iterator[str]:
    """What the classes of a module define: methods, fields, and attributes that methods set on ``self``."""
    for cls in ast.walk(tree):
        if not isinstance(cls, ast.ClassDef):
            continue
        for node in ast.walk(cls):
            match node:
                case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                    yield name
                case ast.Attribute(ast.Name("self"), name, ast.Store()):
                    yield name
        for statement in cls.body:
            match statement:
                case ast.AnnAssign(ast.Name(name)) | ast.Assign([ast.Name(name)]):
                    yield name


def fetched(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The lines and the names of all calls ``getattr(x, "name")`` and ``hasattr(x, "name")``."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("getattr" | "hasattr"), [_, ast.Constant(str(name)), *_]):
                yield node.lineno, name


def test_nothing_of_ours_is_looked_up_by_name() -> None:
    """Base classes say what there is: ``getattr`` is for other libraries' objects."""
    parsed = [*trees()]
    own = {name for _, tree in parsed for name in members(tree)}
    wrong = [f"{file}:{line} {name}" for file, tree in parsed for line, name in fetched(tree) if name in own]
    assert wrong == []


def test_lookups_are_found() -> None:
    """The search finds what it looks for, so that the test above can fail."""
    tree = ast.parse("class A:\n  x: int = 0\n  z = 1\n  def f(self):\n    self.y = hasattr(self, 'x')\n")
    assert set(members(tree)) == {"x", "z", "f", "y"} and list(fetched(tree)) == [(5, "x")]


def exists(name: str) -> bool:
    """Whether a module of the package, or something in it, has this name (without ``selfverify.``)."""
    module = SOURCE.joinpath(*name.split("."))
    package = module.parent / "__init__.py"
    return (
        module.is_dir()
        or module.with_suffix(".py").is_file()
        or module.parent.with_suffix(".py").is_file()
        or (package.is_file() and module.name in package.read_text(encoding="utf-8"))
    )


def test_modules_that_texts_name_exist() -> None:
    """Docstrings point readers to `selfverify.a.b`."""
    wrong = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name in re.findall(r"`selfverify\.([\w.]+)`", path.read_text(encoding="utf-8"))
        if not exists(name)
    ]
    assert wrong == []


def test_every_table_belongs_to_a_test() -> None:
    """Cases under the name of a test that there is not would be checked by nothing."""
    root = SOURCE.parents[1]
    folders = [root / "tests", root / "reproduce/tests", *root.glob("environments/*/tests")]
    files = [path for folder in folders for path in folder.rglob("test_*.yaml")]
    assert len(files) > 50
    for path in files:
        code = path.with_suffix(".py").read_text("utf-8")
        tests = [name for name in read_tables(path) if str(name).startswith("test_")]
        assert [name for name in tests if f"def {name}(" not in code] == [], path
