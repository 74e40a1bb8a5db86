"""`selfverify data filter`: verdicts, going on after a kill, and training on what is kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from commands import command
from data_files import base64_png, write_jsonl
from selfverify import Policy, make_method, make_task
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.jsonl_store import open_journal
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Group, Segment, Trajectory
from selfverify.data.preferences import FilterVerdict, read_verdicts, why_dropped
from selfverify.experiments.data_filter import Filter, summary
from selfverify.experiments.run import learn
from selfverify.rollouts.rollout import Rollout
from selfverify.tasks.base import Task
from selfverify.trainer.rollout_source import FilteredProblems
from tables import yaml_cases

SAMPLING = SamplingConfig(group_size=4, max_new_tokens=8)


@yaml_cases
def test_what_teaches_nothing(why: str, groups: list[list[str]]) -> None:
    assert [why_dropped(kinds) for kinds in groups] == [why] * len(groups)


class Scripted:
    """An answerer whose trajectories are known: problem k's come from the k-th list of (first, second)."""

    encoder = None

    def __init__(self, outcomes: Sequence[Sequence[tuple[int | None, int]]]) -> None:
        self.outcomes, self.asked = outcomes, 0

    def prepare(self, task: Any, config: Any) -> None:
        pass

    def weights(self) -> str:
        return "scripted"

    def whole(self, work: Any) -> Any:
        return work()

    def answer(self, asked: Any, sweep: Any, make_rows: Any) -> None:
        self.asked += len(asked.problems)
        groups = []
        for problem in asked.problems.values():
            place = int(problem.id.rpartition("/")[2])
            rows = []
            for first, second in self.outcomes[place]:
                rewards = {"correct": float(second == 1)}
                rewards |= {} if first is None else {"correct_1": float(first)}
                finish = "error" if second < 0 else "stop"
                rows.append(Trajectory([Segment("answer", [], finish=finish)], rewards=rewards))  # type: ignore[arg-type]
            groups.append(Group(problem, rows))
        sweep.store(make_rows([*asked.problems], Rollout([], groups)))


OUTCOMES = [
    [(1, 1), (1, 1)], [(0, 0), (0, 0)], [(1, 0), (1, 0)], [(0, 1), (1, 1)], [(None, 1), (None, 0)],
    [(None, -1), (None, -1)], [(None, -1), (None, 1)],
]  # fmt: skip


def test_the_file_and_the_summary(tmp_path: Path) -> None:
    answerer: Any = Scripted(OUTCOMES)
    task, method = make_task("digits-pick"), make_method("adpo")
    path = tmp_path / "deep" / "kept.jsonl"
    found = Filter(answerer, task, method, SAMPLING, batch=3).run(path, problems=7)
    assert [v.dropped for v in found] == ["all right", "all wrong", "", "", "", "unjudged", "all right"]
    assert [v.samples for v in found[2:5]] == [{"1->0": 2}, {"0->1": 1, "1->1": 1}, {"0": 1, "1": 1}]
    assert read_verdicts(path)[1] == found and answerer.asked == 7
    lines = summary(found)
    assert lines[0] == "kept 3 of 7 problems; dropped: 2 all right, 1 all wrong, 1 unjudged"
    assert lines[2] == "problems by right samples: 0: 2, 1: 2, 2: 2"
    # Called again nothing is sampled; under other settings it is refused.
    assert Filter(answerer, task, method, SAMPLING).run(path, problems=7) == found
    assert answerer.asked == 7
    longer = SAMPLING.model_copy(update={"max_new_tokens": 9})
    with pytest.raises(ConfigError, match="max_new_tokens was 8 and is now 9"):
        Filter(answerer, task, method, longer).run(path, problems=7)


