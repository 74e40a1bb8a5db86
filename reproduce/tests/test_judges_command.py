"""`reproduce.judges`: its tables, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from reproduce.judges import app
from selfverify_phone.short_form import SMALL_JUDGE


def test_judges_are_compared(tmp_path: Path) -> None:
    output = tmp_path / "judges.json"
    command = ["--sessions", "40", "--judge", "rules", "--judge", "truth=state"]
    found = CliRunner().invoke(app, [*command, "--output", str(output)])
    assert found.exit_code == 0, found.output
    assert "experts that make mistakes" in found.stdout and "chosen and last" in found.stdout
    [held] = json.loads(output.read_text())
    often = 100 * max(held["done"], 40 - held["done"]) / 40
    assert f"Who always says the same is right in {often:.1f} %." in found.stdout
    rows = {(row["judge"], row["reads"]): row for row in held["rows"]}
    assert {judge for judge, _ in rows} == {"rules", "truth"} and held["not_judged"] == 0
    # Rules that read nothing find nothing proven; those that read all miss what was never shown.
    assert rows["rules", "message"]["recall"] == 0.0
    assert rows["rules", "all"]["accuracy"] > 0.9 and rows["rules", "all"]["false_positives"] == 0.0
    assert all(rows["truth", read]["accuracy"] == 1.0 for _, read in rows)
    again = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(again.stdout) == [held]


def test_the_shipped_judge_stands_in_the_same_table(tmp_path: Path) -> None:
    output = tmp_path / "judges.json"
    command = ["--sessions", "64", "--judge", "rules", "--judge", f"small={SMALL_JUDGE}"]
    found = CliRunner().invoke(app, [*command, "--output", str(output)])
    assert found.exit_code == 0, found.output
    table = [line.split("|")[1].strip() for line in found.stdout.splitlines() if line.startswith("| ")]
    assert table[0] == "judge" and table[2:] == ["rules"] * 5 + ["small"] * 5
    [held] = json.loads(output.read_text())
    rows = {(row["judge"], row["reads"]): row for row in held["rows"]}
    small = {read: row for (judge, read), row in rows.items() if judge == "small"}
    # It reads, and errs: unlike the rules, which cost nothing.
    assert small["all"]["accuracy"] > max(held["done"], 64 - held["done"]) / 64 + 0.1
    assert small["all"]["false_positives"] > 0 and small["all"]["undecided"] < 10
    assert small["all"]["tokens"] > small["chosen"]["tokens"] > small["message"]["tokens"] > 0
    assert rows["rules", "all"]["undecided"] == 0 and rows["rules", "all"]["tokens"] is None


def test_what_is_refused(tmp_path: Path) -> None:
    for arguments, message in (
        (["--judge", str(tmp_path / "nobody")], "nobody"),
        (["--server", "http://127.0.0.1:9"], "--server and --server-model go together"),
        (["--sessions", "0"], "--sessions"),
        (["--judge", ""], "names no judge"),
        (["--judge", "mine="], "names no judge"),
        (["--judge", "a=rules", "--judge", "a=state"], "two judges are called 'a'"),
        (["--judge", "m=rules", "--server", "http://127.0.0.1:9", "--server-model", "m"], "two judges"),
        ([str(tmp_path / "nowhere")], "there is no folder and no file"),
    ):
        found = CliRunner().invoke(app, ["--sessions", "2", *arguments])
        assert found.exit_code != 0 and message in found.output + str(found.exception), found.output
