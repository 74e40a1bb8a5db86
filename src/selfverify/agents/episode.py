"""A conversation in which an agent works in an environment and hands in evidence (SmartSnap §3.1).

`ending_of_agent` says what came of it, by its record (`agents.reward.AgentRecord`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import Field

from selfverify.agents.evidence import SUBMIT, EvidenceConfig, Submission, read_submission, shown_to_judge
from selfverify.agents.goals import Goal, Truth
from selfverify.agents.judges.case import Case, Judgement
from selfverify.agents.judges.jury import Jury
from selfverify.agents.reward import AgentRecord, Components, Outcome, RewardConfig, composite, measure
from selfverify.agents.session import EnvironmentSession
from selfverify.core.config import Config
from selfverify.core.episode import (
    Call,
    Environment,
    EnvironmentLost,
    Episode,
    EpisodeResult,
    Observation,
    PolicyTurn,
    StepResult,
)
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Finish
from selfverify.tasks.answering import Verdict, answer_rewards
from selfverify.tasks.tool_calls import read_calls, short_name
from selfverify.tasks.tool_episode import ACTION, TOOL_CALLS, TOOL_ERRORS, shortened

_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""Characters that end a line. Space inside one is looked for without these, else blank lines take quadratic
time."""
_HEADING = re.compile(rf"(?:^|(?<=[{_ENDS}]))(?=[^\S{_ENDS}]*#+\s*round\b)", re.IGNORECASE)


class AgentConfig(Config):
    """How an agent works and how its work is rewarded, in any environment."""

    first_screen: Literal["asked", "given"] = "asked"
    """Whether the agent asks for the first screen (the paper's way), or is shown it, which saves a turn. An
    agent can only hand in what it was shown."""

    role: Literal["tool", "user"] = "tool"
    """Who shows screens: `user` for chat templates without messages of tools."""

    errors_in_a_row: int = Field(3, ge=0)
    """Calls in a row that may be refused; they cost nothing. One more is a format error."""

    longest_screen: int = Field(12_000, ge=200)
    """Characters of a screen; the middle of longer ones is left out."""

    evidence: EvidenceConfig = Field(default_factory=EvidenceConfig)
    """What counts as evidence."""

    reward: RewardConfig = Field(default_factory=RewardConfig)
    """The reward's components (Eq. 3)."""


