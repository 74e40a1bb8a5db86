"""What the papers' authors report, to stand beside our own figures: `published/*.json`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def published(paper: str) -> dict[str, Any]:
    """Return the figures of a paper, as its file has them; ``about`` says what they are.

    ``smartsnap`` has ``rows`` with ``type``, ``model``, ``figures`` (SR, Sub-SR, RRR and ROR in percent, null
    where the paper gives none) and ``apps`` (success rates by the paper's apps), and numbers of tasks by app.
    ``vts_v`` has the columns of Tables 1 and 2 by the benchmarks' own names, their rows as ``model``,
    ``values`` and ``mean``, and Table 3.
    """
    file = Path(__file__).parent / "published" / f"{paper}.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
