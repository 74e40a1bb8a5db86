"""`math`: problems of a data file with one short answer, compared by rules and by math-verify (discrete).

ADPO's first domain (Table 1, Eq. 2). A row has ``question`` and ``answer``, and may have ``id``, ``images``,
``options`` (multiple choice), ``alternatives`` (further right answers), ``answer_type`` (integer, float,
list, text; others say nothing), ``precision`` and ``unit`` as MathVista has them, ``category``, ``source``,
and ``solution`` for a cold start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field

from selfverify.errors import ConfigError, DataError
from selfverify.rollouts.tags import Tagged, parse_tagged
from selfverify.rollouts.types import Problem
from selfverify.tasks.base import UNREADABLE, Demonstration, Judged
from selfverify.tasks.canvas import Split
from selfverify.tasks.math_answer import Kind, Target, answer_key, compare, decide
from selfverify.tasks.math_choice import find_target, read_choice, read_options, right_letters
from selfverify.tasks.math_text import final_expression
from selfverify.tasks.row_fields import RowTaskConfig, categories_of
from selfverify.tasks.rows import Row, Rows, Splits, row_images, with_images
from selfverify.workers.pool import WorkerPool

INSTRUCTION = """\
Work the problem out inside <think></think>, then give nothing but your final answer inside \
<answer></answer>.
Now grade yourself: inside <score></score> write a number from 0 to 1 that tells how likely your answer \
is to be right. Go close to 1 when you trust it and close to 0 when you do not.
Your reply has this form:
<think>your reasoning</think>
<answer>your answer</answer>
<score>your score</score>"""
"""ADPO Table 1's request in our words."""

_IMPLICIT = dict.fromkeys("ABCDEFGH", "")
"""Options that stand in the question's text, where only the letters are known."""


class MathConfig(RowTaskConfig):
    """Where the rows are, how they are asked, and the limits of judging."""

    instruction: str = Field(INSTRUCTION, description="What follows every question: the output's format.")
    hints: bool = Field(
        True, description="Say which form the answer has, where the row tells: a letter, decimals, a list."
    )
    max_answer_chars: int = Field(
        2000, ge=1, le=100_000, description="A longer answer is unreadable, whatever stands in it."
    )
    timeout_s: float = Field(5.0, gt=0, description="Time limit of one comparison by math-verify.")
    workers: int = Field(1, ge=1, description="Processes that compare, a batch at a time.")


