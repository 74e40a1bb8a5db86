"""A folder is a layer: which folder of the library may import which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "selfverify"

LAYERS = (
    *("core", "objectives", "selection", "data", "tasks", "policy", "clients", "connectors", "rollouts"),
    *("agents", "visual", "verifiers", "evaluation", "reports", "methods", "trainer", "serving"),
    *("experiments", "integrations", "cli"),
)
"""The folders from the bottom up. A folder imports itself and folders that stand before it."""

ALONE = ("objectives", "selection.rules", "core.config", "core.policy_config", "core.trainer_config")
"""Import nothing of ours: mathematics to be used without us, and settings that load without torch, which
share one base and the errors."""


def modules() -> dict[str, Path]:
    """All our modules by dotted name without the package's own; ``x/__init__.py`` is ``x``."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
INNER = sorted(name for name in MODULES if name.split(".")[0] not in ("", "__main__"))


@cache
def imports(name: str) -> tuple[tuple[str, frozenset[str]], ...]:
    """Our modules that a module imports anywhere, even inside a function, and the names it takes."""
    return tuple(read_imports(name))


def read_imports(name: str) -> Iterator[tuple[str, frozenset[str]]]:
    """What `imports` says, read from the module's file."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [(alias.name, frozenset[str]()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ["selfverify", *package[: len(package) - node.level + 1]]
                base = ".".join([*above, base] if base else above)
            targets = [(base, frozenset(alias.name for alias in node.names))]
        else:
            continue
        for target, names in targets:
            if target != "selfverify" and not target.startswith("selfverify."):
                continue
            inner = target.removeprefix("selfverify").removeprefix(".")
            below = {n: f"{inner}.{n}".removeprefix(".") for n in names}
            # `from selfverify.evaluation import figures` imports a module, not a name.
            yield from ((module, frozenset[str]()) for module in below.values() if module in MODULES)
            taken = frozenset(n for n, module in below.items() if module not in MODULES)
            if taken or not names:
                yield inner, taken


def test_every_folder_has_a_layer() -> None:
    """A new folder must be put somewhere, and no module stands beside the folders."""
    assert {name.split(".")[0] for name in MODULES} == {*LAYERS, "", "__main__"}


@pytest.mark.parametrize("name", INNER)
def test_imports_point_down(name: str) -> None:
    """Everything a module imports is in its own folder or in one below it."""
    own = LAYERS.index(name.split(".")[0])
    allowed = LAYERS[: own + 1]
    wrong = {target for target, _ in imports(name) if target.split(".")[0] not in allowed}
    assert not wrong, f"{name} must not import {', '.join(sorted(wrong))}"


EXTRA = {"aiohttp", "openai", "prometheus_client", "yarl"}
"""Packages that only the extra `serve` brings."""


def loaded(name: str, seen: set[str]) -> set[str]:
    """The packages that one of our modules imports when it is imported, also by way of others of ours."""
    seen.add(name)
    found = set[str]()
    for statement in ast.parse(MODULES[name].read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        if isinstance(statement, (ast.Import, ast.ImportFrom, ast.If, ast.Try)):
            for node in ast.walk(statement):
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    ours = {module.removeprefix("selfverify.") for module in found} & MODULES.keys()
    others = {module.split(".")[0] for module in found}
    return others.union(*(loaded(module, seen) for module in ours if module not in seen))


@pytest.mark.parametrize("name", ["serving.solve", "experiments.run", "experiments.quickstart"])
def test_an_own_model_needs_no_extra(name: str) -> None:
    assert not loaded(name, set()) & EXTRA and loaded("serving.upstream", set()) & EXTRA


def circle(edges: dict[str, set[str]]) -> list[str]:
    """The names of one circle in a graph, from its first to its first again; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(edges.get(name, ())):
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(edges) if (found := visit(name, []))), [])


def test_no_circle_of_modules() -> None:
    """Also not through imports inside functions, or those for type checkers only."""
    edges = {name: {target for target, _ in imports(name) if target != name} for name in INNER}
    assert circle(edges) == []


def test_circles_are_found() -> None:
    """The search for circles finds one, so that the test above can fail."""
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


@pytest.mark.parametrize("part", ALONE)
def test_stands_alone(part: str) -> None:
    """These can be taken without the rest of the library."""
    for name in MODULES:
        if name == part or name.startswith(part + "."):
            shared = (part, "core.config", "core.errors") if part.startswith("core.") else (part,)
            outside = [target for target, _ in imports(name) if not target.startswith(shared)]
            assert not outside, f"{name} imports {outside}"


def test_trainer_knows_no_method() -> None:
    """Only what all methods have in common is imported: a new method never edits the trainer."""
    for name in MODULES:
        if name.split(".")[0] == "trainer":
            for target, names in imports(name):
                if target.split(".")[0] == "methods":
                    assert (target, names) == ("methods.base", frozenset({"Training"})), (
                        f"{name} imports {sorted(names)} from {target}"
                    )


def test_methods_do_not_know_each_other() -> None:
    """A method shares what is common with the others, and nothing else, unless it is made of them."""
    shared = {"methods.base", "methods.metrics"}
    made_of = {"methods.adapo": {"methods.adpo"}}
    for name in MODULES:
        if name.startswith("methods.") and name not in shared:
            others = {target for target, _ in imports(name) if target.startswith("methods")}
            parts = made_of.get(name, set())
            assert parts <= others <= shared | parts, f"{name} imports {sorted(others - shared - parts)}"


def test_one_name_one_thing() -> None:
    """No two public classes have the same name."""
    homes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_the_package_does_not_know_what_stands_on_it() -> None:
    """``environments/`` and ``reproduce/`` import the library, never the other way round."""
    known = [path.name for path in SOURCE.parents[1].glob("environments/*/selfverify_*")]
    assert known
    words = rf"^\s*(from|import) reproduce\b|\b({'|'.join(known)})\b"
    assert [str(p) for p in SOURCE.rglob("*.py") if re.search(words, p.read_text("utf-8"), re.M)] == []
