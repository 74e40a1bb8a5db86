"""Judges held against the truth, by hand: every figure of a few sessions, whatever a judge reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from reproduce.judges import READS, compare_judges, markdown
from selfverify.agents.episode import Finished
from selfverify.agents.evidence import Exhibit, Vote
from selfverify.agents.goals import Goal, Truth
from selfverify.agents.judges.case import Ballot, Case, Judgement, JudgePanel, Pending
from selfverify.core.episode import Call, StepResult

GOAL = Goal.read({"needs": [{"type": "has", "kind": "lamp", "key": "oven", "values": {"on": True}}]})


def session(name: str, done: bool, rounds: int = 3, chosen: Sequence[int] = (1,)) -> Finished:
    history = [Exhibit(Call("look") if n else None, StepResult(n, f"screen {n}")) for n in range(rounds + 1)]
    evidence = [history[n] for n in chosen]
    return Finished(name, "Switch it on.", GOAL, Truth(done, (done,)), "Done.", evidence, history)


class Told(JudgePanel):
    """Judges as it was told to, session by session, and keeps what it was shown."""

    def __init__(self, verdicts: Sequence[bool | None], tokens: int | None = None) -> None:
        self.verdicts, self.tokens = verdicts, tokens
        self.shown: list[list[int]] = []

    def ask(self, case: Case) -> Pending:
        verdict = self.verdicts[len(self.shown) % len(self.verdicts)]
        self.shown.append([exhibit.seen.round for exhibit in case.submission.evidence])
        spent = {} if self.tokens is None else {"prompt_tokens": self.tokens, "completion_tokens": 1}
        vote = None if verdict is None else Vote(True, verdict)
        ballots = [Ballot(0, vote, "" if vote else "outage", spent)]
        return lambda: Judgement(True if vote else None, verdict, ballots, "" if vote else "no votes")


def test_figures_by_hand() -> None:
    # Two of three that are done are found to be, and one of three that are not; one has no verdict.
    done = [True, True, True, False, False, False, False]
    said = [True, True, False, True, False, False, None]
    sessions = [session(f"p{n}", one) for n, one in enumerate(done)]
    rows = compare_judges(sessions, {"told": Told(said, 10), "sure": Told([False])})
    assert [(row["judge"], row["reads"]) for row in rows] == [(j, r) for j in ("told", "sure") for r in READS]
    for row in rows[: len(READS)]:
        assert row["accuracy"] == pytest.approx(4 / 6)
        assert row["precision"] == row["recall"] == pytest.approx(2 / 3)
        assert row["false_positives"] == pytest.approx(1 / 3)
        assert (row["sessions"], row["undecided"], row["tokens"]) == (7, 1, 11.0)
        low, high = row["intervals"]["accuracy"]
        assert 0 <= low < 4 / 6 < high <= 1
    sure = rows[-1]
    assert sure["precision"] is None and sure["intervals"]["precision"] is None
    assert (sure["recall"], sure["false_positives"], sure["tokens"]) == (0.0, 0.0, None)


def test_each_judge_reads_everything_in_turn() -> None:
    judge = Told([True])
    rows = compare_judges([session("p", True, rounds=3, chosen=(1, 2))], {"told": judge})
    assert judge.shown == [[], [3], [0, 1, 2, 3], [1, 2], [1, 2, 3]]
    assert [row["exhibits"] for row in rows] == [0.0, 1.0, 4.0, 2.0, 3.0]
    characters = [row["characters"] for row in rows]
    assert characters[0] < characters[1] < characters[3] < characters[4] < characters[2]


def test_sessions_of_one_problem_are_drawn_together() -> None:
    """Samples of one problem say little more than one of them: the interval is wide."""
    apart = [session(f"p{n}", n % 2 == 0) for n in range(40)]
    together = [session(f"p{n % 2}", n % 2 == 0) for n in range(40)]
    widths = []
    for sessions in (apart, together):
        [row, *_] = compare_judges(sessions, {"yes": Told([True])})
        assert row["accuracy"] == 0.5
        low, high = row["intervals"]["accuracy"]
        widths.append(high - low)
    assert widths[0] < 0.4 and widths[1] > 0.8


def test_the_table() -> None:
    rows = compare_judges(
        [session("p1", True), session("p2", False)], {"yes": Told([True]), "no": Told([False], 7)}
    )
    lines = markdown(rows).splitlines()
    assert len(lines) == 2 + 2 * len(READS)
    assert lines[2].startswith("| yes | message | 50.0 | 50.0 | 100.0 | 100.0 | 0 | 0.0 |")
    assert lines[-1].startswith("| no | chosen and last | 50.0 | – | 0.0 | 0.0 | 0 | 2.0 |")
    assert lines[2].endswith("| – |") and lines[-1].endswith("| 8 |")
    assert "| 50.0 [0.0, 100.0] |" in markdown(rows, intervals=True)
