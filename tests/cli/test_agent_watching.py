"""`selfverify agent run`: what the terminal shows of a session, and that nothing in it is obeyed."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from selfverify.cli.main import app


def test_a_session_is_shown_and_its_page_written(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ["agent", "run", "--template", "contacts-ask-phone", "--seed", "3", "--hostile", "--expert"]
    result = CliRunner().invoke(app, [*asked, "--output", str(page)])
    assert result.exit_code == 0, result.output
    for words in ("asked: ", "round 1", "launch(app='contacts')", "submit(", "vote 1: success", "done"):
        assert words in result.output
    assert "reward: 0.95" in result.output and page.is_file()
    assert all(c.isprintable() or c == "\n" for c in result.output)


def test_faults_are_said_in_a_line() -> None:
    for arguments, why in (
        (["--template", "clock-ad", "--expert"], "did you mean clock-add"),
        (["Set an alarm."], "say who acts"),
        (["--template", "clock-add", "--model", "/nowhere"], "/nowhere"),
    ):
        result = CliRunner().invoke(app, ["agent", "run", *arguments])
        assert result.exit_code != 0
        assert why in result.output + str(result.exception)
