"""Episodes, the other end of conversations with the policy, and environments in which agents act.

A rollout is a conversation. The `Episode` may show something first. Then the policy says something and the
episode replies, until the episode is done. A single answer is an episode that is done after the first words;
a second turn is one that replies once; an agent's `Environment` carries out what was called, one call at a
time, and shows what came of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from PIL.Image import Image

from selfverify.core.errors import SelfVerifyError
from selfverify.core.problem import Problem, content_text
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Finish


@dataclass(slots=True)
class PolicyTurn:
    """What the policy has said in one turn.

    Args:
        text: Its text, without the token that ended it.
        tokens: Its tokens as sampled, with the token that ended it.
        finish: How it ended.
        turn: How often the policy had spoken before.
        values: What was measured of it while it was said, by name.
        message: The text as the tokenizer's own response template reads it: a chat message with ``content``
            and ``tool_calls``, or ``{"error": reason}`` where it cannot be read. None where the tokenizer has
            no such template.
    """

    text: str
    tokens: list[int]
    finish: Finish
    turn: int
    values: dict[str, float] = field(default_factory=dict)
    message: dict[str, Any] | None = None


@dataclass(slots=True)
class Observation:
    """What an episode says to what the policy has said, or before it says anything.

    Args:
        content: Text, or parts in the Hugging Face form: ``{"type": "text", "text": ...}`` and
            ``{"type": "image"}``, the latter in the order of ``images``.
        images: The images shown.
        role: Who speaks, as the chat template knows it.
        done: Whether the conversation is over; nothing is shown to the policy then.
        channels: The channels of what the policy said: names, and the characters of `PolicyTurn.text` at
            which each begins, the first at 0. Empty puts all of it into `Episode.channel`.
        probe: What is shown to the policy in place of this, once and for itself: what it says to that is told
            to `Episode.probed`, and both are forgotten before this is shown.
        undo: Whether what the policy has just said is taken back, with what it was shown before that,
            as though neither had been; this is shown in place of the latter. The trajectory holds nothing of
            them. Before its first turn the policy was shown nothing: it then hears this as though it had said
            nothing.
    """

    content: str | list[dict[str, Any]] = ""
    images: list[Image] = field(default_factory=list)
    role: Literal["user", "tool"] = "user"
    done: bool = False
    channels: list[tuple[str, int]] = field(default_factory=list)
    probe: Observation | None = None
    undo: bool = False

    @property
    def text(self) -> str:
        """Its own words, without what a chat template adds."""
        return content_text(self.content)


@dataclass(slots=True)
class EpisodeResult:
    """What came of a conversation.

    Args:
        rewards: By name.
        scores: By verifier.
        parsed: What the task makes of the whole; None where nothing can be said of it.
        turns: What the task makes of each turn of the policy, in order; shorter where it says nothing.
        lost: Whether there is no verdict, as in an outage: the trajectory takes no part in training.
        lost_turns: The turns of which there is no verdict.
    """

    rewards: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    parsed: Any = None
    turns: list[Any] = field(default_factory=list)
    lost: bool = False
    lost_turns: Sequence[int] = ()


class Episode(ABC):
    """One conversation's other end. It belongs to one trajectory and is used by one thread at a time."""

    channel = "answer"
    """The channel of what the policy says, where a reply does not cut it."""

    def reset(self) -> Observation | None:
        """What is there before the policy speaks; by default nothing.

        It is asked once, with the deadline of a reply: the place to start an environment. Whatever it raises
        ends the trajectory with ``error``. A reply that is ``done`` ends the conversation before the policy
        has spoken: `result` says what came of it, and the trajectory has no token to learn from. Any other
        reply is the first thing that this sample is shown, for which `Problem.environment_begins` has to be
        set.
        """
        return None

    @abstractmethod
    def step(self, said: PolicyTurn) -> Observation:
        """Answer what the policy has said.

        Whatever it raises ends the trajectory with ``error``; the trajectory then takes no part in training.
        """

    def probed(self, said: PolicyTurn) -> None:
        """Hear what the policy says to `Observation.probe`. It is no part of the trajectory.

        Nothing is heard of a probe that does not fit into the model's context.
        """

    def expected_observations(self) -> Sequence[Observation]:
        """Replies that are known before anything is said.

        A chat template that cannot show them is refused at once, also where no conversation gets so far.
        """
        return ()

    def answers(self) -> Sequence[Tagged]:
        """The answers that `result` will have judged.

        A task sees those of all conversations at once (`Task.prepare`) before any `result` is asked for.
        """
        return ()

    def release(self) -> None:
        """Give back what the episode holds. It is called in any case, once, and before `result`.

        What the result needs of an environment is read here at the latest.
        """

    def awaited(self) -> Future[Any] | None:
        """Begin what `result` would wait for, such as judges' votes, and return its future; None for nothing.

        It is called after `release`, so that no judge holds an environment. Those of all conversations are
        waited for together.
        """
        return None

    @abstractmethod
    def result(self) -> EpisodeResult:
        """What came of the conversation; called once, after `release`, also if it was cut off."""


