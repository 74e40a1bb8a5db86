"""Threads that hang in episodes are counted over all rollouts of a process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rollouts.conversations import Chat, Talkative, held

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, Observation, PolicyTurn
from selfverify.core.errors import HungError
from selfverify.core.events import read_events
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy
from selfverify.rollouts import episode_runner
from selfverify.rollouts.episode_runner import HungThreads
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.digits import DigitsSum
from selfverify.trainer.checkpoint import latest_checkpoint

SAMPLING = SamplingConfig(group_size=2, max_new_tokens=8, top_p=1.0)
LIMITS = RolloutLimits(turns=2, step_threads=2, step_timeout_s=0.1, hung_threads=2)
PROBLEM = Chat().problem("train", 0, 0)


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> HungThreads:
    """A count of the test's own: threads of other tests may still hang."""
    fresh = HungThreads()
    monkeypatch.setattr(episode_runner, "HUNG", fresh)
    monkeypatch.setattr("selfverify.trainer.trainer.HUNG", fresh)
    return fresh


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging replies wait for."""
    made = threading.Event()
    yield made
    made.set()


class Stuck(Talkative):
    """Hangs until a gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__(0, images=False)
        self.gate = gate

    def step(self, said: PolicyTurn) -> Observation:
        self.gate.wait(60.0)
        return super().step(said)


def talk(policy: Policy, gate: threading.Event, stuck: int) -> None:
    """A rollout of two conversations, of which the first ``stuck`` hang."""
    count = iter(range(2))

    def begin(problem: Problem, seed: int) -> Episode:
        return Stuck(gate) if next(count) < stuck else Talkative(seed, images=False)

    held(policy, [PROBLEM], [3], begin, LIMITS, SAMPLING)


def test_threads_are_counted_over_rollouts(
    ending_policy: Callable[..., Policy],
    gate: threading.Event,
    hung: HungThreads,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each rollout has fewer than may hang, and together they have too many; who comes back frees a place."""
    policy = ending_policy()
    talk(policy, gate, 1)
    talk(policy, gate, 1)
    assert hung.count() == 2
    talk(policy, gate, 0)
    with pytest.raises(HungError, match=r"3 threads .* at most 2 may .* problem chat/0, sample 0, turn 0"):
        talk(policy, gate, 1)
    # The next rollout does not begin.
    with pytest.raises(HungError, match="3 threads"):
        talk(policy, gate, 0)
    told = [r.__dict__["fields"] for r in caplog.records if r.__dict__.get("event") == "thread_hung"]
    assert [fields["hung"] for fields in told] == [1, 2, 3]
    assert told[0]["thread"] == "problem chat/0, sample 0, turn 0"
    gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("problem chat/0"):
            thread.join(5.0)
    assert hung.count() == 0
    assert sum(r.__dict__.get("event") == "thread_back" for r in caplog.records) == 3
    talk(policy, gate, 2)


class Sticking(SingleTurn):
    """Answers once; the environment never takes some of the answers."""

    def __init__(self, task: DigitsSum, problem: Problem, gate: threading.Event | None) -> None:
        super().__init__(problem, task.tags, task.verdict)
        self.gate = gate

    def step(self, said: PolicyTurn) -> Observation:
        if self.gate is not None:
            self.gate.wait(60.0)
        return super().step(said)


class Sums(DigitsSum):
    """`digits-sum`, in which the first conversation of every problem hangs from the second step on."""

    limits = RolloutLimits(turns=2, step_threads=4, step_timeout_s=0.1, hung_threads=2)
    gate: threading.Event
    opened = 0

    def open(self, problem: Problem, seed: int) -> Episode:
        self.opened += 1
        hangs = int(problem.id.split("/")[-1]) >= 2 and self.opened % 2 == 0
        return Sticking(self, problem, self.gate if hangs else None)


def test_a_run_keeps_what_it_has_learnt(gate: threading.Event, hung: HungThreads, tmp_path: Path) -> None:
    """A step whose threads hang within the limit is learnt; the one that goes beyond it ends the run."""
    task = Sums()
    task.gate = gate
    steps: dict[str, Any] = {"steps": 5, "groups_per_step": 2, "checkpoint": {"every": 0}}
    config = TrainerConfig(optim={"learning_rate": 1e-4}, loss={"drop_zero_advantage": False}, **steps)
    arguments: dict[str, Any] = {"output": tmp_path, "seed": 0}
    with pytest.raises(HungError, match="of this process hang in episodes"):
        learn(Policy.load("builtin:digits"), task, make_method("grpo"), config, SAMPLING, **arguments)
    latest = latest_checkpoint(tmp_path / "checkpoints")
    assert latest.name == "checkpoint-000002"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    timing = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text().splitlines()]
    assert [row["threads/hung"] for row in timing] == [0.0, 2.0]
    events = [event["event"] for event in read_events(tmp_path / "events.jsonl")]
    assert events.count("thread_hung") >= 3


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_call_that_leaves_its_thread_is_known_at_once(error: type[BaseException]) -> None:
    """It is no thread that hangs, and the rollout does not wait for its deadline."""

    def leaves() -> int:
        raise error("now")

    limits = RolloutLimits(turns=1, step_threads=2, step_timeout_s=60.0)
    hung = episode_runner.HUNG.count()
    runner = episode_runner.EpisodeRunner(limits)
    for index, call in enumerate((leaves, lambda: 2)):
        runner.start("shown", (0, index), call, "turn 0")
    found = runner.wait(everything=True)["shown"]
    assert isinstance(found[0, 0], RuntimeError)
    assert str(found[0, 0]) == f"it ended with {error.__name__}: now"
    assert found[0, 1] == 2 and episode_runner.HUNG.count() == hung
