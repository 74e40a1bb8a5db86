"""Conversations with a server in the one loop: what is asked together, aside, anew and no more."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.rollouts.conversations import Chat

from selfverify.clients.openai_client import ServerConfig
from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import ServerError
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Finish, Trajectory
from selfverify.rollouts.rollout import Rollout, rollout
from selfverify.rollouts.script_sampler import TextSampler
from selfverify.rollouts.server_sampler import ServerSampler
from selfverify.rollouts.wrappers import RecordingEpisode
from serving_servers import Body, FakeUpstream, Loop

FIELDS = {"model": "m", "temperature": 1.0, "max_tokens": 8}
TWO = RolloutLimits(turns=3)


class Told(Episode):
    """Shows given observations, one behind each turn, and keeps what it is told."""

    channel = "words"

    def __init__(self, *shown: Observation) -> None:
        self.shown, self.heard, self.aside = shown, list[str](), list[str]()

    def step(self, said: PolicyTurn) -> Observation:
        self.heard.append(said.text)
        return self.shown[len(self.heard) - 1]

    def probed(self, said: PolicyTurn) -> None:
        self.aside.append(said.text)

    def result(self) -> EpisodeResult:
        return EpisodeResult({"answer": float(len(self.heard))})


def echo(body: Body, i: int) -> str:
    """The number of its messages and the last one's words."""
    return f"{len(body['messages'])}:{body['messages'][-1]['content']}"


def ask(
    servers: Loop,
    fake: FakeUpstream,
    opened: Callable[[Problem, int], Episode],
    problems: int = 1,
    size: int = 1,
    limits: RolloutLimits = TWO,
    **more: Any,
) -> Rollout:
    on_group = more.pop("on_group", None)
    sampler = ServerSampler(ServerConfig(servers.upstream(fake), tries=1), FIELDS, **more)
    asked = [Chat().problem("train", 0, index) for index in range(problems)]
    seeds = [100 * (index + 1) for index in range(problems)]
    return rollout(sampler, Chat(), asked, seeds, size, open_episode=opened, limits=limits, on_group=on_group)


def words(trajectory: Trajectory) -> list[str]:
    return [segment.text for segment in trajectory.segments]


def test_what_begins_alike_is_asked_together_and_then_apart(servers: Loop) -> None:
    """One request of n for a group's first turns; then what differs has requests and seeds of its own."""
    fake = FakeUpstream(write=lambda body, i: f"say {i}" if len(body["messages"]) == 1 else echo(body, i))
    made = ask(servers, fake, lambda *_: Told(Observation("go"), Observation(done=True)), 2, size=3)
    firsts = [body for body in fake.seen if len(body["messages"]) == 1]
    assert sorted((body["n"], body["seed"]) for body in firsts) == [(3, 100), (3, 200)]
    assert len(fake.seen) == 2 + 6 and len({body["seed"] for body in fake.seen}) == 8
    assert [words(t)[0] for t in made.groups[0].trajectories] == ["say 0", "say 1", "say 2"]
    assert words(made.groups[1].trajectories[1]) == ["say 1", "go", "3:go"]


def test_a_server_is_asked_aside_and_takes_back(servers: Loop) -> None:
    """A probe leaves no trace, and what is undone is said anew."""
    aside = Observation("wrong?", probe=Observation("sure?"))
    episode = Told(aside, Observation("so?", undo=True), Observation(done=True))
    fake = FakeUpstream(write=echo)
    [trajectory] = ask(servers, fake, lambda *_: episode).groups[0].trajectories
    assert episode.aside == ["3:sure?"] and words(trajectory)[1:] == ["so?", "3:so?"]
    assert [[m["content"] for m in body["messages"]][2:] for body in fake.seen] == [
        [], ["sure?"], ["wrong?"], ["so?"]
    ]  # fmt: skip


