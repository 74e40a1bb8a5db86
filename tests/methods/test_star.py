"""STaR: which conversations are kept, what of them is learnt, and that a killed run ends like a whole one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampled_threads import drawn, sampled_threads
from selfverify import TrainerConfig, learn
from selfverify.cli.train import holds_a_run
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import EVENTS_FILE, read_events
from selfverify.core.jsonl_store import open_journal
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Segment, Trajectory
from selfverify.experiments.registry import make_method, make_task
from selfverify.methods.star import CONVERSATIONS_FILE, Collected, STaR
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.tasks.digits_pick import DigitsPick
from updating import trainer_config

WORDS = "Check the answer."


SCRIPTS = ["11", "10", "01", "0m", "001", "000", "c", "0c", "00c"]
"""What is right and what is wrong of each sample in turns 1, 2, 3: 1 right, 0 wrong, m right with a malformed
score, c cut off."""


def test_it_keeps_what_was_corrected(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("digits-pick")
    problem, asked = task.problem("train", 0, 0), list[str]()
    pieces = task.demonstrate(problem, np.random.default_rng(0), wrong=False).pieces
    answer = "".join(text for _, text in pieces).partition("</think>")[2]

    def say(number: int, turn: int) -> Sample:
        what = SCRIPTS[number][turn]
        right = answer if what in "1m" else "<answer>0 0 0</answer>"
        text = f"<think>{number}</think>{right}<score>{'high' if what == 'm' else '0.5'}</score>"
        return drawn(policy, "<think>" if what == "c" else text, ends=what != "c")

    def sample(prompts: Sequence[Prompt], sampling: SamplingConfig, *, seeds: Sequence[int]) -> Any:
        said = []
        for prompt in prompts:
            words = policy.tokenizer.decode(prompt.ids)
            turn, numbers = words.count(WORDS), re.findall(r"<think>(\d)</think>", words)
            asked.extend([words] * (turn == 2))
            said.append([say(int(numbers[-1]) if turn else g, turn) for g in range(sampling.group_size)])
        return said

    monkeypatch.setattr(policy, "threads", sampled_threads(policy, sample))

    def kept(**options: Any) -> list[Trajectory]:
        method = make_method("star", second_turn=WORDS, **options)
        [found] = method.collect(policy, task, [problem], [7], SamplingConfig(group_size=len(SCRIPTS)))
        return found

    two, three = kept()
    assert [len(two.segments), len(three.segments)] == [3, 5]
    assert [s.channel for s in three.segments] == ["turn_1", "observation", "turn_2", "observation", "turn_3"]
    assert [s.turn for s in three.segments] == [0, 1, 1, 2, 2]
    assert three.rewards["correct"] == 1 and three.rewards["correct_1"] == 0
    assert len(asked) == 3 and all(text.count(WORDS) == 2 for text in asked)
    # The prompt, all that was said, and what the template puts between: nothing else, nothing twice.
    assert asked[0].endswith(three.segments[3].text) and three.segments[3].text == three.segments[1].text
    assert [len(t.segments) for t in kept(rounds=1)] == [3]


def conversation(turns: int) -> Trajectory:
    segments = [Segment("turn_1", [40, 41], finish="stop")]
    for turn in range(1, turns):
        segments.append(Segment("observation", [42], author="environment", turn=turn))
        segments.append(Segment(f"turn_{turn + 1}", [43, 44], turn=turn, finish="stop"))
    return Trajectory(segments)


def test_every_epoch_shows_every_conversation(policy: Policy) -> None:
    kept = [(index, conversation(turns)) for index, turns in ((3, 3), (3, 2), (8, 2), (9, 2), (11, 2))]
    task, method = make_task("digits-pick"), STaR(kept=kept, seed=4)
    orders = []
    for epoch in range(2):
        problems = [method.problem(task, 0, epoch * 5 + place) for place in range(5)]
        assert len({p.id for p in problems}) == 5
        groups = method.rollout(policy, task, problems, [0] * 5, SamplingConfig()).groups
        assert {id(t) for group in groups for t in group.trajectories} == {id(c) for _, c in kept}
        orders.append([p.id for p in problems])
        assert method.metrics(groups) == {"star/rounds": pytest.approx(1.2)}
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]


# --- a run ----------------------------------------------------------------------------------------------


class Corrects:
    """Stands for sampling: every third problem has a conversation that is worth learning from."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls, self.stop_at = 0, stop_at
        self.asked: list[list[int]] = []

    def __call__(self, policy: Policy, task: Any, problems: Sequence[Problem], *rest: Any) -> Any:
        policy.encode(problems)
        self.calls += 1
        self.asked.append([int(p.id.rsplit("/")[-1]) for p in problems])
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        return [[conversation(2)] if int(p.id.rsplit("/")[-1]) % 3 == 0 else [] for p in problems]


def run(
    model: Path,
    output: Path,
    collect: Corrects,
    resume: bool = False,
    stop_at: int | None = None,
    last: int = 6,
    of: int = 6,
    task: Any = None,
    **settings: Any,
) -> Any:
    method = make_method("star", problems=9, epochs=2)
    method.collect = collect  # type: ignore[attr-defined]
    shown = []

    def on_step(step: int, steps: int, *figures: Any) -> None:
        shown.append((step, steps))
        if step == stop_at:
            raise KeyboardInterrupt

    config = trainer_config(
        steps=20, groups_per_step=2, batch__micro_batch_groups=3, checkpoint__every=1, **settings
    )  # fmt: skip
    policy = Policy.load(str(model), device="cpu")
    learn(
        policy, task or make_task("digits-pick"), method, config, SamplingConfig(group_size=2), output=output,
        resume=resume, on_step=on_step, save_as="model",
    )  # fmt: skip
    assert shown[-1] == (last, of)  # `of` what it has, not of the 20 that it may have
    return policy.fingerprint()


