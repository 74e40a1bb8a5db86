"""Verifiers: what gives candidates their scores.

A verifier reads whole groups and returns one score in [0, 1] per trajectory, None where it has none. Those
here run policies of this library; anything with a name and a ``score`` method fulfils the protocol, a client
of a server or of a reward model too.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from selfverify.errors import ConfigError, DataError
from selfverify.policy.config import SamplingConfig
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores
from selfverify.policy.turns import SECOND_TURN, longer_prompt
from selfverify.rollouts.requests import CHECK, RATE
from selfverify.rollouts.single_turn import answer_segment, before_score
from selfverify.rollouts.tags import SCORE_TAG, parse_score, parse_tagged, token_ends
from selfverify.rollouts.types import Group, Problem, Trajectory
from selfverify.selection.calibration import Calibration
from selfverify.selection.second_turns import SecondTurns
from selfverify.tasks import Task

logger = logging.getLogger(__name__)

Scores = list[list[float | None]]
OPENING, CLOSING = f"<{SCORE_TAG}>", f"</{SCORE_TAG}>"

_CLOSED = re.compile(r"</(?!s>)[a-z_]+>")
"""A closing tag; ``</s>`` is how some models end."""

Form = Literal["continue", "ask"]
"""How a judge sees an answer: as its own words, of which the score is next; or as a turn of the conversation,
after which it is asked for a score. The first fits policies trained to rate themselves, the second others."""


class Verifier(Protocol):
    """Scores trajectories."""

    @property
    def name(self) -> str:
        """What its scores are stored under."""
        ...

    def score(self, groups: Sequence[Group]) -> Scores:
        """One list per group, one score per trajectory, None where there is none."""
        ...


def verify(groups: Sequence[Group], verifier: Verifier) -> Scores:
    """Score ``groups`` and keep the scores in each trajectory's ``scores[verifier.name]``.

    Raises:
        DataError: The verifier returned another number of scores than there are trajectories.
    """
    scores = verifier.score(groups)
    if [len(row) for row in scores] != [len(group.trajectories) for group in groups]:
        raise DataError(f"verifier {verifier.name} returned another number of scores than it got answers")
    for group, row in zip(groups, scores, strict=True):
        for trajectory, score in zip(group.trajectories, row, strict=True):
            if score is not None:
                trajectory.scores[verifier.name] = score
    return scores


@dataclass(frozen=True, slots=True)
class Inline:
    """The score that the policy wrote behind its answer. Free, coarse, and noisy where it was sampled."""

    name: str = "inline"

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier`."""
        return [[t.scores.get("sampled") for t in group.trajectories] for group in groups]


