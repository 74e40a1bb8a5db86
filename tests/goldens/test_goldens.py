"""The comparison of two trees: the first value that differs is named, and the tables of renames are used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from goldens.compare import first_difference
from goldens.drive import golden_modules
from goldens.tree import HERE, Names, Tree, read_yaml

STORED = {"lr": 0.1, "turns": [{"text": "a"}, {"text": "b"}]}


def store(folder: Path, values: dict[str, Any] | None = None, weight: float = 1.5) -> Path:
    """What a golden stores: two rows and a tensor."""
    tree = Tree("before", folder, folder)
    tree.row("adpo metrics.jsonl step 0", loss=float("nan"), kl=-0.0)
    tree.row("adpo metrics.jsonl step 1", **(STORED if values is None else values))
    tree.tensor("adpo model.safetensors w", torch.tensor([[0.5, weight]]))
    tree.write()
    return folder


def compared(tmp_path: Path, allowed: Any = None, **after: Any) -> Any:
    """The first difference between a store and another one."""
    one, other = store(tmp_path / "one"), store(tmp_path / "other", **after)
    return first_difference("g1", one, other, allowed or {})


def test_a_flipped_value_is_named(tmp_path: Path) -> None:
    """In the file itself: golden, method, step, key and both values."""
    one, other = store(tmp_path / "one"), store(tmp_path / "other")
    assert first_difference("g1", one, other, {}) is None
    file = other / "rows.jsonl"
    file.write_text(file.read_text().replace('"text": "b"', '"text": "c"'))
    found = first_difference("g1", one, other, {})
    assert found == ("g1", "adpo metrics.jsonl step 1", "turns[1].text", '"b"', '"c"')
    assert str(found).splitlines()[0] == "g1 differs: adpo metrics.jsonl step 1, turns[1].text"


def test_the_last_bit_of_a_weight_is_seen(tmp_path: Path) -> None:
    weight = float(torch.nextafter(torch.tensor(1.5), torch.tensor(2.0)))
    found = compared(tmp_path, weight=weight)
    assert found.row == "adpo model.safetensors w" and found.key.startswith("value [0, 1]")
    assert (found.before, found.after) == ("1.5", "1.5000001192092896")


@pytest.mark.parametrize(
    ("values", "way", "key"),
    [
        ({"lr": 0.1}, "deleted", "turns*"),
        ({**STORED, "new": 1}, "added", "new"),
        ({**STORED, "lr": 0.2}, "changed", "lr"),
    ],
)
def test_only_what_is_listed_may_differ(tmp_path: Path, values: dict[str, Any], way: str, key: str) -> None:
    found = compared(tmp_path, values=values)
    assert found is not None and ("(nothing)" in found) == (way != "changed")
    listed = {"golden": "g1", "row": "adpo*", "key": key}
    assert compared(tmp_path, {way: [listed]}, values=values) is None
    assert compared(tmp_path, {way: [listed | {"golden": "g2"}]}, values=values) == found
    others = {other: [listed] for other in ("deleted", "added", "changed") if other != way}
    assert compared(tmp_path, others, values=values) == found


def test_names_of_the_working_tree(tmp_path: Path) -> None:
    """Keys, values, recipes, commands, modules and names; what is not in a table stays."""
    (tmp_path / "renames.yaml").write_text(
        "keys: {learner.channels: optim.channels, looking: visual}\n"
        "values: {learner.channels: {apart: separate}}\n"
        "commands: {looking collect: visual collect}\n"
    )
    (tmp_path / "names.yaml").write_text(
        "modules: {selfverify.looking: selfverify.visual}\n"
        "names: {'selfverify.core.episode:Reply': 'selfverify.core.episode:Observation'}\n"
        "attributes: {Reply: {aside: probe}}\n"
    )
    names = Names.read("after", tmp_path)
    tree = Tree("after", tmp_path, tmp_path / "store")
    tree.names = names
    words = ["looking-digits", "learner.channels=apart", "looking.x=1", "policy.lora={rank: 4}", "--look"]
    assert tree.words("looking collect", *words) == [
        "-m", "selfverify", "visual", "collect", "looking-digits", "optim.channels=separate", "visual.x=1",
        "policy.lora.rank=4", "--look",
    ]  # fmt: skip
    assert tree.options("learner", {"steps": 3}) == {"steps": 3}
    assert names.place("selfverify.looking.traces:LookTrace") == ("selfverify.visual.traces", "LookTrace")
    assert names.place("selfverify.core.episode:Reply.x") == ("selfverify.core.episode", "Observation.x")
    assert names.old_key("visual.x") == "looking.x" and names.old_key("visual[0]") == "looking[0]"
    assert names.old_class("Observation") == "Reply"
    assert names.attribute("Reply", "aside") == "probe" and names.old_attribute("Reply", "probe") == "aside"
    assert Names.read("before", tmp_path) == Names()


def test_stored_names_are_the_old_ones(tmp_path: Path) -> None:
    """A field that the working tree calls otherwise is stored under its old name; paths are left out."""
    from selfverify.core.episode import Call

    tree = Tree("after", tmp_path, tmp_path / "store")
    tree.names = Names(attributes={"Call": {"act": "name"}})
    assert tree.plain(Call("tap", {"at": tmp_path / "x"})) == {"act": "tap", "arguments": {"at": "ROOT/x"}}
    tree.row("a", x=1)
    with pytest.raises(ValueError, match="two rows a"):
        tree.row("a", x=2)


def test_names_that_goldens_use_are_found(tmp_path: Path) -> None:
    """In the working tree, by the tables: what has moved without them would end a golden."""
    tree = Tree("after", tmp_path, tmp_path / "store")
    for path in HERE.glob("g*_*.py"):
        for name in re.findall(r'"(selfverify\.[\w.]+:[\w.]+)"', path.read_text("utf-8")):
            tree.get(name)


def test_what_is_in_the_repository() -> None:
    """Sixteen goldens, and tables that can be read."""
    assert list(golden_modules()) == [f"g{number}" for number in range(1, 17)]
    assert len(read_yaml(HERE / "settings.yaml")["before"]) == 40
    Names.read("after")
    read_yaml(HERE / "deleted.yaml")