@pytest.mark.parametrize("left", [0, "header", 700, -10])
def test_a_killed_filter_goes_on_with_the_same_result(policy: Policy, tmp_path: Path, left: Any) -> None:
    """Cut anywhere, in the middle of a line too, and before the end of the first one."""
    task, method = make_task("digits-sum"), make_method("adpo")
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    Filter(policy, task, method, SAMPLING, batch=3).run(whole, problems=6)
    written = whole.read_bytes()
    end = written.index(b"\n") if isinstance(left, str) else left
    cut.write_bytes(written[:end])
    if end > written.index(b"\n") or end < 0:
        with pytest.raises(ConfigError, match="of 6 verdicts"):
            read_verdicts(cut)
    Filter(policy, task, method, SAMPLING, batch=3).run(cut, problems=6)
    assert cut.read_bytes() == whole.read_bytes()


def test_going_on_with_other_data_or_another_rule_is_refused(policy: Policy, tmp_path: Path) -> None:
    """Verdicts by two rules, or on two files of as many rows, do not belong together."""
    files = [str(write_jsonl(tmp_path / name, rows(2))) for name in ("a.jsonl", "b.jsonl")]
    path, method = tmp_path / "k.jsonl", make_method("adpo")

    def filtered(file: str, **options: Any) -> None:
        Filter(policy, make_task("math", train=file, **options), method, SAMPLING).run(path)

    filtered(files[0])
    filtered(files[0], workers=2, test=files[1])  # these decide nothing
    with pytest.raises(ConfigError, match=r"options\.train was '.*a\.jsonl' and is now '.*b\.jsonl'"):
        filtered(files[1])
    with pytest.raises(ConfigError, match=r"options\.timeout_s was 5\.0 and is now 6\.0\. Set"):
        filtered(files[0], timeout_s=6)


def test_two_turns_and_what_cannot_be_filtered(policy: Policy, tmp_path: Path) -> None:
    task = make_task("digits-pick")
    two = Filter(policy, task, make_method("adapo"), SAMPLING, batch=2)
    found = two.run(tmp_path / "a.jsonl", problems=2)
    assert all("->" in kind for verdict in found for kind in verdict.samples)
    with pytest.raises(ConfigError, match="method sft does not learn from samples"):
        Filter(policy, task, make_method("sft"), SAMPLING).run(tmp_path / "b.jsonl", problems=2)
    with pytest.raises(ConfigError, match="without end: say how many"):
        Filter(policy, task, make_method("adpo"), SAMPLING).run(tmp_path / "b.jsonl")


def rows(count: int = 5, **changes: Any) -> list[dict[str, Any]]:
    image = base64_png(28, 28)
    return [{"image": image, "question": f"q {i}", "answer": str(i), **changes} for i in range(count)]


def keep(path: Path, task: Task, dropped: Sequence[int], total: int) -> Path:
    """Verdicts of a scripted answerer that is uniformly right at ``dropped``."""
    right: list[tuple[None, int]] = [(None, 1), (None, 1)]
    answerer: Any = Scripted([right if i in dropped else [(None, 1), (None, 0)] for i in range(total)])
    Filter(answerer, task, make_method("adpo"), SAMPLING, seed=3).run(path, problems=total)
    return path


def test_only_kept_problems_are_trained_on(tmp_path: Path) -> None:
    """Every pass has each kept problem once, whatever the run's seed; the second pass says so in its ids."""
    task = make_task("math", train=str(write_jsonl(tmp_path / "a.jsonl", rows())))
    path = keep(tmp_path / "k.jsonl", task, [0, 3], 5)
    wanted = {v.problem for v in read_verdicts(path)[1] if not v.dropped}
    kept = FilteredProblems(str(path), task)
    assert len(kept) == 3 == len(wanted)
    for seed in (0, 1):
        ids = [kept.problem(seed, index).id for index in range(6)]
        assert set(ids[:3]) == wanted and set(ids[3:]) == {f"{id}/pass-2" for id in wanted}
    # The file is about this data, and says so when it is not.
    for other, said in (
        (rows(6), "of 5 training problems, where task math has 6"),
        (rows(answer="7"), "asks something else now"),
        ([{**row, "id": f"x{i}"} for i, row in enumerate(rows())], "is math/train/a/x. now"),
    ):
        changed = make_task("math", train=str(write_jsonl(tmp_path / "a.jsonl", other)))
        with pytest.raises(ConfigError, match=said):
            FilteredProblems(str(path), changed)
    with pytest.raises(ConfigError, match="about task math, this is digits-pick"):
        FilteredProblems(str(path), make_task("digits-pick"))
    with pytest.raises(ConfigError, match="keeps none of 5"):
        FilteredProblems(str(keep(tmp_path / "n.jsonl", task, range(5), 5)), task)
    with pytest.raises(ConfigError, match="there are no verdicts"):
        FilteredProblems(str(tmp_path / "no.jsonl"), task)