class RolloutHook(ABC):
    """Follows the conversations of a rollout and measures what is said in them, before episodes reply.

    A place is that of a problem in the batch and of a sample in its group.
    """

    @abstractmethod
    def begin(self, problems: Mapping[tuple[int, int], Problem]) -> None:
        """Conversations begin; those that it has followed before are over."""

    def open(self, indices: Sequence[tuple[int, int]]) -> None:
        """Follow some of these conversations from their prompts on, also those that were followed before."""

    @abstractmethod
    def said(self, said: Mapping[tuple[int, int], PolicyTurn]) -> None:
        """The policy has said this in a round; what is measured of it goes into `PolicyTurn.values`."""

    @abstractmethod
    def shown(self, replies: Mapping[tuple[int, int], Observation]) -> None:
        """Episodes have shown this in conversations that go on."""


class EnvironmentLost(SelfVerifyError):
    """An environment that has died, hangs or cannot be reached: its session is over and has no result.

    The infrastructure has failed. Nothing can be said of the task; that is no reward of 0.
    """


@dataclass(frozen=True, slots=True)
class Call:
    """One action: the name of a tool and its arguments, as plain JSON."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class StepResult:
    """What an environment shows after a reset or a call.

    Args:
        round: How many calls the session has answered; the reset has 0. The environment counts, nobody else.
        text: What is to be read, such as a screen in words.
        images: What is to be seen, such as a screenshot.
        error: Why the call was not carried out, in words that the agent can act on; empty where it was.
        done: Whether the task has come to its own end, such as a page that says that it is over.
        truncated: Whether the environment has stopped for another reason, such as a limit of steps.
        reward: The environment's own reward for this step; None where nothing was scored.
        info: Plain JSON that the agent never sees, such as the facts that a screen shows. After a reset
            ``instruction`` has what is asked, where the environment alone knows that; judges read it.
    """

    round: int
    text: str = ""
    images: list[Image] = field(default_factory=list)
    error: str = ""
    done: bool = False
    truncated: bool = False
    reward: float | None = None
    info: dict[str, Any] = field(default_factory=dict)


class Environment(ABC):
    """One session: the caller resets it to a task, carries out calls, and closes it.

    Its methods are called one after another, never at the same time.

    Attributes:
        waits: Whether its methods may wait for something outside of the process, such as a server. Those of
            an environment that never does are run without an event loop.

    Every method but `tools` may raise `EnvironmentLost`. What an agent gets wrong raises nothing: the
    observation's ``error`` says it.
    """

    waits: ClassVar[bool] = True

    @property
    @abstractmethod
    def tools(self) -> Sequence[dict[str, Any]]:
        """The calls that can be made, in OpenAI's form for tools; they do not change during a session."""

    @abstractmethod
    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Begin a task anew.

        Args:
            task: Plain JSON that names the task; the environment defines its fields.
            seed: Decides whatever is random.

        Raises:
            DataError: There is no such task, or it cannot be set up from what it says.
        """

    @abstractmethod
    async def step(self, call: Call) -> StepResult:
        """Carry out a call and show what came of it."""

    async def submitted(self, message: str) -> None:
        """Hear with which message the agent has handed in its work. Nothing is done in the world."""
        return

    async def state(self) -> dict[str, Any] | None:
        """The ground truth as plain JSON, for scoring; None where the environment does not tell."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """Give everything back. It may be called at any time, also twice, and after a loss."""
