"""g8: the resolved dump of every recipe that trains, and the defaults of tasks and methods, by old keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML

from goldens.tree import Tree, flat

FACTS = re.compile(r"^# (?!writes to |plan: )(.*)$", re.M)
AT_HAND = "policy.path=builtin:digits"
"""What stands in for a model that is not on this machine."""


def run(tree: Tree) -> None:
    """Print each recipe as a dry run does, with the comments above it."""
    for path in sorted(recipe_files(tree.root)):
        if not path.stem.startswith("study-"):
            tree.row(f"recipe {path.stem}", **dumped(tree, path))
    for kind in ("TASKS", "METHODS"):
        room = kind.lower().removesuffix("s")
        for name, made in tree.get(f"selfverify.experiments.registry:{kind}").items():
            config = tree.attr(made, "config_class")
            tree.row(f"{room} {name}", **defaults(tree, room, config))


def recipe_files(root: Path) -> list[Path]:
    """Return the recipes of a tree: the package's, and those of distributions and of `reproduce`."""
    places = ("recipes/*.yaml", "environments/*/**/recipes/*.yaml", "reproduce/recipes/*.yaml")
    return [path for place in places for path in root.glob(place)]


def dumped(tree: Tree, path: Path) -> dict[str, Any]:
    """Return a recipe's settings and what is said of it, with another model where its own is not at hand."""
    for more in ((), (AT_HAND,)):
        try:
            shown = tree.inline("train", str(path), "--dry-run", *more)
        except RuntimeError as error:
            refused = " ".join(str(error).split())
        else:
            return {
                "said": [with_old_model(tree, fact) for fact in FACTS.findall(shown)],
                **resolved(tree, YAML(typ="safe").load(shown)),
            }
    return {"refused": refused[-200:]}


def with_old_model(tree: Tree, fact: str) -> str:
    """Return what is said of a recipe, with the model's old name."""
    for old, new in tree.names.values.get("policy.path", {}).items():
        fact = fact.replace(new, old)
    return fact


def resolved(tree: Tree, settings: Any, above: str = "") -> dict[str, Any]:
    """Return settings by their old keys, with old values."""
    found = {}
    for key, value in flat(settings, above).items():
        old = tree.names.old_key(key)
        found["/" + old] = tree.names.old_value(old, value)
    return found


def defaults(tree: Tree, room: str, config: Any) -> dict[str, Any]:
    """Return the defaults of a class of options; None for those that have to be given."""
    try:
        return resolved(tree, config().model_dump(mode="json"), room)
    except ValidationError:
        fields = {name: None if f.is_required() else str(f.get_default(call_default_factory=True))
                  for name, f in config.model_fields.items()}  # fmt: skip
        return resolved(tree, fields, room)