@dataclass(frozen=True, slots=True)
class Soft:
    """The expectation over the score's tokens (or the likeliest score) behind the policy's own answer.

    One forward of the answers on their shared prompt, no sampling; ties practically disappear. An answer
    whose own score is malformed has none, as in training and evaluation.
    """

    policy: Policy
    decoding: Literal["soft", "greedy"] = "soft"

    @property
    def name(self) -> str:
        """``soft`` or ``greedy``."""
        return self.decoding

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier`."""
        prefixes = [[before_score(t) for t in group.trajectories] for group in groups]
        return _read(self.policy, [group.problem for group in groups], prefixes, self.decoding)


@dataclass(frozen=True, slots=True)
class Judge:
    """Any policy, asked about another one's answers in a pass of its own; read softly.

    It gets the text up to the score, never the score that the writer gave itself. ``continue`` shares the
    prompt among a problem's answers; ``ask`` has one prompt per answer.
    """

    policy: Policy
    name: str = "judge"
    form: Form = "continue"

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier`. An answer that could not be read, or that the judge cannot encode, has none."""
        if self.form == "continue":
            prefixes = [
                [_tokens(self.policy, text + OPENING) if text else None for text in answer_texts(group)]
                for group in groups
            ]
            return _read(self.policy, [group.problem for group in groups], prefixes, "soft")
        found: Scores = [[None] * len(group.trajectories) for group in groups]
        asked = _ask(self.policy, groups, RATE)
        opened = [_tokens(self.policy, OPENING)]
        readings = read_scores(self.policy, [prompt for _, prompt in asked], [opened] * len(asked))
        for ((b, g), _), [reading] in zip(asked, readings, strict=True):
            found[b][g] = reading.soft if reading else None
        return found


@dataclass(frozen=True, slots=True)
class Repeated:
    """The mean of K short re-scorings of each answer, sampled on its shared prefix.

    ``continue`` samples nothing but the score again: for many K it becomes `Soft`, which costs less; it is
    for engines that show no probabilities. With ``ask`` each re-scoring may think first, so K different
    trains of thought are averaged (GenRM, arXiv:2408.15240).
    """

    policy: Policy
    repeats: int = 4
    form: Form = "continue"
    temperature: float = 1.0
    max_new_tokens: int = 64
    seed: int = 0
    name: str = "repeated"

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier`. Malformed re-scorings are left out; an answer with none but those has none."""
        found: Scores = [[None] * len(group.trajectories) for group in groups]
        asked = _ask(self.policy, groups, CHECK) if self.form == "ask" else _continue(self.policy, groups)
        sampling = SamplingConfig(
            group_size=self.repeats,
            temperature=self.temperature,
            top_p=1.0,
            max_new_tokens=8 if self.form == "continue" else self.max_new_tokens,
        )
        seeds = [zlib.crc32(f"{self.seed}/{prompt.problem_id}/{g}".encode()) for (_, g), prompt in asked]
        drawn = self.policy.sample([prompt for _, prompt in asked], sampling, seeds=seeds)
        for ((b, g), _), samples in zip(asked, drawn, strict=True):
            texts = [token_ends(self.policy.tokenizer, sample.tokens)[0] for sample in samples]
            scores = [score for text in texts if (score := self._parse(text)) is not None]
            found[b][g] = sum(scores) / len(scores) if scores else None
        return found

    def _parse(self, text: str) -> float | None:
        if self.form == "continue":
            return parse_score(text.partition(CLOSING)[0]) if CLOSING in text else None
        return parse_tagged(text.partition(CLOSING)[0] + CLOSING, ("think", SCORE_TAG)).score


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Another verifier's scores as probabilities: what the stopping rule ``posterior`` takes them for.

    ``calibration`` is one of single scores, as `fit_calibration` makes it from all samples, not one of
    chosen answers, as ``selfverify calibrate`` does.
    """

    verifier: Verifier
    calibration: Calibration

    @property
    def name(self) -> str:
        """``calibrated:`` and the other's name."""
        return f"calibrated:{self.verifier.name}"

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier`."""
        return [
            [None if score is None else float(self.calibration(score)) for score in row]
            for row in self.verifier.score(groups)
        ]


def make_verifier(
    spec: str, policy: Policy, task: Task | None = None, second_turn: str = SECOND_TURN
) -> Verifier:
    """A verifier from its description; ``policy`` is the one that writes the answers.

    ``inline``, ``soft``, ``greedy``, ``repeated`` or ``repeated:K``, ``judge:MODEL``, ``ask:MODEL``, and
    ``judge:URL#MODEL`` for a model behind a server; with the ``task`` that reads answers ``turns`` or
    ``turns:K``, which asks ``second_turn``.

    Raises:
        ConfigError: It is none of these.
    """
    kind, _, rest = spec.partition(":")
    if spec == "inline":
        return Inline()
    if spec in ("soft", "greedy"):
        return Soft(policy, "soft" if spec == "soft" else "greedy")
    counted = not rest or (rest.isascii() and rest.isdigit() and 0 < int(rest) <= 256)
    if kind == "repeated" and counted:
        return Repeated(policy, int(rest or 4), name=spec)
    if kind == "turns" and counted and task is not None:
        return SecondTurns(policy, task, second_turn, int(rest or 4), name=spec)
    if kind in ("judge", "ask") and rest.startswith(("http://", "https://")):
        from selfverify.selection.server_judge import ServerJudge

        return ServerJudge.of(rest, spec)
    if kind in ("judge", "ask") and rest:
        judge = policy if rest == policy.config.path else Policy.load(policy.config.for_model(rest))
        return Judge(judge, spec, "ask" if kind == "ask" else "continue")
    raise ConfigError(
        f"there is no verifier {spec!r}; verifiers: inline, soft, greedy, repeated:K and turns:K (K at "
        "most 256), judge:MODEL, ask:MODEL, judge:URL#MODEL"
    )


def _read(
    policy: Policy, problems: Sequence[Problem], prefixes: Sequence[Sequence[Sequence[int] | None]], how: str
) -> Scores:
    readings = read_scores(policy, policy.encode(problems), prefixes)
    return [[None if r is None else float(getattr(r, how)) for r in row] for row in readings]


def answer_texts(group: Group) -> list[str]:
    """Each answer's text up to its score; empty for one that could not be read."""
    return [
        _answer_text(t) if t.parsed is not None and t.parsed.answer is not None else ""
        for t in group.trajectories
    ]


def _answer_text(trajectory: Trajectory) -> str:
    """The answer without what follows its last tag: the opened score, or the token that ended it."""
    text = answer_segment(trajectory).text.removesuffix(OPENING)
    ends = [match.end() for match in _CLOSED.finditer(text)]
    return text[: ends[-1]] if ends else text


def _tokens(policy: Policy, text: str) -> list[int]:
    ids: list[int] = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


Asked = list[tuple[tuple[int, int], Prompt]]
"""Prompts with the group and the trajectory that they are about."""


def _continue(policy: Policy, groups: Sequence[Group]) -> Asked:
    """Each answer's prompt with the answer behind it, up to where the score is written."""
    asked = []
    for b, (group, prompt) in enumerate(
        zip(groups, policy.encode([group.problem for group in groups]), strict=True)
    ):
        for g, text in enumerate(answer_texts(group)):
            if text:
                asked.append(((b, g), longer_prompt(policy, prompt, _tokens(policy, text + OPENING))))
    return asked


def _ask(policy: Policy, groups: Sequence[Group], request: str) -> Asked:
    """A conversation per answer: the problem, the answer, the request.

    An answer that cannot stand in a prompt (it spells an image token, or makes it too long) is left out.
    """
    asked = []
    for b, group in enumerate(groups):
        for g, text in enumerate(answer_texts(group)):
            if not text:
                continue
            turns: list[dict[str, Any]] = [
                {"role": "assistant", "content": [{"type": "text", "text": text}]},
                {"role": "user", "content": [{"type": "text", "text": request}]},
            ]
            problem = replace(group.problem, messages=[*group.problem.messages, *turns])
            try:
                [prompt] = policy.encode([problem])
            except DataError as error:
                logger.warning("answer %d of problem %s is not judged: %s", g, problem.id, error)
                continue
            asked.append(((b, g), prompt))
    return asked