def test_a_run_keeps_to_it(load_policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, task = load_policy(), make_task("digits-pick")
    path = keep(tmp_path / "k.jsonl", task, [0, 1, 2, 5], 8)
    seen: list[str] = []
    make = type(task).problem

    def problem(self: Any, split: Any, seed: int, index: int) -> Problem:
        made = make(self, split, seed, index)
        seen.append(made.id)
        return made

    monkeypatch.setattr(type(task), "problem", problem)
    config = TrainerConfig(steps=2, groups_per_step=4, keep=str(path))
    learn(policy, task, make_method("adpo"), config, SAMPLING, output=tmp_path / "run", seed=9)
    # Once more for the check at the beginning.
    assert Counter(seen) == {f"digits-pick/train/3/{i}": 2 + (i == 3) for i in (3, 4, 6, 7)}
    other = make_task("digits-pick", count=5)
    with pytest.raises(ConfigError, match="with other options"):
        learn(policy, other, make_method("adpo"), config, SAMPLING, output=tmp_path / "other")


def test_broken_problems_and_uncounted_steps_are_told_apart(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    file = write_jsonl(tmp_path / "a.jsonl", [*rows(2), {**rows(1)[0], "image": "text.png"}])
    task = make_task("math", train=str(file))
    found = Filter(policy, task, make_method("adpo"), SAMPLING).run(tmp_path / "k.jsonl")
    [broken] = [verdict for verdict in found if verdict.dropped == "broken"]
    assert "a.jsonl, line 3" in broken.reason and any("a.jsonl, line 3" in line for line in summary(found))
    step = {"goal": "g", "image": base64_png(54, 120)}
    acts = [{"action": "wait"}, {"action": "click", "coordinate": [5, 5]}]
    file = write_jsonl(tmp_path / "b.jsonl", [{**step, "action": action} for action in acts])
    task = make_task("mobile", train=str(file), profile="ui-r1")
    found = Filter(policy, task, make_method("adpo"), SAMPLING).run(tmp_path / "l.jsonl")
    [left_out] = [verdict for verdict in found if not verdict.samples]
    assert left_out.dropped == "not counted" and "does not count wait steps" in left_out.reason
    assert "1 not counted" in summary(found)[0] and "broken" not in " ".join(summary(found))


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text, said in (("hello\n", "line 1"), ('{"a": 1}\n', "line 1: not the header")):
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            read_verdicts(path)
    journal, _ = open_journal(tmp_path / "b.jsonl", FilterVerdict, {"problems": 2})
    journal.append(asdict(FilterVerdict(0, "p", "d", {"1": 1}, "all right")), {"index": 1})
    with pytest.raises(DataError, match="line 3: problem"):
        read_verdicts(journal.path)


def test_the_command(tiny_folder: Path, tmp_path: Path) -> None:
    common = ["data", "filter", "adpo-digits", f"policy.path={tiny_folder}", "sampling.max_new_tokens=8"]
    out = tmp_path / "k.jsonl"
    common += ["--problems", "3", "--samples", "2", "--output", str(out)]
    first = command(*common)
    assert f"learner.keep={out}" in first.output and "of 3 problems" in first.output
    again = command(*common, "--json")
    assert [row["index"] for row in json.loads(again.stdout)] == [0, 1, 2]
    assert "seed was 0 and is now 5" in command(*common, "seed=5", code=2).output
