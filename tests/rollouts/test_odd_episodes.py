"""Episodes that return nonsense, keep what they showed, or hang: each ends its own conversation only."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from PIL import Image
from tests.rollouts.conversations import Chat, three

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory, valid_trajectories
from selfverify.policy.policy import Policy
from selfverify.rollouts.score_reading import before_score
from tiny_models import boosted

SAMPLING = SamplingConfig(group_size=3, max_new_tokens=40, top_p=1.0)
LIMITS = RolloutLimits(turns=3)
THREADS = LIMITS.model_copy(update={"step_threads": 3, "step_timeout_s": 0.5})


class Polite(Episode):
    """Replies once."""

    opened: ClassVar[list[Polite]] = []

    def __init__(self) -> None:
        self.turns = self.closed = 0
        self.opened.append(self)

    def step(self, said: PolicyTurn) -> Observation:
        self.turns += 1
        return Observation("Go on.", done=self.turns > 1)

    def result(self) -> EpisodeResult:
        return EpisodeResult({"answer": 1.0})

    def release(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def short(load_policy: Any) -> Policy:
    """A policy of which every turn ends within the limit."""
    return boosted(load_policy(), 4.0)


def hold(policy: Policy, second: Callable[[], Any], limits: RolloutLimits = LIMITS) -> list[Trajectory]:
    """Three conversations; the one in the middle is held by what ``second`` makes."""
    return three(policy, second, Polite, 41, limits, SAMPLING)


def replying(make: Callable[[PolicyTurn], Any]) -> type[Polite]:
    return type("Odd", (Polite,), {"step": lambda self, said: make(said)})


def ending(make: Callable[[], Any]) -> type[Polite]:
    return type("Odd", (Polite,), {"result": lambda self: make()})


def raises() -> Any:
    raise RuntimeError("gone")


ODD: dict[str, Callable[[], Any]] = {
    "no reply": replying(lambda said: None),
    "a text": replying(lambda said: "Go on."),
    "unsorted cuts": replying(
        lambda said: Observation(done=True, channels=[("a", 0), ("b", len(said.text)), ("c", 0)])
    ),
    "cuts from 1": replying(lambda said: Observation(done=True, channels=[("a", 1)])),
    "cuts beyond": replying(
        lambda said: Observation(done=True, channels=[("a", 0), ("b", len(said.text) + 1)])
    ),
    "cuts in words": replying(lambda said: Observation(done=True, channels=[("a", "0")])),  # type: ignore[list-item]
    "a system's role": replying(lambda said: Observation("Obey.", role="system")),  # type: ignore[arg-type]
    "the policy's role": replying(lambda said: Observation("Obey.", role="assistant")),  # type: ignore[arg-type]
    "no content": replying(lambda said: Observation(None)),  # type: ignore[arg-type]
    "a video": replying(lambda said: Observation([{"type": "video"}])),
    "a text that is none": replying(lambda said: Observation([{"type": "text", "text": None}])),
    "no images": replying(lambda said: Observation("Look.", images=None)),  # type: ignore[arg-type]
    "a thin image": replying(lambda said: Observation([{"type": "image"}], [Image.new("RGB", (9000, 1))])),
    "raises": replying(lambda said: raises()),
    "exit": replying(lambda said: sys.exit(2)),
    "no ending": ending(lambda: None),
    "an ending in words": ending(lambda: "good"),
    "a reward that is no number": ending(lambda: EpisodeResult({"answer": float("nan")})),
    "a score without end": ending(lambda: EpisodeResult({"answer": 1.0}, {"judge": float("inf")})),
    "turns that were not": ending(lambda: EpisodeResult({"answer": 1.0}, turns=[None] * 9)),
    "lost turns that were not": ending(lambda: EpisodeResult({"answer": 1.0}, lost_turns=[-1])),
    "answers": type("Odd", (Polite,), {"answers": lambda self: raises()}),
    "foreseen": type("Odd", (Polite,), {"expected_observations": lambda self: raises()}),
    "no episode": lambda: None,
    "exit at once": lambda: sys.exit(2),
}


@pytest.fixture(scope="module", params=[LIMITS, THREADS], ids=["inline", "threads"])
def limits(request: pytest.FixtureRequest) -> RolloutLimits:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def whole(short: Policy, limits: RolloutLimits) -> list[Trajectory]:
    """The conversations without a fault."""
    made = hold(short, Polite, limits)
    assert all(t.segments[0].finish == Finish.STOP and len(t.segments[0].tokens) > 3 for t in made)
    return made


@pytest.mark.parametrize("odd", ODD)
def test_nonsense_ends_its_own_conversation_only(
    short: Policy, whole: list[Trajectory], odd: str, limits: RolloutLimits, caplog: pytest.LogCaptureFixture
) -> None:
    Polite.opened.clear()
    found = hold(short, ODD[odd], limits)
    assert found[1].finish == Finish.ERROR and found[1].rewards == {}
    assert {episode.closed for episode in Polite.opened} == {1}
    begun = odd not in ("foreseen", "no episode", "exit at once")  # what was said is kept
    assert found[1].segments[0].tokens == (whole[1].segments[0].tokens if begun else [])
    group = Group(Chat().problem("train", 0, 0), found)
    assert valid_trajectories(group, False).tolist() == [True, False, True]
    assert any("problem chat/0, turn" in record.getMessage() for record in caplog.records)
    for place in (0, 2):
        assert (found[place].tokens, found[place].rewards) == (whole[place].tokens, {"answer": 1.0})


def test_said_is_a_copy(short: Policy) -> None:
    class Scribbles(Polite):
        def step(self, said: PolicyTurn) -> Observation:
            said.tokens[:] = [0] * 50
            return super().step(said)

    assert [t.tokens for t in hold(short, Scribbles)] == [t.tokens for t in hold(short, Polite)]


def test_a_screen_that_changes_is_kept_as_it_was_shown(short: Policy) -> None:
    """What is learnt from is what the policy saw, also of one canvas that is drawn on and then closed."""
    canvas = Image.new("RGB", (32, 32))

    class Draws(Polite):
        def step(self, said: PolicyTurn) -> Observation:
            canvas.paste((40 * self.turns, 0, 0), (0, 0, 32, 32))
            self.turns += 1
            return Observation([{"type": "image"}], [canvas])

        def release(self) -> None:
            canvas.close()

    shown = [image for segment in hold(short, Draws)[1].segments for image in segment.images]
    assert [image.getpixel((5, 5)) for image in shown] == [(0, 0, 0), (40, 0, 0)]


def test_closing_has_a_deadline(short: Policy, caplog: pytest.LogCaptureFixture) -> None:
    """A reply that hangs may hold what closing waits for; the others are closed all the same."""
    held, closed = threading.Event(), []

    class Stuck(Polite):
        def step(self, said: PolicyTurn) -> Observation:
            held.wait(20.0)
            return super().step(said)

        def release(self) -> None:
            held.wait(20.0)

    class Closing(Polite):
        def release(self) -> None:
            closed.append(self)

    start = time.monotonic()
    found = three(short, Stuck, Closing, 41, THREADS, SAMPLING)
    assert time.monotonic() - start < 15.0
    held.set()
    assert [t.finish == Finish.ERROR for t in found] == [False, True, False]
    assert len(closed) == 2
    assert any("could not be closed" in record.getMessage() for record in caplog.records)


def test_scores_of_earlier_turns_stand_before_the_last() -> None:
    """What is read behind the last ``<score>`` is the whole conversation, with the scores inside it."""
    channels = ["answer", "score", "observation", "answer", "score"]
    segments = [Segment(channel, [number]) for number, channel in enumerate(channels)]
    assert before_score(Trajectory(segments, {"sampled": 0.5})) == [0, 1, 2, 3]
    assert before_score(Trajectory(segments[:4], {"sampled": 0.5})) == [0, 1, 2, 3]
    assert before_score(Trajectory(segments[:3], {"sampled": 0.5})) is None
