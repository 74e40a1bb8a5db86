"""The store of samples: what is written is read, and each problem asked once, whatever a kill has left."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samples import sample, write_samples
from selfverify.core import ranks
from selfverify.core.errors import DataError
from selfverify.evaluation.samples import ResumableBatches, read_samples

SETTINGS = {"model": "tiny", "sampling": {"temperature": 1.0, "stop": ["</score>"]}}


def problem(name, **changes):
    return [sample(name, k, True, 0.5, **changes) for k in range(2)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(),
    answer=st.one_of(st.none(), st.text(), st.lists(st.floats(allow_nan=False, allow_infinity=False))),
    score=st.one_of(st.none(), st.floats(0, 1)),
)
def test_what_is_written_is_read(tmp_path, text, answer, score):
    path = tmp_path / "s.jsonl"
    path.unlink(missing_ok=True)
    written = problem("ü\n\u2028", text=text, answer=answer, scores={"soft": score})
    write_samples(path, SETTINGS, written)
    assert read_samples(path) == (SETTINGS, written)


def test_a_line_is_a_problem(tmp_path):
    write_samples(tmp_path / "s.jsonl", SETTINGS, [*problem("a"), *problem("b")])
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert lines[0] == {"rows": "StoredProblem", "format": 1, "settings": SETTINGS}
    assert [line["index"] for line in lines[1:]] == [0, 1]
    assert [(s["problem"], s["sample"]) for s in lines[2]["samples"]] == [("b", 0), ("b", 1)]


def test_samples_are_read_in_the_order_of_the_problems(tmp_path):
    """A server's answers are written as they end."""
    path, written = tmp_path / "s.jsonl", [*problem("a"), *problem("b"), *problem("c")]
    write_samples(path, SETTINGS, written)
    header, *lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([header, lines[2], lines[0], lines[1]]))
    assert read_samples(path)[1] == written


@pytest.mark.parametrize(
    "change",
    [{"correct": "yes"}, {"rewards": {"answer": "1"}}, {"scores": [1]}, {"logprob": float("nan")}, {"a": 1}],
)
def test_a_line_with_a_wrong_field_is_named(tmp_path, change):
    path = tmp_path / "s.jsonl"
    write_samples(path, SETTINGS, [*problem("a"), *problem("b")])
    lines = path.read_text().splitlines()
    bad = [asdict(s) | change for s in problem("a")]
    lines[1] = json.dumps({"index": 0, "digest": "", "samples": bad})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"s\.jsonl, line 2: samples\.0\."):
        read_samples(path)


# --- batches that can be gone on with -----------------------------------------------------------------------


@dataclass(frozen=True)
class Square:
    """A row."""

    index: int
    square: int


def swept(path: Path | None) -> tuple[ResumableBatches[Square], list[list[int]]]:
    """A finished sweep of seven by threes, and the shares that it had to work on."""
    done: list[tuple[int, int]] = []
    sweep = ResumableBatches(path, Square, {"total": 7}, 7, 3, lambda *p: done.append(p))
    worked = []
    for share in sweep.shares():
        worked.append([*share])
        sweep.store(Square(index, index**2) for index in share)
    assert done == [(3, 7), (6, 7), (7, 7)]
    assert {i: row.square for i, row in sweep.rows.items()} == {i: i * i for i in range(7)}
    return sweep, worked


def test_every_problem_is_asked_once(tmp_path: Path) -> None:
    assert swept(None)[1] == [[0, 1, 2], [3, 4, 5], [6]]
    assert swept(tmp_path / "s.jsonl")[1] == [[0, 1, 2], [3, 4, 5], [6]]
    assert swept(tmp_path / "s.jsonl")[1] == []


def test_a_kill_at_any_byte_changes_nothing(tmp_path: Path) -> None:
    """A batch that is half there is made again as a whole, and no line of it is written twice."""
    path, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    swept(path)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        lines = max(whole[:length].count(b"\n") - 1, 0)
        first = 7 if lines == 7 else lines // 3 * 3
        assert [i for share in swept(cut)[1] for i in share] == [*range(first, 7)]
        assert cut.read_bytes() == whole, length


@pytest.mark.parametrize("which", [0, 1])
def test_processes_share_a_batch(which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes each has half of a batch, both know all rows, and the first one writes."""
    other = [Square(index, index**2) for index in range(7)]

    def gather(own: list[Square]) -> list[list[Square]]:
        first = own[0].index // 4 * 4 if own else 4
        theirs = other[first + 2 : first + 4] if which == 0 else other[first : first + 2]
        return [own, theirs] if which == 0 else [theirs, own]

    def on_first(run: Callable[[], dict[int, Square]]) -> dict[int, Square]:
        return run() if which == 0 else {}

    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(ranks, "index", lambda: which)
    monkeypatch.setattr(ranks, "gather", gather)
    monkeypatch.setattr(ranks, "on_first", on_first)
    path = tmp_path / "s.jsonl"
    sweep = ResumableBatches(path, Square, {}, 7, 2)
    shares = []
    for share in sweep.shares():
        shares.append([*share])
        sweep.store(other[index] for index in share)
    assert shares == ([[0, 1], [4, 5]] if which == 0 else [[2, 3], [6]])
    assert [*sweep.rows.values()] == other
    assert path.exists() == (which == 0)
