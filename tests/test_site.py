"""The pages under docs/ as a site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_has_no_broken_link(tmp_path: Path) -> None:
    """In its strict mode `mkdocs build` fails at a link, an anchor or a page that leads nowhere."""
    pytest.importorskip("mkdocs", reason="`make docs` installs mkdocs-material")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / "site" / f"{page.stem}.html").is_file(), f"{page.name} is not in mkdocs.yml"
