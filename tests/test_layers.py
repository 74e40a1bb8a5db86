"""Arrows point down only: which part of the library may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "selfverify"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("ranks",),
    ("events",),
    ("workers", "data"),
    ("objectives", "selection", "rollouts.transitions"),
    ("rollouts.types", "rollouts.tags", "rollouts.requests"),
    ("policy", "remote"),
    ("tasks",),
    ("rollouts.single_turn",),
    ("rollouts.two_turn", "selection.second_turns"),
    ("methods", "selection.verifiers", "selection.server_judge"),
    ("learner", "evaluation", "solve"),
    ("serving",),
    ("recipe", "recipe_errors", "recipe_yaml"),
    ("bootstrap",),
    ("run", "data_check"),
    ("data_filter",),
    ("study", "quickstart", "planner", "matrix", "cli_runs", "cli_data"),
    ("cli", "cli_plan", "cli_solve", "cli_select", "cli_serve", "integrations"),
    ("__main__",),
)
"""From the bottom up. A part imports itself and parts of lower rows, never its row's other parts."""

ONE_PART = {
    "selection.server_judge": "selection.verifiers",
    "recipe_errors": "recipe",
    "recipe_yaml": "recipe",
    "cli_plan": "cli",
    "cli_solve": "cli",
    "cli_select": "cli",
    "cli_serve": "cli",
}
"""Files that stand beside a module instead of in a folder, and belong to it."""

ALONE = ("objectives", "selection.rules", "policy.config", "learner.config", "evaluation.config")
"""Import nothing of ours: mathematics to be used without us, and settings that load without torch."""

KNOWN = {("policy.tiny", "tasks")}
"""The one arrow that points up: the tiny tokenizer is trained on the built-in tasks' prompts."""


def modules() -> dict[str, Path]:
    """All our modules by dotted name without the package's own; ``x/__init__.py`` is ``x``."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:  # the package's own __init__ hands out names from everywhere, when they are used
            found[name] = path
    return found


MODULES = modules()


def imports(name: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Our modules that a module imports anywhere, even inside a function, and the names it takes."""
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
            if target == "selfverify":
                yield from ((n, frozenset[str]()) for n in names if n in MODULES)
            elif target.startswith("selfverify."):
                inner = target.removeprefix("selfverify.")
                yield inner, names
                # `from selfverify.evaluation import figures` imports a module, not a name.
                yield from ((f"{inner}.{n}", frozenset[str]()) for n in names if f"{inner}.{n}" in MODULES)


def part_of(name: str) -> tuple[int, str] | None:
    """Row and part of a module; the most specific entry of `LAYERS` counts."""
    entries = [(row, part) for row, parts in enumerate(LAYERS) for part in parts]
    fits = [(row, part) for row, part in entries if name == part or name.startswith(part + ".")]
    if not fits:
        return None
    row, part = max(fits, key=lambda fit: len(fit[1]))
    return row, ONE_PART.get(part, part)


def test_every_module_has_a_layer() -> None:
    """A new folder must be put somewhere; ``rollouts`` itself is only a folder."""
    assert [name for name in MODULES if part_of(name) is None] == ["rollouts"]


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"rollouts"}))
def test_arrows_point_down(name: str) -> None:
    """Everything a module imports is its own part or lies below it."""
    own = part_of(name)
    assert own is not None
    wrong = []
    for target, _ in imports(name):
        other = part_of(target)
        if other is None or (other[0] >= own[0] and other[1] != own[1] and (name, other[1]) not in KNOWN):
            wrong.append(target)
    assert not wrong, f"{name} must not import {', '.join(sorted(set(wrong)))}"


def test_known_exceptions_exist() -> None:
    """An exception that is no longer needed must not stay in the list."""
    for name, part in KNOWN:
        assert part in {target for target, _ in imports(name)}


@pytest.mark.parametrize("part", ALONE)
def test_stands_alone(part: str) -> None:
    """These can be taken without the rest of the library."""
    for name in MODULES:
        if name == part or name.startswith(part + "."):
            outside = [target for target, _ in imports(name) if not target.startswith(part)]
            assert not outside, f"{name} imports {outside}"


def test_types_import_nothing_but_errors() -> None:
    """Everything talks in these types, so they may know nobody."""
    assert {target for target, _ in imports("rollouts.types")} <= {"errors"}


def test_learner_knows_no_method() -> None:
    """Only the protocol is imported: a new method never edits the learner."""
    for name in MODULES:
        if name.split(".")[0] == "learner":
            for target, names in imports(name):
                if target.split(".")[0] == "methods":
                    assert (target, names) in {
                        ("methods", frozenset({"Method"})),
                        ("methods.base", frozenset({"Method"})),
                    }, f"{name} imports {sorted(names)} from {target}"


def test_methods_do_not_know_each_other() -> None:
    """A method shares `base` and `monitor` with the others, and nothing else, unless it is made of them."""
    shared = {"methods.base", "methods.monitor"}
    made_of = {
        "methods.adapo_adpo": {"methods.adapo", "methods.adpo"},
        "methods.turns_sft": {"methods.sft"},
    }
    for name in MODULES:
        if name.startswith("methods.") and name not in shared:
            others = {target for target, _ in imports(name) if target.startswith("methods")}
            parts = made_of.get(name, set())
            assert parts <= others <= shared | parts, f"{name} imports {sorted(others - shared - parts)}"
