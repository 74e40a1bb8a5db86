"""What the papers' authors report, to stand beside our own figures: `published/*.json`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

PUBLISHED = Path(__file__).parent / "published"


class PublishedAgent(NamedTuple):
    """A row of SmartSnap's Tables 2 and 3.

    Args:
        type: ``PT`` (prompted), ``FT vanilla`` (fine-tuned on Android Instruct, which proves nothing), ``FT``
            (fine-tuned on trajectories with evidence) or ``RL``; *cited* where figures are AndroidLab's own.
        model: The model.
        figures: SR, Sub-SR, RRR and ROR in percent; None where the paper gives none.
        apps: Success rates in percent, by the paper's apps; empty where it gives none.
    """

    type: str
    model: str
    figures: tuple[float | None, float | None, float | None, float | None]
    apps: tuple[float, ...] = ()


class PublishedLooks(NamedTuple):
    """A row of VTS-V's Table 1 or 2.

    Args:
        model: The model, and how it answers.
        values: By the table's columns; None where the paper gives none.
        mean: Table 1's average.
    """

    model: str
    values: tuple[float | None, ...]
    mean: float | None = None


class _Published(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str
    cited: str


class SmartSnap(_Published):
    """Tables 1 to 3 of arXiv:2512.22322: ``training`` and ``validation`` are numbers of tasks by app."""

    apps: tuple[str, ...]
    training: tuple[int, ...]
    validation: tuple[int, ...]
    rows: tuple[PublishedAgent, ...]


class VTSV(_Published):
    """VTS-V's Tables 1 to 3.

    ``blink`` and ``general`` have the columns of Tables 1 and 2 by the benchmarks' own names; ``table_3``
    has, by model, figures with and without the verifier.
    """

    blink: dict[str, str]
    general: dict[str, str]
    table_1: tuple[PublishedLooks, ...]
    table_2: tuple[PublishedLooks, ...]
    table_3: dict[str, tuple[float, float]]


@cache
def smartsnap() -> SmartSnap:
    """Return what SmartSnap's authors report on AndroidLab."""
    return SmartSnap.model_validate_json((PUBLISHED / "smartsnap.json").read_text(encoding="utf-8"))


@cache
def vts_v() -> VTSV:
    """Return what VTS-V's authors report."""
    return VTSV.model_validate_json((PUBLISHED / "vts_v.json").read_text(encoding="utf-8"))