def test_an_outage_keeps_whole_groups_and_begins_no_other(servers: Loop) -> None:
    """The second problem's server fails: the first is handed on, the third is never asked about."""

    def fault(body: Body) -> int | None:
        return 500 if "Question 1" in str(body["messages"][0]) else None

    fake, kept = FakeUpstream(write=echo, fault=fault), list[int]()
    with pytest.raises(ServerError, match=r"the server failed on chat/1: "):
        ask(
            servers, fake, lambda *_: Told(Observation(done=True)), 3, size=2, at_once=1,
            on_group=lambda b, made: kept.append(b),
        )  # fmt: skip
    assert kept == [0] and not any("Question 2" in str(body) for body in fake.seen)


def test_conversations_that_nobody_wants_any_more_end(servers: Loop) -> None:
    fake = FakeUpstream(write=echo)
    with pytest.raises(ServerError, match="has cancelled"):
        ask(servers, fake, lambda *_: Told(Observation("go")), cancelled=lambda: len(fake.seen) > 0)
    assert len(fake.seen) == 1


class Few(Told):
    """Counts how many are open."""

    open = Counter[str]()

    def reset(self) -> None:
        self.open["now"] += 1
        self.open["most"] = max(self.open["most"], self.open["now"])

    def release(self) -> None:
        self.open["now"] -= 1


