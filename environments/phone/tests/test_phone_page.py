"""docs/phone.md runs as written, and the table of templates lists those that there are."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from selfverify_phone.template_table import table

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "phone.md"


def test_all_templates_are_listed() -> None:
    written = (DOCS / "reference" / "phone-templates.md").read_text(encoding="utf-8")
    listed = written.split("explains the columns.*\n\n")[1]
    assert listed == table(), "run python -m selfverify_phone.template_table"


def test_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    program = tmp_path / "page.py"
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program.write_text(block, encoding="utf-8")
    runpy.run_path(str(program))
    assert f"```\n{capsys.readouterr().out}```" in page
