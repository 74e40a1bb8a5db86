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

PROBE_LOGPROB = "logprob"
"""In `PolicyTurn.values` of an answer to a probe: the mean log-probability of its tokens, nats."""


@dataclass(slots=True)
class PolicyTurn:
    """One turn of the policy.

    Args:
        text: Its words, without the token that ended it.
        tokens: Its tokens as sampled, with the token that ended it.
        finish: How it ended.
        turn: How often the policy had spoken before.
        values: Numbers that were measured while it was said, by name.
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
    """An episode's reply to a turn of the policy, or what it shows before the first turn.

    Args:
        content: Text, or parts in the Hugging Face form: ``{"type": "text", "text": ...}`` and
            ``{"type": "image"}``, the latter in the order of ``images``.
        images: The images shown.
        role: The speaker, as the chat template knows it.
        done: Whether the conversation is over; nothing is shown to the policy then.
        channels: The channels of what the policy said: names, and the characters of `PolicyTurn.text` at
            which each begins, the first at 0. Empty puts all of it into `Episode.channel`.
        probe: A question on the side, which is shown first. The policy answers it, `Episode.probed` gets the
            answer, and both are removed from the context before this is shown. The trajectory holds nothing
            of them.
        undo: Whether to take back the policy's last turn together with the observation before it, and to show
            this in that observation's place. The trajectory holds nothing of either. After the first turn,
            which has no observation before it, this stands right behind the prompt.
        after_cut: Whether this is also shown behind a turn that was cut off at its limit of tokens, which
            else ends the conversation.
    """

    content: str | list[dict[str, Any]] = ""
    images: list[Image] = field(default_factory=list)
    role: Literal["user", "tool"] = "user"
    done: bool = False
    channels: list[tuple[str, int]] = field(default_factory=list)
    probe: Observation | None = None
    undo: bool = False
    after_cut: bool = False

    @property
    def text(self) -> str:
        """The words of the content, without a chat template's marks."""
        return content_text(self.content)


@dataclass(slots=True)
class EpisodeResult:
    """The result of a conversation.

    Args:
        rewards: By name.
        scores: By verifier.
        parsed: The task's verdict on the whole; None where there is none.
        turns: The task's verdicts on the policy's turns, in order; fewer where it judges fewer.
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
        """Return what is there before the policy speaks; by default nothing.

        It is asked once, with the deadline of a reply: the place to start an environment. An exception ends
        the trajectory with ``error``. A reply that is ``done`` ends the conversation before the policy has
        spoken: `result` says what came of it, and the trajectory has no token to learn from. Any other reply
        is the first thing that this sample is shown, for which `Problem.environment_begins` has to be set.
        """
        return None

    @abstractmethod
    def step(self, said: PolicyTurn) -> Observation:
        """Answer a turn of the policy.

        An exception ends the trajectory with ``error``; the trajectory then takes no part in training.
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
        """Return the answers that `result` will have judged.

        A task sees those of all conversations at once (`Task.prepare`) before any `result` is asked for.
        """
        return ()

    def cut_short(self) -> None:
        """Hear that the rollout ends the conversation: at the limit of turns, or with a full context.

        It is called right before `release`, and not where the conversation is lost, which has no result. Here
        an episode reads from its environment what its result needs.
        """

    def release(self) -> None:
        """Give back what the episode holds. It is called in any case, once, and before `result`."""

    def awaited(self) -> Future[Any] | None:
        """Begin what `result` would wait for, such as judges' votes, and return its future; None for nothing.

        It is called after `release`, so that no judge holds an environment. The futures of all conversations
        are waited for together.
        """
        return None

    @abstractmethod
    def result(self) -> EpisodeResult:
        """Return the conversation's result; called once, after `release`, also if it was cut off."""


class RolloutHook(ABC):
    """Follows the conversations of a rollout and measures what is said in them, before episodes reply.

    A conversation is named by the number of its problem in the batch and of its sample in the group.
    """

    @abstractmethod
    def begin(self, problems: Mapping[tuple[int, int], Problem]) -> None:
        """Begin to follow conversations; the ones followed before are over."""

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

    The infrastructure has failed, not the agent: there is no verdict, which is something else than a reward
    of 0.
    """


@dataclass(frozen=True, slots=True)
class Call:
    """One action: the name of a tool and its arguments, as plain JSON."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class StepResult:
    """An environment's reply to a reset or a call.

    Args:
        round: How many calls the session has answered; the reset has 0. Only the environment counts.
        text: Words to be read, such as a screen in XML.
        images: Pictures to be seen, such as a screenshot.
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
        waits: Whether its methods may wait for something outside of the process, such as a server. An
            environment that never waits is run without an event loop.

    Every method but `tools` may raise `EnvironmentLost`. An agent's mistake raises nothing: the result's
    ``error`` says what is wrong.
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
            seed: Decides everything that is random.

        Raises:
            DataError: There is no such task, or it cannot be set up from what it says.
        """

    @abstractmethod
    async def step(self, call: Call) -> StepResult:
        """Carry out a call and show what came of it."""

    async def submitted(self, message: str) -> None:
        """Hear with which message the agent has handed in its work. Nothing is done in the world."""

    async def state(self) -> dict[str, Any] | None:
        """The ground truth as plain JSON, for scoring; None where the environment does not tell."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """Give everything back. It may be called at any time, also twice, and after `EnvironmentLost`."""
