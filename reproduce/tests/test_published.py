"""What papers report: the files' shapes, and that figures follow from others, but where files say so."""

from __future__ import annotations

from math import fsum
from typing import Any

import pytest

from reproduce.tables import beside, plain, published, published_rows
from selfverify.core.errors import ConfigError

TABLES = {
    "adpo": [*"2345679", "10", "11", "12", "13"],
    "adapo": [*"123"],
    "smartsnap": [*"123"],
    "vts_v": [*"123"],
}
COLUMN_OF = {"MathVista": (2, "11"), "ReasonSeg": (8, "12"), "AndroidControl": (2, "13")}
"""The column of Tables 11 to 13 that a benchmark of Tables 9 and 10 stands in."""
Figures = dict[tuple[str, ...], list[float | None]]


def rows(paper: str, number: str) -> Figures:
    """The figures of a table by the words of their row."""
    table = published(paper)["tables"][number]
    words = len(table["head"])
    return {tuple(row[:words]): row[words:] for row in table["rows"]}


def odd_means(
    figures: Figures, parts: slice, weights: list[float], whole: int, near: float = 0.15
) -> set[tuple[str, ...]]:
    """The rows whose whole is not near the weighted mean of its parts, which are rounded as it is."""
    found = set()
    for words, row in figures.items():
        if None not in (*row[parts], row[whole]):
            mean = fsum(w * (v or 0.0) for w, v in zip(weights, row[parts], strict=True)) / sum(weights)
            if abs(mean - (row[whole] or 0.0)) > near:
                found.add(words)
    return found


@pytest.mark.parametrize("paper", TABLES)
def test_every_table_is_there(paper: str) -> None:
    """Rows are as long as their headings, no two have the same words, and a figure is a number or unknown."""
    whole = published(paper)
    assert whole.keys() == {"about", "cited", "digits", "tables"} and [*whole["tables"]] == TABLES[paper]
    for number, table in whole["tables"].items():
        assert table.keys() == {"title", "head", "columns", "rows"}
        words = len(table["head"])
        assert {len(row) for row in table["rows"]} == {words + len(table["columns"])}
        assert len(rows(paper, number)) == len(table["rows"])
        for row in table["rows"]:
            assert all(type(word) is str for word in row[:words])
            assert all(v is None or (type(v) in (int, float) and abs(v) < 300) for v in row[words:]), row


def test_adpos_tables_agree() -> None:
    """Tables 2 to 7, 9 and 10 have rows of Tables 11 to 13. Those that differ are in ``about``."""
    whole = {number: rows("adpo", number) for number in TABLES["adpo"]}
    assert [len(whole[n]) for n in ("2", "3", "4", "5")] == [16, 16, 15, 27]
    assert [len(whole[n]) for n in ("6", "7", "9", "10", "11", "12", "13")] == [5, 3, 6, 6, 39, 39, 39]
    differ = []
    for short, full in (("2", "11"), ("3", "12"), ("4", "13")):
        shared = whole[short].keys() & whole[full].keys()
        assert len(shared) == 12
        differ += [(short, words) for words in shared if whole[short][words] != whole[full][words]]
    ours = ("ADPO", "ADPO", "8")
    assert differ == [("3", ours)] and whole["3"][ours][:8] == whole["12"][ours][:8]
    assert (whole["3"][ours][8], whole["12"][ours][8]) == (73.2, 73.5)
    full = {
        words: [whole["11"][words][2], whole["12"][words][7], whole["13"][words][2]] for words in whole["5"]
    }
    [odd] = [words for words in full if whole["5"][words] != full[words]]
    assert odd == ("GRPO", "Base", "12") and (whole["5"][odd][0], full[odd][0]) == (62.5, 62.6)
    assert whole["6"]["γ = 0.1", "ADPO", "8"] == whole["12"][ours]
    judged = [("GRPO", "majority vote", "8"), ("GRPO", "GRPO", "8"), ours]
    assert [row[0] for row in whole["7"].values()] == [whole["11"][words][2] for words in judged]
    for benchmark, (column, number) in COLUMN_OF.items():
        best = [whole[number]["ADPO", *more][column] for more in (("–", "1"), ("ADPO", "8"))]
        assert whole["9"]["Preference reward", benchmark][:2] == best
        assert whole["9"]["Preference reward", benchmark] == whole["10"]["Decoupled advantage", benchmark]


