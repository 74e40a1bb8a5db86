"""Requests whose model looks at the images again: the field ``look``, and what it may ask for.

Conversations are held with a model that runs here (`look_here`) or with a server's (`look_at_server`), and
their steps are told as they are made. A server's steps can be heard by a verifier that runs here (VTS-V's
GPT-4o rows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count, groupby
from typing import Any

from pydantic import ValidationError

from selfverify.clients.openai_client import ServerConfig
from selfverify.clients.replies import Completion, Usage, estimated_tokens
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Episode, Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Group, Trajectory
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import Rollout, rollout
from selfverify.rollouts.server_sampler import ServerSampler
from selfverify.rollouts.wrappers import EpisodeWrapper
from selfverify.selection.rules import Kind
from selfverify.serving.backend import AnswerRequest, FreeQuestion, OnLook
from selfverify.serving.schemas import ApiError, invalid, invalid_value, with_places
from selfverify.verifiers.base import Verifier, score_groups
from selfverify.visual.config import VisualConfig
from selfverify.visual.episode import VisualEpisode
from selfverify.visual.task import VisualToolTask


class ToldLooks(EpisodeWrapper):
    """Reports every step of a conversation to a client.

    Args:
        look: The conversation.
        tell: Told what came of a step (`VisualStep`), once its tool has run; from any thread.
    """

    def __init__(self, look: VisualEpisode, tell: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(look)
        self.look, self.tell = look, tell

    def step(self, said: PolicyTurn) -> Observation:
        before = len(self.look.steps)
        reply = super().step(said)
        for step in self.look.steps[before:]:
            self.tell(asdict(step))
        return reply


FIELDS = ("tools", "max_steps", "stop", "rule", "epsilon", "max_visual_tokens")
"""The fields of a request. The rest is the operator's: a path in a request must not load anything."""
_UNFIT = ("tools", "functions", "response_format", "logprobs", "stop")
"""Fields of a request that mean nothing where the model looks again."""


class VisualGate:
    """How the operator lets models look again. Tools and verifier are shared by all requests.

    Args:
        settings: The tools that there are, the most steps and visual tokens, the verifier. A request may set
            the fields that they leave open.

    Raises:
        ConfigError: A tool or a rule does not exist, or is not available here.
        DataError: The verifier's calibration cannot be read.
    """

    def __init__(self, settings: VisualConfig) -> None:
        self.settings = settings
        self.task = VisualToolTask(FreeQuestion(), settings)

    def look(self, given: Mapping[str, Any], body: Mapping[str, Any], answers: Kind) -> VisualToolTask:
        """How the model looks for one request.

        Args:
            given: The request's ``look``.
            body: The request's other fields.
            answers: Which answers are the same.

        Raises:
            ApiError: A field is unknown or wrong, or asks for more than the operator lets.
        """
        given = {name: value for name, value in given.items() if value != []}  # no tools are not all tools
        for name in given:
            if name not in FIELDS:
                text = f"look.{name}: there is no such field; there are {', '.join(FIELDS)}"
                raise ApiError(400, text, "unknown_parameter", f"look.{name}")
        for name in _UNFIT:
            if body.get(name) and body[name] != {"type": "text"}:
                raise ApiError(400, f"{name} does not go with look", "unsupported_parameter", name)
        own = self.settings
        try:
            asked = VisualConfig.model_validate({**own.model_dump(), **given}, strict=True)
        except ValidationError as error:
            raise invalid(error, "look") from None
        if asked.max_steps > own.max_steps:
            raise invalid_value("look.max_steps", f"at most {own.max_steps} steps may be asked for")
        most = own.max_visual_tokens
        if most is not None and (asked.max_visual_tokens is None or asked.max_visual_tokens > most):
            raise invalid_value("look.max_visual_tokens", f"at most {most} may be asked for")
        for name in asked.tools:
            if name not in self.task.toolbox.tools:
                there = ", ".join(self.task.toolbox.tools)
                raise invalid_value("look.tools", f"there is no tool {name!r} here; there are {there}")
        if asked.stop == "verifier" and own.verifier is None:
            raise invalid_value("look.stop", "there is no verifier here that could end looking")
        for name in ("rule", "epsilon"):
            if asked.stop != "verifier" and given.get(name) is not None:
                text = f"a verifier goes by it, and looking ends by stop: {asked.stop}; set stop to verifier"
                raise invalid_value(f"look.{name}", text)
        try:
            task = self.task.looking_by(given)
        except (ConfigError, DataError) as error:
            if asked.stop != "verifier":
                raise invalid_value("look.stop", str(error)) from None
            # The error names folders, which are none of a client's business.
            text = "this verifier has no ε for that rule; give rule and epsilon (above 0 for absolute)"
            raise invalid_value("look.epsilon", text) from None
        task.inner = FreeQuestion(answers)
        task.kind = task.inner.kind
        return task