class Slow(Chat):
    """Judges slowly, and remembers when."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = list[tuple[int, str]]()

    def prepare(self, answers: Any) -> None:
        self.judged.append((len(answers), threading.current_thread().name))
        time.sleep(0.02)


class Answering(Few):
    def answers(self) -> list[Tagged]:
        return [Tagged("x", {})]


def test_groups_are_judged_as_they_end_while_others_go_on() -> None:
    """Never more are open than may be; each group is judged once and whole, beside the loop."""
    Few.open.clear()
    task, kept = Slow(), list[int]()
    problems = [task.problem("train", 0, index) for index in range(3)]
    turns = {(b, g): ["a", "b"] for b in range(3) for g in range(4)}
    limits = RolloutLimits(turns=2, concurrent=3, step_threads=4)
    made = rollout(
        TextSampler(turns), task, problems, [1, 2, 3], 4, limits=limits,
        open_episode=lambda *_: Answering(Observation("go"), Observation(done=True)),
        on_group=lambda b, group: kept.append(b),
    )  # fmt: skip
    assert Few.open["most"] == 3 and Few.open["now"] == 0
    assert [count for count, _ in task.judged] == [4, 4, 4] and sorted(kept) == [0, 1, 2]
    assert all("judge" in name for _, name in task.judged)
    assert all(words(t) == ["a", "go", "b"] for group in made.groups for t in group.trajectories)


class Once(Told):
    """Dies the first time that a conversation is held."""

    died = set[int]()

    def __init__(self, seed: int) -> None:
        super().__init__(Observation(done=True))
        self.seed = seed

    def step(self, said: PolicyTurn) -> Observation:
        if self.seed not in self.died:
            self.died.add(self.seed)
            raise RuntimeError("the device has died")
        return super().step(said)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_lost_conversation_is_held_again_only_where_asked(servers: Loop, retries: int) -> None:
    """In training it stays lost, without rewards; held again it is counted and says what it said."""
    Once.died.clear()
    fake, handed = FakeUpstream(write=lambda body, i: str(body["seed"] + i)), list[Rollout]()
    limits = RolloutLimits(turns=1, retries=retries)
    made = ask(
        servers, fake, lambda _, seed: Once(seed), size=2, limits=limits,
        on_group=lambda b, group: handed.append(group),
    )  # fmt: skip
    lost = [t.lost for t in made.groups[0].trajectories]
    assert lost == [not retries] * 2 and made.retries == ({(0, 0): 1, (0, 1): 1} if retries else {})
    assert len(handed) == 1 and handed[0].retries == made.retries
    assert [words(t) for t in made.groups[0].trajectories] == [["100"], ["101"]]
    assert all(t.rewards == ({"answer": 1.0} if retries else {}) for t in made.groups[0].trajectories)


@pytest.mark.parametrize("reason", ["abort", "timeout", "network_error"])
@pytest.mark.parametrize("retries", [0, 1])
def test_a_turn_that_a_server_breaks_off_is_no_answer(servers: Loop, reason: str, retries: int) -> None:
    """No episode reads it, where ``length`` is the model's own way to end; what was said is kept."""
    ends = iter(["stop", reason, "stop", "length"])
    fake = FakeUpstream(
        says=lambda body: {
            "choices": [{"message": {"content": echo(body, 0)}, "finish_reason": next(ends)}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        }
    )
    told = [Told(Observation("go"), Observation(done=True)) for _ in range(2)]
    limits, open_next = RolloutLimits(turns=2, retries=retries), iter(told)
    made = ask(servers, fake, lambda *_: next(open_next), limits=limits)
    [trajectory] = made.groups[0].trajectories
    assert len(told[0].heard) == 1 and len(fake.seen) == 2 + 2 * retries
    if retries:  # the next try ran out of tokens, which is an answer
        assert len(told[1].heard) == 2 and trajectory.finish == Finish.LENGTH
        assert trajectory.rewards == {"answer": 2.0} and made.retries == {(0, 0): 1}
        return
    assert trajectory.lost and len(words(trajectory)) == 3 and words(trajectory)[2].endswith(":go")
    assert "has given this one up" in str(made.errors[0, 0])


def test_a_probe_that_a_server_breaks_off_is_left_out(servers: Loop) -> None:
    aside = Observation("wrong?", probe=Observation("sure?"))
    episode = Told(aside, Observation(done=True))
    fake = FakeUpstream(
        says=lambda body: {
            "choices": [
                {
                    "message": {"content": echo(body, 0)},
                    "finish_reason": "abort" if "sure?" in str(body["messages"]) else "stop",
                }
            ],
        }
    )
    [trajectory] = ask(servers, fake, lambda *_: episode).groups[0].trajectories
    assert episode.aside == [] and words(trajectory)[1:] == ["wrong?", "3:wrong?"]
    assert trajectory.rewards == {"answer": 2.0}


class Short(Told):
    """Notes that it is cut short, and that it is given back."""

    def __init__(self, *shown: Observation) -> None:
        super().__init__(*shown)
        self.ends = list[str]()

    def cut_short(self) -> None:
        self.ends.append("cut short")

    def release(self) -> None:
        self.ends.append("released")


@pytest.mark.parametrize(
    ("turns", "reason", "shown", "expected"),
    [
        (1, "stop", [Observation("go")], ["cut short", "released"]),  # the limit of turns
        (2, "length", [Observation("go")], ["cut short", "released"]),
        (2, "stop", [Observation(done=True)], ["released"]),  # its own end
        (2, "abort", [Observation("go")], ["released"]),  # lost
        (2, "stop", [], ["released"]),  # it fails
    ],
)
def test_an_episode_is_told_where_it_is_cut_short(
    servers: Loop, turns: int, reason: str, shown: list[Observation], expected: list[str]
) -> None:
    fake, episode = FakeUpstream(write=echo, finish=reason), Short(*shown)
    made = ask(servers, fake, lambda *_: RecordingEpisode(episode, []), limits=RolloutLimits(turns=turns))
    assert episode.ends == expected
    assert made.groups[0].trajectories[0].lost == (reason == "abort" or not shown)


def test_an_outage_cuts_no_episode_short(servers: Loop) -> None:
    """Nobody asks for its result, and what it would read may take long."""
    episode = Short(Observation("go"), Observation(done=True))
    fake = FakeUpstream(write=echo, fault=lambda body: 500 if len(body["messages"]) > 2 else None)
    with pytest.raises(ServerError):
        ask(servers, fake, lambda *_: episode)
    assert len(episode.heard) == 1 and episode.ends == ["released"]