@pytest.fixture(scope="module")
def whole(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run's folder and the policy's fingerprint: three of nine conversations, twice, two a step."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(tiny_folder, folder, Corrects())


def test_a_run_that_is_stopped_ends_like_a_whole_one(
    tiny_folder: Path, tmp_path: Path, whole: tuple[Path, Any]
) -> None:
    """With three steps an iteration."""
    torn = tmp_path / "torn"
    with pytest.raises(KeyboardInterrupt):
        run(tiny_folder, torn, Corrects(stop_at=2))
    with (torn / "iteration-1" / CONVERSATIONS_FILE).open("a") as file:
        file.write('{"index": 3, "conv')  # as a kill leaves it
    with pytest.raises(KeyboardInterrupt):
        run(tiny_folder, torn, Corrects(), resume=True, stop_at=5)
    collect = Corrects()
    assert run(tiny_folder, torn, collect, resume=True) == whole[1]
    assert collect.calls == 0, "nothing is sampled twice"
    logs = [(folder / "metrics.jsonl").read_text() for folder in (whole[0], torn)]
    assert logs[0] == logs[1]
    rows = [json.loads(line) for line in logs[0].splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["star/iteration"] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert (torn / "model" / "model.safetensors").is_file()


def test_a_batch_that_was_half_written_is_sampled_as_a_whole(
    tiny_folder: Path, tmp_path: Path, whole: tuple[Path, Any]
) -> None:
    """Who stands beside a problem decides how its numbers are rounded; no line is written twice."""
    torn = tmp_path / "torn"
    files = [folder / "iteration-1" / CONVERSATIONS_FILE for folder in (whole[0], torn)]
    files[1].parent.mkdir(parents=True)
    files[1].write_text("".join(files[0].read_text().splitlines(keepends=True)[:5]))  # settings, 4 problems
    collect = Corrects()
    assert run(tiny_folder, torn, collect, resume=True) == whole[1]
    assert collect.asked[:2] == [[3, 4, 5], [6, 7, 8]]
    assert files[0].read_text() == files[1].read_text()
    odd = tmp_path / "odd" / "iteration-1" / CONVERSATIONS_FILE
    odd.parent.mkdir(parents=True)
    odd.write_text(files[0].read_text().replace('"channel"', '"chanel"'))
    with pytest.raises(DataError, match=r"conversations\.jsonl, line \d+: conversations\.\d+\.\d+\.chann?el"):
        run(tiny_folder, tmp_path / "odd", Corrects(), resume=True)


def test_time_ends_an_iteration_and_all_behind_it(
    tiny_folder: Path, tmp_path: Path, whole: tuple[Path, Any]
) -> None:
    """The next one would sample from weights that a resumed run no longer has."""
    torn = tmp_path / "torn"
    run(tiny_folder, torn, Corrects(), last=1, of=3, time_limit_s=1e-9)
    assert not (torn / "iteration-2").exists()
    assert len((torn / "metrics.jsonl").read_text().splitlines()) == 1
    assert holds_a_run(torn)
    assert run(tiny_folder, torn, Corrects(), resume=True) == whole[1]


class Holed(DigitsPick):
    """`digits-pick` with a problem that cannot be made and one that cannot be encoded."""

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        if index == 1:
            raise DataError("no image")
        made = super().problem(split, seed, index)
        return replace(made, images=[]) if index == 6 else made


def test_problems_that_cannot_be_used_are_skipped(tiny_folder: Path, tmp_path: Path) -> None:
    """As when a run learns from samples of its own: named, and no reason to lose the others."""
    collect = Corrects()
    run(tiny_folder, tmp_path, collect, last=4, of=4, task=Holed())
    assert collect.asked == [[0, 2], [3, 4, 5], [7, 8]] * 2
    lines = (tmp_path / "iteration-1" / CONVERSATIONS_FILE).read_text().splitlines()[1:]
    assert [bool(json.loads(line)["conversations"]) for line in lines] == [n in (0, 3) for n in range(9)]
    # Pools of environments that other tests left open in this process may write to the run's events, too.
    told = [e for e in read_events(tmp_path / EVENTS_FILE) if e["event"] != "environments_out_of_order"]
    assert [e["event"] for e in told] == ["problem_skipped"] * 4
    assert told[0]["reason"] == "no image" and told[1]["problem"].endswith("#6")


def test_files_of_another_run_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "iteration-1" / CONVERSATIONS_FILE
    path.parent.mkdir()
    open_journal(path, Collected, {"weights": "other"})
    with pytest.raises(ConfigError, match=r"under other settings: .*weights was 'other' and is now"):
        run(tiny_folder, tmp_path, Corrects(), resume=True)
    path.write_text("not JSON\n")
    with pytest.raises(DataError, match="line 1: not the header"):
        run(tiny_folder, tmp_path, Corrects(), resume=True)


def test_filtered_problems_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    """What it learns from are conversations, which verdicts on problems are not about."""
    with pytest.raises(ConfigError, match=r"learner\.keep=kept\.jsonl: star samples"):
        run(tiny_folder, tmp_path, Corrects(), keep="kept.jsonl")


def test_nothing_to_learn_from_is_said(tiny_folder: Path, tmp_path: Path) -> None:
    """An untrained policy corrects nothing."""
    with pytest.raises(DataError, match="in 2 problems x 2 conversations no answer was corrected"):
        learn(
            Policy.load(str(tiny_folder), device="cpu"),
            make_task("digits-pick"),
            make_method("star", problems=2, second_turn=WORDS),
            TrainerConfig(steps=1),
            SamplingConfig(group_size=2, max_new_tokens=4),
            output=tmp_path,
        )