def look_here(
    policy: Policy,
    look: VisualToolTask,
    problem: Problem,
    sampling: SamplingConfig,
    seed: int,
    verifier: Verifier | None,
    left_s: float,
    first: int,
    tell: OnLook | None,
) -> tuple[list[tuple[int, Trajectory]], int]:
    """Let a model that runs here look at a question's images, several times.

    Args:
        policy: Looks and answers.
        look: How.
        problem: The question.
        sampling: How many conversations, and how they are drawn.
        seed: The question's seed.
        verifier: Scores the answers; None leaves them without scores.
        left_s: Seconds after which conversations break off.
        first: The number of the first conversation.
        tell: Told of each step, with its conversation's number, from any thread; may be None.

    Returns:
        The conversations that came to an end, with their numbers, and how many tokens the prompt has.

    Raises:
        SelfVerifyError: The question or its images cannot be read, or the model has failed.
    """
    look.set_coordinate_space(policy.coordinate_space)
    look.set_policy(policy)
    limits = look.limits.model_copy(update={"rollout_timeout_s": max(left_s, 0.1)})
    rolled = rollout(
        PolicySampler(policy, sampling),
        look,
        [look.asked(problem)],
        [seed],
        sampling.group_size,
        open_episode=_numbered(look, first, tell),
        limits=limits,
    )
    [group] = rolled.groups
    rows = [(number, row) for number, row in enumerate(group.trajectories, first) if not row.lost]
    score_groups([Group(group.problem, [row for _, row in rows])], verifier if rows else None)
    return rows, len(rolled.prompts[0].ids)


def _numbered(look: VisualToolTask, first: int, tell: OnLook | None) -> Callable[[Problem, int], Episode]:
    """Return what opens episodes, in the order of their numbers, and lets their steps be told."""
    numbers = count(first)

    def opened(problem: Problem, seed: int) -> Episode:
        number, episode = next(numbers), look.look(problem)
        return episode if tell is None else ToldLooks(episode, partial(tell, number))

    return opened


AT_ONCE = 8
"""Conversations that are held with a server at the same time."""


def look_at_server(
    looking: VisualToolTask,
    ask: AnswerRequest,
    server: ServerConfig,
    numbers: Sequence[int],
    over: Callable[[], bool],
    deliver: Callable[[Completion | Exception], object],
    usage: Usage,
) -> None:
    """Hold conversations about one question with a server's model, side by side.

    A verifier reads the question once, and hears together what several of them have said meanwhile. Where its
    models run here, they take turns with those of other requests.

    Args:
        looking: How the model looks.
        ask: The question; its ``looked`` is told of each step.
        server: Where the model is.
        numbers: The conversations' numbers, by which a ``seed`` is raised.
        over: Says whether the client has gone; conversations then break off before the next turn.
        deliver: Gets the last turn of a conversation that is over, with its number as ``conversation`` and as
            ``looks`` what it looked at; or why it has failed.
        usage: Counts what they cost, turn by turn.

    Raises:
        ApiError: The messages or their images cannot be read.
        ServerError: The server cannot be reached or refuses, or the client has gone.
    """
    pictures = [picture.decode() for picture in ask.pictures]
    asked = looking.asked(Problem(ask.id or "request", with_places(ask.body["messages"]), pictures))
    rest = {name: value for name, value in ask.body.items() if name not in ("messages", "seed")}
    seed, settings = ask.body.get("seed"), looking.settings

    def ended(b: int, made: Rollout) -> None:
        [group] = made.groups
        failed = made.errors.get((0, 0))
        deliver(failed or _last_turn(group.trajectories[0], numbers[b]))

    rollout(
        ServerSampler(server, rest, at_once=AT_ONCE, seeded=seed is not None, usage=usage, cancelled=over),
        looking,
        [asked] * len(numbers),
        [(seed or 0) + number for number in numbers],
        1,
        open_episode=_numbered(looking, numbers[0], ask.looked),
        limits=looking.limits.model_copy(
            update={"step_threads": AT_ONCE, "step_timeout_s": 2 * settings.tool_seconds}
        ),
        on_group=ended,
    )


def _last_turn(trajectory: Trajectory, number: int) -> Completion:
    """The last turn of a conversation, and what it looked at."""
    own = [segment for segment in trajectory.segments if segment.author == "policy"]
    steps = [segment.parsed for segment in own if isinstance(segment.parsed, dict)]
    turns = ["".join(s.text for s in turn) for _, turn in groupby(own, key=lambda segment: segment.turn)]
    tokens = estimated_tokens("\n\n".join(filter(None, turns)))
    about = {"looks": steps, "conversation": number}
    return Completion(text=turns[-1] if turns else "", tokens=tokens, about=about)
