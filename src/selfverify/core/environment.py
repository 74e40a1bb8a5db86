"""An environment: a world in which an agent acts, one call at a time, and sees what came of it.

A session is one `Environment` object. The caller resets it to a task, carries out calls, and closes it:

- `StepResult.done`: the task's own end, such as a page that says that it is over.
- `StepResult.truncated`: the environment has stopped for another reason, such as a limit of steps.
- `EnvironmentLost`: the infrastructure has failed. Nothing can be said of the task; that is no reward of 0.
- `StepResult.reward`: None where nothing was scored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from PIL.Image import Image

from selfverify.core.errors import SelfVerifyError


class EnvironmentLost(SelfVerifyError):
    """An environment that has died, hangs or cannot be reached: its session is over and has no result."""


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
        done: Whether the task has come to its own end.
        truncated: Whether the environment has stopped for another reason.
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
    """One session. Its methods are called one after another, never at the same time.

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