def test_adpos_averages() -> None:
    """MathVista's 460 + 540 questions, MMMU's disciplines, ReasonSeg's queries (5.9 % of them are short)."""
    disciplines = [120.0, 150.0, 150.0, 120.0, 150.0, 210.0]
    for number, odd in (("2", set()), ("11", {("GRPO", "GRPO", "4")})):
        assert odd_means(rows("adpo", number), slice(0, 2), [460, 540], 2) == set()
        assert odd_means(rows("adpo", number), slice(3, 9), disciplines, 9) == odd
    single, ours = ("ADPO", "–", "1"), ("ADPO", "ADPO", "8")
    expected: dict[str, Any] = {
        "3": ({single, ("LISA-7B", "–", "1")}, set()),
        "6": (set(), {("γ = 0.1", *ours[1:])}),
        "12": ({single}, {ours}),
    }
    for number, (giou, acc) in expected.items():
        assert odd_means(rows("adpo", number), slice(0, 6, 3), [0.059, 0.941], 6) == giou
        assert odd_means(rows("adpo", number), slice(2, 8, 3), [0.059, 0.941], 8) == acc


def test_adapos_differences_and_averages() -> None:
    """Every Δ is that of its two accuracies; Table 3's whole method is Table 1's mean; Table 2 repeats it."""
    first, second, third = (rows("adapo", number) for number in "123")
    for row in [*first.values(), *third.values()]:
        for before, after, delta in zip(row[::3], row[1::3], row[2::3], strict=True):
            assert None not in (before, after, delta)
            assert (after or 0) - (before or 0) == pytest.approx(delta, abs=0.051)
    mean = [fsum(v or 0 for v in first["AdaPO",][k::3]) / 8 for k in range(3)]
    assert third["AdaPO",] == pytest.approx(mean, abs=0.05)
    for mine, theirs, turn, odd in (("AdaPO", "AdaPO-7B", 1, [5]), ("Base", "Qwen2.5-VL-7B", 0, [1])):
        pairs = zip(first[mine,][turn::3], second[theirs,], strict=True)
        assert [k for k, (a, b) in enumerate(pairs) if a != b] == odd


def test_vts_vs_averages_and_smartsnaps_sums() -> None:
    """BLINK's mean is that of its tasks, for rows that have them all; AndroidLab has 726 and 138 tasks."""
    assert odd_means(rows("vts_v", "1"), slice(0, 13), [1.0] * 13, 13, near=0.006) == set()
    assert [fsum(v or 0 for v in row) for row in rows("smartsnap", "1").values()] == [726, 138]


def test_beside() -> None:
    """Ours stand above the paper's in tables that have one of their figures, in percent as it prints them."""
    ours = {("mine", "vote", "8"): {"mathvista/all/accuracy": {"mean": 0.5}, "other": {"mean": 1.0}}}
    title, text = beside("adpo", ours, numbers=["7"])
    assert title == "## Table 7: one model or two"
    assert text.splitlines()[0] == "| method | chosen by | N | MathVista accuracy (%) | latency (s) |"
    assert text.splitlines()[2:4] == [
        "| mine | vote | 8 | 50.0 | – |",
        "| GRPO [arXiv:2601.01483] | majority vote | 8 | 62.9 | 2.1 |",
    ]
    assert [one for one in beside("adpo", ours, cited=False) if one[0] == "#"] == [
        f"## Table {n}: {published('adpo')['tables'][n]['title']}" for n in ("2", "5", "7", "11")
    ]
    with pytest.raises(ConfigError, match=r"no published Table 8 here; tables: 2, 3, 4, 5, 6, 7, 9, 10"):
        beside("adpo", {}, numbers=["2", "8"])
    assert published_rows("smartsnap", "1")["training [arXiv:2512.22322]",]["Zoom"]["mean"] == 0
    assert "| 53.8 | −1.3 |" in beside("adapo", {}, numbers=["3"])[1]
    assert plain("GUI-Odyssey") == plain("gui_odyssey") == "guiodyssey"