class Math:
    """1 for an answer that equals the target, else 0. See ``docs/tasks.md`` for the rules.

    Args:
        config: The options.
        rows: Rows by split, instead of the paths of ``config``.
    """

    name = "math"
    kind: Literal["discrete"] = "discrete"
    tags = ("think", "answer", "score")

    def __init__(self, config: MathConfig | None = None, rows: Mapping[Split, Rows] | None = None) -> None:
        self.config = config or MathConfig()
        self.splits = Splits(self.config.files, rows)
        self._pool: WorkerPool | None = None

    def count(self, split: Split) -> int:
        """See `Task.judge`."""
        return self.splits.count(split)

    def broken(self, split: Split) -> list[str]:
        """See `Splits.broken`."""
        return self.splits.broken(split)

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem` and `Splits.row`.

        Raises:
            DataError: The row lacks a question or an answer, or what it has does not fit together.
        """
        row, id = self.splits.row(split, seed, index)
        name = f"{self.name}/{id}"
        question, answer = _string(row, "question", name), _string(row, "answer", name)
        others = _alternatives(row, name)
        meta: dict[str, Any] = {
            "question": question,
            "answer": answer,
            "categories": categories_of(row),
            **{key: row[key] for key in ("category", "source", "solution") if row.get(key) is not None},
        }
        if row.get("options"):
            options = read_options(row["options"], name)
            by_text = row.get("answer_type") == "text"
            targets = [find_target(text, options, by_text, name) for text in (answer, *others)]
            target = targets[0]
            right = set().union(*(right_letters(letter, options) for letter in targets))
            meta |= {"options": options, "right": sorted(right)}
            question = _with_options(question, options)
        else:
            target, *further = [_expression(text, name) for text in (answer, *others)]
            meta |= _form(row, name) | ({"alternatives": further} if further else {})
        images = row_images(row, name)
        asked = "\n".join(filter(None, [question, _hint(meta) if self.config.hints else ""]))
        text = f"{asked}\n{self.config.instruction}"
        return Problem(name, with_images(text, len(images), name), images, target, meta)

    def prepare(self, answers: Sequence[tuple[Problem, Tagged]]) -> None:
        """Have the workers compare a whole batch at once; `judge` then finds what they said in the cache.

        The caller's process goes on alone where there is one worker, or nothing to ask.
        """
        if self.config.workers == 1:
            return
        calls: dict[tuple[str, str], None] = {}
        for problem, tagged in answers:
            answer = self._expression(problem, tagged) if tagged.answer_ok else None
            for target in _targets(problem) if answer else ():
                found = compare(target, answer or "")
                if found.answer:
                    calls[found.gold, found.answer] = None
        if calls:
            self._workers().map(calls)

    def _expression(self, problem: Problem, tagged: Tagged) -> str | None:
        """The expression that an answer is; None for one that is too long, and of an option."""
        text = tagged.fields.get("answer", "")
        if len(text) > self.config.max_answer_chars or _options(problem) is not None:
            return None
        return final_expression(text)

    def judge(self, problem: Problem, tagged: Tagged) -> Judged:
        """Eq. 2: does the answer equal the target?

        An answer that math-verify cannot compare in time, at two tries, is wrong, unless the target alone is
        too hard, too: leaving it out of training would let a model skip problems by writing what hangs. One
        whose worker died is ``unjudged``.
        """
        text, options = tagged.fields.get("answer", ""), _options(problem)
        if options is not None and len(text) <= self.config.max_answer_chars:
            return _judge_choice(problem, read_choice(text, options))
        answer = self._expression(problem, tagged)
        if not answer:
            return UNREADABLE
        right, value, unjudged = False, None, ""
        for target in _targets(problem):
            verdict, number = self._verdict(target, answer)
            right = right or verdict is True
            value = number if value is None else value
            unjudged = verdict if isinstance(verdict, str) else unjudged
        # The target has no part in the key: a vote must not know it.
        key = answer_key(answer, problem.meta.get("precision"), value)
        return Judged(float(right), right, answer, key, "" if right else unjudged)

    def _verdict(self, target: Target, answer: str) -> tuple[bool | str, float | None]:
        """Whether it is right, or why there is no verdict; and the value of an expression that has one."""
        found = compare(target, answer)
        if not found.answer:
            return found.verdict == "right", None
        pool = self._workers()
        outcome = pool.call(found.gold, found.answer)
        if outcome.done:
            told = outcome.value
            equal = told["read"] and decide(target, told["equal"], told["gold"], told["answer"])
            return found.verdict == "right" or equal, told["answer"]
        if found.verdict == "right":
            return True, None
        if outcome.status == "died":
            return outcome.reason, None
        own = pool.call(found.gold, found.gold)
        if own.done:
            return False, None
        return f"the target {target.text[:60]!r} cannot be compared: {own.reason}", None

    def _workers(self) -> WorkerPool:
        if self._pool is None:
            try:
                from selfverify.workers import math_answer
            except ImportError as error:
                raise ConfigError(
                    f"task math compares answers with math-verify, which cannot be imported ({error}); "
                    "pip install 'selfverify[math]'"
                ) from None
            c = self.config
            self._pool = WorkerPool(
                math_answer.compare, c.timeout_s, c.workers, cache=100_000, max_input=20_000
            )
        return self._pool

    def counters(self) -> dict[str, float]:
        """See `WorkerPool.counters`; empty until math-verify was asked something."""
        return self._pool.counters() if self._pool is not None else {}

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """The row's ``solution`` as reasoning, then the target.

        Raises:
            ConfigError: A wrong one is asked for: the data has none.
            DataError: The row has no solution, or one with tags of its own.
        """
        if wrong:
            raise ConfigError("task math has no wrong demonstrations; set method.wrong=0")
        solution = problem.meta.get("solution")
        if not isinstance(solution, str) or not solution.strip():
            raise DataError(
                f"{problem.id}: the row has no `solution`, so there is no demonstration to learn from; a "
                "cold start needs data with worked solutions"
            )
        tagged = parse_tagged(solution, ("think", "answer"))
        reasoning = (tagged.fields["think"] if tagged.answer_ok else solution).strip()
        answer = problem.target if "options" in problem.meta else problem.meta["answer"]
        text = f"<think>{reasoning}</think><answer>{answer}</answer>"
        if not parse_tagged(text, ("think", "answer")).answer_ok:
            raise DataError(
                f"{problem.id}: the row's `solution` or `answer` holds tags of the answer's format"
            )
        return Demonstration([("answer", text)])


def _options(problem: Problem) -> Mapping[str, str] | None:
    """A problem's options; None where there are none."""
    options: Mapping[str, str] | None = problem.meta.get("options")
    return _IMPLICIT if options is None and problem.target in _IMPLICIT else options


def _judge_choice(problem: Problem, letter: str | None) -> Judged:
    if letter is None:
        return UNREADABLE
    meta = problem.meta
    right = letter in (meta["right"] if "right" in meta else (problem.target, *meta.get("alternatives", ())))
    return Judged(float(right), right, letter, letter)


def _string(row: Row, key: str, name: str) -> str:
    value = row.get(key)
    if isinstance(value, (list, tuple)):
        value = json.dumps(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).strip():
        raise DataError(f"{name}: `{key}` is {value!r}, not a text")
    return str(value)


def _form(row: Row, name: str) -> dict[str, Any]:
    """``answer_type``, ``precision`` and ``unit`` as far as the row has them."""
    kind, precision, unit = row.get("answer_type"), row.get("precision"), row.get("unit")
    if precision is not None:
        # Tables write it as 1.0, and as NaN where there is none.
        if isinstance(precision, bool) or not isinstance(precision, (int, float)):
            raise DataError(f"{name}: precision is {precision!r}, not a number of decimals")
        if precision != precision:
            precision = None
        elif precision != int(precision) or not 0 <= precision <= 12:
            raise DataError(f"{name}: precision is {precision!r}, not a number of decimals from 0 to 12")
    found = {
        "answer_type": kind if kind in get_args(Kind) else None,
        "precision": None if precision is None else int(precision),
        "unit": str(unit).strip() if unit else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _alternatives(row: Row, name: str) -> list[str]:
    """Further right answers; the first one may be among them again."""
    found = row.get("alternatives") or []
    if not isinstance(found, (list, tuple)):
        raise DataError(f"{name}: alternatives is {found!r:.60}, not a list")
    return [_string({"alternatives": text}, "alternatives", name) for text in found if text != row["answer"]]


def _expression(answer: str, name: str) -> str:
    found = final_expression(answer)
    if not found:
        raise DataError(f"{name}: the answer {answer[:60]!r} holds no one expression to compare with")
    return found


def _targets(problem: Problem) -> list[Target]:
    meta = problem.meta
    form = (meta.get("answer_type"), meta.get("precision"), meta.get("unit", ""))
    return [Target(text, *form) for text in (problem.target, *meta.get("alternatives", ()))]


def _with_options(question: str, options: Mapping[str, str]) -> str:
    """The question with its options, unless it lists them already."""
    flat = " ".join(question.split())
    listed = all(
        any(f"{mark} {' '.join(text.split())}" in flat for mark in (f"{a}.", f"({a})", f"{a})", f"{a}:"))
        for a, text in options.items()
    )
    return question if listed else "\n".join([question, *(f"{a}. {text}" for a, text in options.items())])


def _hint(meta: Mapping[str, Any]) -> str:
    if "options" in meta:
        return "Answer with the letter of the right option."
    match meta.get("answer_type"):
        case "integer":
            return "The answer is an integer."
        case "float" if "precision" in meta:
            return f"Give the answer as a decimal number, rounded to {meta['precision']} decimals."
        case "list":
            return "The answer is a list such as [1, 2, 3]."
    return ""
