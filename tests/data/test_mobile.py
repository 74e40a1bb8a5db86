"""Steps on a phone in our own form and GUI-Odyssey's, and their actions in one form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from data_files import (
    ODYSSEY_STEPS,
    base64_png,
    png,
    write_jsonl,
    write_odyssey,
)
from selfverify.core.errors import ConfigError, DataError
from selfverify.data.gui_actions import check_action
from selfverify.data.rows import open_rows
from tables import read_tables, yaml_cases

TABLES = read_tables(Path(__file__).with_suffix(".yaml"))


def test_gui_odyssey(tmp_path: Path) -> None:
    folder = write_odyssey(tmp_path / "odyssey")
    write_odyssey(folder, "0002", ODYSSEY_STEPS[:2])
    rows = open_rows(folder)
    actions = TABLES["odyssey_actions"]
    assert rows.format == "gui-odyssey" and len(rows) == 11 and not rows.bad
    assert [row["action"] for row in rows][:9] == actions and rows[4]["history"] == actions[:4]
    assert rows[0]["ui_boxes"] == [[432, 480, 648, 720]] and "ui_boxes" not in rows[1]
    assert (
        rows[2]["id"] == "odyssey/0001/2" and rows[2]["goal"] == "Eat" and rows[2]["category"] == "Shopping"
    )
    assert rows[2]["step_instruction"] == "step 2" and rows[2]["images"][0].data() == png(54, 120, shade=2)
    assert len(open_rows(folder / "annotations" / "0002.json")) == 2


def test_gui_odysseys_splits(tmp_path: Path) -> None:
    folder = write_odyssey(tmp_path)
    write_odyssey(folder, "0002", ODYSSEY_STEPS[:2])
    (folder / "splits").mkdir()
    for name, test in (("random_split", ["0002.json"]), ("app_split", ["0001"])):
        text = json.dumps({"train": [], "test": test})
        (folder / "splits" / f"{name}.json").write_text(text, encoding="utf-8-sig")
    assert {row["episode"] for row in open_rows(folder, split="random_split/test")} == {"0002"}
    assert {row["episode"] for row in open_rows(folder, split="app_split/test")} == {"0001"}
    with pytest.raises(ConfigError, match="could be app_split/test, random_split/test"):
        open_rows(folder, split="test")


def test_broken_odyssey_steps_are_named(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"action": "CLICK", "info": [[500, 250]], "screenshot": ""},
        {"action": "CLICK", "info": [[500, 250]]},
        {"action": "CLICK", "info": [[1500, 250]]},
        {"action": "COMPLETE"},
    ]
    write_odyssey(tmp_path, "0001", steps)
    for k, info in enumerate(("KEY_POWER", [[1, 2], [3, 4]], [["a", 2]], [[1]])):
        write_odyssey(tmp_path, f"1{k}", [{"action": "CLICK", "info": info}])
    rows = open_rows(tmp_path)
    assert [row["id"].split("/", 1)[1] for row in rows] == ["0001/1"]
    reasons = [bad.reason for bad in rows.bad]
    assert len(reasons) == 7 and reasons[0] == "step 0 of episode 0001: its screenshot is missing"
    assert (
        reasons[1] == reasons[2]
        and "step 2 of episode 0001: its coordinate [1620, 600] is not on the screen" in reasons[1]
    )
    assert "KEY_POWER" in reasons[3] and "2 points, not 1" in reasons[4] and "not a number" in reasons[5]


def test_steps_in_our_own_form(tmp_path: Path) -> None:
    row = {"goal": "g", "image": base64_png(108, 240), "action": {"action": "click", "coordinate": [5, 6]}}
    lines = [
        {**row, "history": [{"action": "wait"}], "screen": [1080, 2400], "step_instruction": "tap"},
        row,
        {**row, "action": {"action": "click", "coordinate": [500, 6]}},
        {**row, "action": {"action": "click"}},
        {**row, "history": [{"action": "fly"}]},
        {**row, "history": ["scrolled down", {"action": "click", "coordinate": [2000, 1]}]},
        *({**row, "ui_boxes": boxes} for boxes in ([[1, 2, 3, 4]], [[1, 2]], [[9, 7, 5, 6]])),
        {**row, "screen": [1, 2, 3]},
    ]
    rows = open_rows(write_jsonl(tmp_path / "a.jsonl", lines))
    assert rows[3]["ui_boxes"] == [[1, 2, 3, 4]]
    assert rows[0]["screen"] == (1080, 2400) and rows[0]["history"] == [{"action": "wait"}]
    assert rows[1]["screen"] == (108, 240) and rows[1]["history"] == []
    assert rows[2]["history"][0] == "scrolled down"
    assert [bad.line for bad in rows.bad] == [3, 4, 5, 8, 9, 10]
    assert "misses ['coordinate']" in rows.bad[1].reason


@yaml_cases
def test_actions_in_one_form(action: Any, found: Any) -> None:
    if found == "refused":
        with pytest.raises(DataError):
            check_action(action, (10, 10))
        return
    full = {key: value for key, value in action.items() if value} if found is None else found
    assert check_action(action, (10, 10)) == full


def test_steps_in_parquet(tmp_path: Path) -> None:
    """All actions of a column have the fields of all; in a history, too."""
    actions: list[Any] = [{"action": "click", "coordinate": [5, 12]}, {"action": "type", "text": "a"}]
    shared = {"goal": "g", "image": png(54, 120)}
    rows = [{**shared, "action": action, "history": actions} for action in actions]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert pa.Table.from_pylist(rows).to_pylist()[0]["action"]["text"] is None
    found = open_rows(tmp_path / "a.parquet")
    assert [row["action"] for row in found] == actions and found[1]["history"] == actions
    texts = [
        {**shared, "action": json.dumps(a), "history": [json.dumps(actions[0]), "typed"]} for a in actions
    ]
    parquet.write_table(pa.Table.from_pylist(texts), tmp_path / "b.parquet")
    found = open_rows(tmp_path / "b.parquet")
    assert [row["action"] for row in found] == actions and found[0]["history"] == [actions[0], "typed"]


def test_what_gui_odysseys_introduction_lists(tmp_path: Path) -> None:
    rows = open_rows(write_odyssey(tmp_path, steps=TABLES["listed_steps"]))
    home = {"action": "system_button", "button": "Home"}
    done = [home, {**home, "button": "Back"}, {"action": "type", "text": "KEY_HOME"}, home]
    assert [row["action"] for row in rows] == [*done, {"action": "terminate", "status": "failure"}]
    assert [row["step"] for row in rows] == [0, 2, 4, 5, 6] and rows[4]["history"] == done
    assert [bad.reason.split(":")[0][:6] for bad in rows.bad] == ["step 1", "step 3", "step 7", "step 7"]