@dataclass(eq=False)
class AgentEpisode(Episode):
    """Carries calls out in an environment and shows what came of them, until evidence is handed in.

    Every answered call is a round. Its number stands above the screen, as the agent reads it; the rounds
    themselves are kept as records, and nothing is ever read back from what was shown. The first call of
    `SUBMIT` ends the conversation, proper or not. The judges vote while other conversations go on.

    It ends without a verdict, and takes no part in training, where the environment is lost, or the judges do
    not decide. It ends with a format error where nothing proper was handed in: at the limit of turns, in a
    turn that was cut off, with a full context, with a message without a call, with improper evidence, or
    after too many refused calls in a row. (Without a price for running out of tokens a policy may drift into
    turns that never end.)

    Args:
        problem: The agent's task; its tools are those of the environment and `SUBMIT`.
        make: Makes the environment; it is asked when the conversation begins.
        task: The environment's task (`Environment.reset`).
        seed: Decides everything that is random in the environment.
        jury: Judges the submission; None leaves it without a verdict.
        settings: How the agent works.
        turns: How often the policy speaks at most.
        goal: The task's goal, where that is known: for rules, ground truth and figures.
        looking: Tools that show the screen and do nothing; they are no steps.
        done_from: From which reward of the environment's own a task without a goal counts as done; None where
            the environment scores nothing.
    """

    channel = ACTION
    problem: Problem
    make: Callable[[], Environment]
    task: Mapping[str, Any]
    seed: int
    jury: Jury | None
    settings: AgentConfig
    turns: int
    goal: Goal | None = None
    looking: Collection[str] = frozenset()
    done_from: float | None = None

    def __post_init__(self) -> None:
        self.worked = AgentRecord()
        self._session: EnvironmentSession | None = None
        self._pending: Callable[[], Judgement] | None = None
        self._in_a_row = 0
        self._fault: Exception | None = None
        """Why the ground truth could not be read."""

    def expected_observations(self) -> Sequence[Observation]:
        return [Observation(_form(""), role=self.settings.role)]

    def reset(self) -> Observation | None:
        """Start the environment; the first screen is shown where it is given."""
        self._session = EnvironmentSession(self.make())
        first = self._session.reset(self.task, self.seed)
        self._look()
        if self.settings.first_screen == "asked":
            return None
        self.worked.seen.append(self._session.history[0])
        return self._shown(first, role="user")

    def step(self, said: PolicyTurn) -> Observation:
        """Carry out the call of a turn. A turn whose call was refused has ``tool_errors`` in
        `PolicyTurn.values`."""
        refused = self.worked.refused
        reply = self._answered(said)
        if self.worked.refused > refused:
            said.values[TOOL_ERRORS] = 1.0
        return reply

    def _answered(self, said: PolicyTurn) -> Observation:
        self.worked.turn = said.turn
        self.worked.turns[said.turn] = {}
        if said.finish != Finish.STOP:
            return self._end(Outcome.IMPROPER, "the turn was cut off")
        read = read_calls(said, self.problem.tools)
        if read.error:
            return self._refused(read.error)
        if not read.calls:
            return self._end(Outcome.IMPROPER, "a message without a call")
        if len(read.calls) > 1:
            return self._refused(f"{len(read.calls)} calls in one message, and there may be one")
        [call] = read.calls
        self.worked.turns[said.turn]["call"] = {"name": call.name, "arguments": call.arguments}
        if call.name == SUBMIT:
            return self._submit({**call.arguments})
        names = [tool["function"]["name"] for tool in self.problem.tools]
        if call.name not in names:
            return self._refused(f"there is no tool {short_name(call.name)}; there are {', '.join(names)}")
        assert self._session is not None
        if self._session.over:
            return self._refused(f"the task is over, nothing can be done any more; call {SUBMIT}")
        return self._act(call)

    def result(self) -> EpisodeResult:
        """Return the rewards, after the judges' votes."""
        worked = self.worked
        if worked.outcome is None:
            self.give_up("it never began")
        if self._fault is not None:
            raise self._fault
        if self._session is not None:
            worked.history = self._session.history
        if self._pending is not None:
            worked.judgement = self._pending()
        elif self.jury is None and worked.outcome == Outcome.SUBMITTED:
            worked.judgement = Judgement(None, None, (), "nobody was asked to judge")
        return self._ending()

    def _ending(self) -> EpisodeResult:
        """The conversation's rewards (Eq. 3) and figures, with every vote and its words."""
        worked, config = self.worked, self.settings.reward
        judgement, lost, components = worked.judgement, "", Components()
        if worked.outcome == Outcome.IMPROPER:
            components = Components(format=config.format_error)  # evidence costs nothing
        elif worked.outcome == Outcome.BROKEN_OFF:
            lost = worked.why
        elif judgement is None or judgement.valid is None or judgement.success is None:
            lost = f"no verdict: {judgement.why if judgement else 'nobody was asked'}"
        else:
            components = composite(judgement.valid, judgement.success, len(worked.chosen), config)
        succeeded = judgement is not None and judgement.success is True
        correct = worked.truth.complete if worked.truth is not None else succeeded
        parts = measure(worked, self.goal, self.problem.meta.get("steps"), self.looking)
        if not lost:
            terms = asdict(components)
            parts |= {"format_error": terms.pop("format"), **terms}
        judged = Verdict(components.total, correct, worked.message or None, unjudged=lost, parts=parts)
        calls = sum(exhibit.call is not None and not exhibit.seen.error for exhibit in worked.history)
        rewards = answer_rewards(Tagged(answer_ok=worked.outcome == Outcome.SUBMITTED), judged)
        rewards |= {TOOL_CALLS: float(calls), TOOL_ERRORS: float(worked.refused)}
        said = {
            "outcome": str(worked.outcome),
            "why": worked.why,
            "message": worked.message,
            "evidence": [exhibit.seen.round for exhibit in worked.chosen],
            "judgement": None if judgement is None else judgement.as_json(),
            "reward": None if lost else asdict(components),
            "truth": None if worked.truth is None else asdict(worked.truth),
        }
        turns = [worked.turns.get(turn, {}) for turn in range(worked.turn + 1)]
        if turns:
            turns[-1] = turns[-1] | said
        return EpisodeResult(rewards, parsed=judged, turns=turns, lost=bool(lost))

    def release(self) -> None:
        """Give the environment back."""
        if self._session is not None:
            self._session.close()

    def cut_short(self) -> None:
        """End without a proper submission, and read the ground truth."""
        worked = self.worked
        at_limit = worked.turn + 1 >= self.turns
        worked.outcome = Outcome.IMPROPER
        worked.why = "nothing was handed in" if at_limit else "the context is full"
        try:
            self._look(last=True)
        except Exception as error:
            self._fault = error

    def give_up(self, why: str) -> None:
        """End a conversation that has broken off, also while judges vote: there is no verdict."""
        self.worked.outcome, self.worked.why = Outcome.BROKEN_OFF, why
        self._pending = self._fault = None

    def _act(self, call: Call) -> Observation:
        assert self._session is not None
        seen = self._session.act(call)
        if self._session.history[-1].seen is seen:
            self.worked.seen.append(self._session.history[-1])
            self.worked.turns[self.worked.turn]["round"] = seen.round
        if seen.error:
            return self._refused(seen.error, seen)
        self._in_a_row = 0
        if call.name not in self.looking:
            self._look()
        return self._shown(seen, self.settings.role)

    def _submit(self, arguments: Mapping[str, Any]) -> Observation:
        evidence = self.settings.evidence
        message, chosen, fault = read_submission(arguments, self.worked.seen, evidence)
        self.worked.message, self.worked.chosen = message, chosen
        if fault:
            return self._end(Outcome.IMPROPER, fault)
        assert self._session is not None
        shown = shown_to_judge(chosen, self._session.history, evidence)
        submission = Submission(message, shown, self._session.history)
        # Some environments say what is asked after their reset only.
        told = str(self._session.history[0].seen.info.get("instruction", ""))
        question = "\n".join(filter(None, (str(self.problem.meta.get("question", "")), told)))
        with suppress(EnvironmentLost):  # it has shown all that judges of evidence need
            self._session.submitted(message)
        done = self._end(Outcome.SUBMITTED)
        case = Case(self.problem.id, question, submission, self._session.rounds, self.goal, self.worked.truth)
        if self.jury is not None:
            self._pending = self.jury.ask(case)
        return done

    def _refused(self, reason: str, seen: StepResult | None = None) -> Observation:
        """Tell the agent why a call was not carried out; too many in a row end the conversation."""
        self.worked.refused += 1
        self.worked.turns[self.worked.turn]["error"] = reason
        self._in_a_row += 1
        if self._in_a_row > self.settings.errors_in_a_row:
            return self._end(Outcome.IMPROPER, f"{self._in_a_row} calls in a row were refused")
        if seen is None:
            return Observation(_form(f"Error: {reason}"), role=self.settings.role)
        return self._shown(seen, self.settings.role)

    def _shown(self, seen: StepResult, role: Literal["tool", "user"]) -> Observation:
        """A round as the agent reads it: its number, why a call was refused, the screen, its pictures."""
        assert self._session is not None
        counted = self._session.history[-1].seen is seen
        head = [f"## Round {seen.round}"] * counted
        foot = [f"(The task is over. Call {SUBMIT}.)"] * self._session.over
        told = "\n".join([f"Error: {seen.error}"] * bool(seen.error) + [seen.text])
        # The words of a screen must not look like the number of a round, also where they go on behind a gap.
        told = _HEADING.sub(r"\\", shortened(told, self.settings.longest_screen))
        words = "\n".join([*head, told, *foot])
        return Observation(_form(words, len(seen.images)), list(seen.images), role)

    def _end(self, outcome: Outcome, why: str = "") -> Observation:
        self._look(last=True)
        self.worked.outcome, self.worked.why = outcome, why
        return Observation(done=True)

    def _look(self, last: bool = False) -> None:
        """Read the environment's ground truth, where there is one: after each call if that costs nothing, and
        at the end.

        An environment that is lost at the end only has shown all that judges need.
        """
        session, goal = self._session, self.goal
        if goal is None and session is not None and last and self.done_from is not None:
            self.worked.truth = self._scored(session, self.done_from)
        if session is None or goal is None:
            return
        # Before the end it only matters when an operation is done for the first time.
        settled = goal.kind != "operation" or self.worked.reached is not None
        if not last and (session.environment.waits or settled):
            return
        try:
            facts = session.facts()
        except EnvironmentLost:
            if not last:
                raise
            facts, self.worked.truth = None, None
        if facts is None:
            return
        self.worked.truth = goal.on_state(facts, self.worked.message)
        if self.worked.reached is None and goal.kind == "operation" and self.worked.truth.complete:
            self.worked.reached = session.rounds

    @staticmethod
    def _scored(session: EnvironmentSession, done_from: float) -> Truth | None:
        """The truth by what the environment itself has paid, or would pay now (``state()["score"]``)."""
        paid = [e.seen.reward for e in session.history if e.seen.reward is not None]
        if not paid:
            try:
                score = (session.state() or {}).get("score")
            except EnvironmentLost:
                return None
            paid = [score] if isinstance(score, int | float) else []
        return Truth(bool(paid) and sum(paid) >= done_from, ())


def _form(words: str, images: int = 0) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}, *({"type": "image"} for _ in range(images))]
