"""A second reader of answers that the rules cannot read. Evaluations use it, rewards never do.

An extractor sees the question and the response, but not the target. The task's rules judge the answer that it
finds as if the answer stood in the answer's tag. An extractor has to copy: an answer that does not stand in
the response would be the extractor's and not the model's, and is not taken.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import DataError
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG, Tagged, parse_tagged, token_ends
from selfverify.core.trajectory import Group, Segment, Trajectory
from selfverify.evaluation.samples import CORRECT_1
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.tasks.base import Task, Verdict, user_turn

logger = logging.getLogger(__name__)

SELF = "self"
"""The value of `EvaluationConfig.extractor` that means the policy that is measured."""
MAX_NEW_TOKENS = 128
"""The length limit of a reading."""
BATCH = 32
"""How many responses are read at once."""
REQUEST = """\
Here are a question and somebody's reply. Find the final answer that the reply arrives at and copy it, \
letter by letter, into <answer></answer>. Do not solve the question. If the reply arrives at no answer, \
write <answer>none</answer>.
Question: {question}
Reply: {response}"""


@dataclass(frozen=True, slots=True)
class Extractor:
    """Finds answers in responses: a policy, asked in text, whose reply is decoded greedily.

    Stored samples say under its name who read them.
    """

    policy: Policy
    name: str

    def extract(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[str | None]:
        """Return one answer per response, copied from it; None where there is none.

        A response that cannot be put into a prompt has none.
        """
        found: list[str | None] = [None] * len(problems)
        asked: list[tuple[int, Prompt]] = []
        for place, (problem, response) in enumerate(zip(problems, responses, strict=True)):
            text = REQUEST.format(question=_question(problem), response=response)
            try:
                asked.append((place, self.policy.encode([Problem(problem.id, user_turn(text, 0))])[0]))
            except DataError as error:
                logger.warning("%s cannot read a response to %s: %s", self.name, problem.id, error)
        sampling = SamplingConfig(group_size=1, temperature=0.0, max_new_tokens=MAX_NEW_TOKENS)
        for first in range(0, len(asked), BATCH):
            part = asked[first : first + BATCH]
            drawn = self.policy.sample([prompt for _, prompt in part], sampling, seeds=[0] * len(part))
            for (place, _), [sample] in zip(part, drawn, strict=True):
                text = token_ends(self.policy.tokenizer, sample.tokens)[0]
                answer = parse_tagged(text, ("answer",)).fields.get("answer", "").strip()
                found[place] = answer if answer and answer.casefold() != "none" else None
        return found


def make_extractor(path: str, config: PolicyConfig, own: Policy | None = None) -> Extractor:
    """Make the extractor that a configuration names by a model's path or as `SELF`, with a policy's settings.

    ``own`` is the policy of `SELF`; without it one is loaded.
    """
    if path != SELF or own is None:
        own = Policy.load(config if path == SELF else config.for_model(path))
    return Extractor(own, path)


@dataclass(frozen=True, slots=True)
class _Unread:
    """A response that the rules found no answer in: the one that counts, or the first turn of two."""

    problem: Problem
    trajectory: Trajectory
    text: str
    first: Segment | None = None

    def take(self, judged: Verdict) -> None:
        """Put a verdict on an extracted answer in the place of the first one."""
        right = float(judged.correct)
        if self.first is not None:
            self.first.parsed = judged
            self.trajectory.rewards[CORRECT_1] = right
        else:
            self.trajectory.parsed = judged
            self.trajectory.rewards |= judged.parts | {"answer": judged.reward, "correct": right}


def read_again(task: Task, groups: Sequence[Group], extractor: Extractor) -> None:
    """Let an extractor find the answers that the rules could not read, and judge those it finds instead.

    Of two turns both are read: with the second alone, two equal answers would count as a correction.
    """
    unread = [
        found for group in groups for trajectory in group.trajectories for found in _unread(group, trajectory)
    ]
    if not unread:
        return
    answers = extractor.extract([one.problem for one in unread], [one.text for one in unread])
    tag = ([tag for tag in task.tags if tag != SCORE_TAG] or ["answer"])[-1]
    for one, answer in zip(unread, answers, strict=True):
        if answer is None or not stands_in(answer, one.text):
            continue
        judged = task.judge(one.problem, Tagged({tag: answer}, answer_ok=True))
        if judged.answer is not None and not judged.unjudged:
            one.take(replace(judged, read_by=extractor.name))


def _unread(group: Group, trajectory: Trajectory) -> list[_Unread]:
    """The responses of a trajectory that the rules found no answer in."""
    own = [s for s in trajectory.segments if s.author == "policy"]

    def unread(parsed: object, turn: int, first: Segment | None = None) -> list[_Unread]:
        if not isinstance(parsed, Verdict) or parsed.answer is not None or parsed.unjudged:
            return []
        text = "".join(s.text for s in own if s.turn == turn)
        return [_Unread(group.problem, trajectory, text, first)]

    last, in_turns = own[-1].turn if own else 0, CORRECT_1 in trajectory.rewards
    firsts = unread(own[0].parsed, own[0].turn, own[0]) if in_turns and own else []
    # A first turn that was cut off is no second answer.
    return firsts + ([] if in_turns and last == 0 else unread(trajectory.parsed, last))


def _question(problem: Problem) -> str:
    options = problem.meta.get("options") or {}
    shown = [f"{letter}. {text}" for letter, text in options.items()]
    return "\n".join([str(problem.meta.get("question", "")), *shown])


def stands_in(answer: str, response: str) -> bool:
    """Say whether a response contains an answer.

    Spacing does not matter, and case matters for single letters only. Parts of words or numbers do not
    count: nearly every response has a "b" somewhere, and 15 is not 5.
    """
    wanted, text = " ".join(answer.split()), " ".join(response.split())
    if len(wanted) > 1:
        wanted, text = wanted.casefold(), text.casefold()
    before = r"(?<![\w\\-])(?<!\d[.,])" if wanted[:1].isalnum() else ""
    after = r"(?!\w|[.,]\d)" if wanted[-1:].isalnum() else ""
    # Chinese has no spaces between words, so only ASCII characters make a boundary.
    return bool(wanted) and re.search(before + re.escape(wanted) + after, text, re.ASCII) is not None
