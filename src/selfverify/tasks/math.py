r"""`math`: problems of a data file with one short answer, compared by rules and math-verify (discrete).

A row has ``question`` and ``answer``, and may have ``id``, ``images``, ``options`` (multiple choice),
``alternatives`` (further right answers), ``answer_type`` (integer, float, list, text; others say nothing),
``precision`` and ``unit`` as MathVista has them, ``category``, ``source``, and ``solution`` for a cold start.

An answer has tags around it, as ADPO's (its Table 1), or is free text that ends in it, as AdaPO's models
answer ("The correct answer is: D. 90", ``\boxed{D}``). Comparing runs in processes that can be killed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from selfverify.core.errors import ConfigError, DataError, needs
from selfverify.core.problem import Problem, Split
from selfverify.core.process_pool import WorkerPool
from selfverify.core.tags import SCORE_TAG, Tagged, parse_tagged
from selfverify.data.fields import Row
from selfverify.data.questions import convert_vqa
from selfverify.tasks.base import UNREADABLE, Demonstration, ScoredTaskConfig, Verdict
from selfverify.tasks.math_answer import Kind, Target, answer_key, compare, compare_values, decide
from selfverify.tasks.math_numbers import DENIALS, tokens
from selfverify.tasks.math_text import committed, final_expression, plain, unwrap, words
from selfverify.tasks.math_values import Named, Number, Value, read
from selfverify.tasks.row_task import IMAGE_MARK, RowSequence, RowTask, RowTaskConfig, with_images

Form = Literal["think-answer", "answer", "free"]

TAGS: dict[Form, tuple[str, ...]] = {"think-answer": ("think", "answer"), "answer": ("answer",), "free": ()}
"""The tags of each form, without that of the score."""

_ASKED: dict[Form, str] = {
    "think-answer": "Work the problem out inside <think></think>, then give nothing but your final answer "
    "inside <answer></answer>.",
    "answer": "Give nothing but your final answer inside <answer></answer>.",
    "free": 'Work the problem out. End with a line that says "The answer is: " and your final answer.',
}
_GRADE = (
    "Now grade yourself: inside <score></score> write a number from 0 to 1 that tells how likely your answer "
    "is to be right. Go close to 1 when you trust it and close to 0 when you do not."
)
_SHOWN = {
    "think": "<think>your reasoning</think>",
    "answer": "<answer>your answer</answer>",
    SCORE_TAG: "<score>your score</score>",
}


def request(form: Form, score: bool) -> str:
    """Return the request for a form, in our words; with ``score`` ADPO Table 1's, which asks for one."""
    tags = [*TAGS[form], *([SCORE_TAG] if score else [])]
    parts = [_ASKED[form], *([_GRADE] if score else [])]
    if tags:
        parts += ["Your reply has this form:", *(_SHOWN[tag] for tag in tags)]
    return "\n".join(parts)


def reminder(tags: tuple[str, ...]) -> str:
    """Return what names the form once more, in the request for a second turn."""
    if not tags:
        return 'End with a line that says "The answer is: " and your final answer.'
    return f"Keep to the form {''.join(_SHOWN[tag] for tag in tags)}."


MAX_ANSWER_CHARS = 2000
"""A longer answer is unreadable."""
_IMPLICIT = dict.fromkeys("ABCDEFGH", "")
"""The options of a question that lists them in its text: only their letters are known."""


class MathRowsConfig(RowTaskConfig):
    """Where the rows are, and the limits of judging."""

    timeout_s: float = Field(5.0, gt=0)
    """Time limit of one comparison by math-verify."""

    workers: int = Field(1, ge=1)
    """Processes that compare answers; with several, a whole batch at once."""


class MathConfig(ScoredTaskConfig, MathRowsConfig):
    """Where the rows are, how they are asked, and the limits of judging."""

    form: Form = "think-answer"
    """The form of answers: reasoning and answer in tags (ADPO), the answer alone in its tag, or `free`: any
    text that ends in an answer, also a boxed one (AdaPO)."""

    instruction: str | None = None
    """The request for the answer's form, which follows every question; null asks for `form`, and for a score
    if there is to be one."""

    solved: bool = False
    """Train only on rows whose `solution` can be shown, as supervised fine-tuning needs them."""

    @model_validator(mode="after")
    def _check_form(self) -> MathConfig:
        if self.form == "free" and self.score:
            raise ValueError("form: free has no place for a score; set score: false, or form: think-answer")
        return self


class Math(RowTask):
    """Give the answer to a problem; the reward is 1 if it equals the target (docs/tasks-math.md), else 0.

    This is ADPO's first domain (Table 1, Eq. 2).

    Args:
        config: The task's options, the data files among them.
        rows: Rows in memory by split, instead of files.
    """

    convert = staticmethod(convert_vqa)
    needs = ("question", "answer")
    name = "math"
    summary = "maths problems of a data file, short answers (discrete)"
    config_class = MathConfig
    packages: ClassVar[Mapping[str, str]] = {"math": "math_verify"}
    config: MathConfig

    def __init__(
        self, config: MathConfig | None = None, rows: Mapping[Split, RowSequence] | None = None
    ) -> None:
        super().__init__(config, rows)
        form, score = self.config.form, self.config.score
        self.tags = (*TAGS[form], *((SCORE_TAG,) if score else ()))
        self._asked = request(form, score) if self.config.instruction is None else self.config.instruction
        self._pool: WorkerPool | None = None

    def ask_again(self, words: str) -> str:
        return f"{words} {reminder(self.tags)}"

    def ask(self, row: Row, id: str) -> Problem:
        question, answer, options = row["question"], row["answer"], row["options"]
        answers = [answer, *(other for other in row.get("alternatives", ()) if other != answer)]
        kept = ("question", "answer", "category", "categories", "source", "solution", "target_boxes")
        meta: dict[str, Any] = {key: row[key] for key in kept if row.get(key) is not None}
        if options:
            # An option that is an image is called as its place is called in words.
            asked_options, options = (
                options,
                {a: IMAGE_MARK.sub(_called, text) for a, text in options.items()},
            )
            target = answer
            right = set().union(*(right_letters(letter, options) for letter in answers))
            meta |= {"options": options, "right": sorted(right)}
            question = _with_options(question, asked_options)
        else:
            target, *_ = [_expression(text, id) for text in answers]
            meta |= {key: row[key] for key in ("precision", "unit") if row.get(key) is not None}
            if row["answer_type"] in get_args(Kind):
                meta["answer_type"] = row["answer_type"]
            if answers[1:]:
                meta["alternatives"] = answers[1:]
        images = [image.open() for image in row["images"]]
        asked = "\n".join(filter(None, [question, form_hint(meta)]))
        text = f"{asked}\n{self._asked}"
        return Problem(id, with_images(text, len(images), id), images, target, meta)

    def prepare(self, answers: Sequence[tuple[Problem, Tagged]]) -> None:
        """Have the workers compare a whole batch at once; `judge` then finds their verdicts in the cache.

        With one worker, or nothing to ask, nothing happens.
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
        """Return the expression that an answer is; None for a long answer, and where there are options."""
        text = self._written(tagged)
        if len(text) > MAX_ANSWER_CHARS or _options(problem) is not None:
            return None
        return final_expression(text)

    def _written(self, tagged: Tagged) -> str:
        """Return what was written as the answer; empty where a free text states none."""
        text = tagged.fields.get("answer", "")
        return (committed(text) or "") if self.config.form == "free" else text

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Reward an answer that equals the target (ADPO Eq. 2).

        An answer that math-verify cannot compare in time, at two tries, is wrong, unless the target alone is
        too hard, too: leaving it out of training would let a model skip problems by writing what hangs. One
        whose worker died is ``unjudged``.
        """
        text, options = self._written(tagged), _options(problem)
        if options is not None and len(text) <= MAX_ANSWER_CHARS:
            return _judge_choice(problem, read_choice(IMAGE_MARK.sub(_called, text), options))
        answer = self._expression(problem, tagged)
        if not answer:
            return UNREADABLE
        right, value, unjudged = False, None, ""
        for target in _targets(problem):
            verdict, number = self._verdict(target, answer)
            right = right or verdict is True
            value = number if value is None else value
            unjudged = verdict if isinstance(verdict, str) else unjudged
        # The target has no part in the key: a vote must not know the target.
        key = answer_key(answer, problem.meta.get("precision"), value)
        return Verdict(float(right), right, answer, key, "" if right else unjudged)

    def _verdict(self, target: Target, answer: str) -> tuple[bool | str, str | None]:
        """Return whether the answer is right, or why there is no verdict; and its value if it has one."""
        found = compare(target, answer)
        if not found.answer:
            return found.verdict == "right", None
        pool = self._workers()
        outcome = pool.call(found.gold, found.answer)
        if outcome.done:
            told = outcome.value
            equal = told["read"] and decide(target, told)
            return found.verdict == "right" or equal, told.get("value", told["answer"])
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
            with needs("task math compares answers with math-verify, which cannot be imported", "math"):
                from selfverify.tasks import math_worker
            c = self.config
            self._pool = WorkerPool(
                math_worker.compare, c.timeout_s, c.workers, cache=100_000, max_input=20_000
            )
        return self._pool

    def counters(self) -> dict[str, float]:
        """Return the workers' counters; empty until math-verify was asked something."""
        return self._pool.counters() if self._pool is not None else {}

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Show the row's ``solution`` as reasoning, then the target.

        Raises:
            ConfigError: A wrong demonstration is asked for, which the data does not have.
            DataError: The row has no solution, or with it the demonstration would be read otherwise.
        """
        if wrong:
            raise ConfigError("task math has no wrong demonstrations; set method.wrong=0")
        solution = problem.meta.get("solution")
        if solution is None:
            raise DataError(
                f"{problem.id}: the row has no `solution`, so there is no demonstration to learn from; a "
                "cold start needs data with worked solutions"
            )
        answer = problem.target if "options" in problem.meta else problem.meta["answer"]
        text = self._shown(str(solution), str(answer))
        if text is None:
            raise DataError(
                f"{problem.id}: the row's `solution` or `answer` holds tags of the answer's format, or its "
                "`answer` cannot end a free text"
            )
        return Demonstration([("answer", text)])

    def _shown(self, solution: str, answer: str) -> str | None:
        """Return a demonstration; None if it would not be read as it is meant."""
        match self.config.form:
            case "free":
                text = f"{solution.rstrip()}\nThe answer is: {answer}"
                return text if committed(text) == answer.strip() else None
            case "answer":
                text = f"<answer>{answer}</answer>"
            case _:
                text = f"<think>{solution}</think><answer>{answer}</answer>"
        return text if parse_tagged(text, TAGS[self.config.form]).answer_ok else None

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Whether training takes a row; with ``solved`` a row that can be demonstrated."""
        solution = row.get("solution")
        return solution is not None and self._shown(str(solution), str(row["answer"])) is not None

    @property
    def takes_all(self) -> bool:
        return not self.config.solved


def _called(mark: re.Match[str]) -> str:
    return f"image {mark[1]}" if mark[1] else mark[0]


def _options(problem: Problem) -> Mapping[str, str] | None:
    """Return a problem's options by letter; None where there are none."""
    options: Mapping[str, str] | None = problem.meta.get("options")
    return _IMPLICIT if options is None and problem.target in _IMPLICIT else options


def _judge_choice(problem: Problem, letter: str | None) -> Verdict:
    if letter is None:
        return UNREADABLE
    meta = problem.meta
    right = letter in (meta["right"] if "right" in meta else _references(problem))
    return Verdict(float(right), right, letter, letter)


def _expression(answer: str, name: str) -> str:
    found = final_expression(answer)
    if not found:
        raise DataError(f"{name}: the answer {answer[:60]!r} holds no one expression to compare with")
    return found


def _targets(problem: Problem) -> list[Target]:
    meta = problem.meta
    form = (meta.get("answer_type"), meta.get("precision"), meta.get("unit", ""))
    return [Target(text, *form) for text in _references(problem)]


def _references(problem: Problem) -> list[str]:
    return [problem.target, *(final_expression(other) for other in problem.meta.get("alternatives", ()))]


def _with_options(question: str, options: Mapping[str, str]) -> str:
    """Return the question with its options, unless it lists them already."""
    flat = " ".join(question.split())
    listed = all(
        any(f"{mark} {' '.join(text.split())}" in flat for mark in (f"{a}.", f"({a})", f"{a})", f"{a}:"))
        for a, text in options.items()
    )
    return question if listed else "\n".join([question, *(f"{a}. {text}" for a, text in options.items())])


def form_hint(meta: Mapping[str, Any]) -> str:
    """Return which form a problem's answer has, in words for a model; empty where any form will do."""
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


# ---------------------------------------------------------------------------------------- multiple choice

# math-verify finds no ``B`` in ``\\boxed{B}``, and searching a text for letters pays for "A or B". Here the
# whole answer has to be a letter, an option's text or value, or a letter with its own option's text.

_AFFIRMED = {"is", "the", "correct", "right", "best", "final", "answer", "option", "choice"}
_JOINS = {"or", "and", "nor", "vs", "option", "choice", *"/&,;|+-()[].:"}
"""The text between letters that are listed: ``b. or c``, ``(B) / (c)``."""


def read_choice(text: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that ``text`` commits to; None if it commits to none, or to several.

    Accepted are ``B``, ``(b)``, ``B.``, ``\\boxed{B}``, ``Answer: B``, ``Option B``, an option's text or
    value, and ``B. its text``. The text behind the letter must not deny it, and not be or name another
    option.
    """
    content = final_expression(text)
    if not content:
        return None
    letter, mark, rest = _letter(content)
    if letter in options and not rest:
        return letter  # even if it is another option's text: letters were asked for
    named = mark == "=" and not any("=" in text for text in options.values())
    by_text = _by_text(content, options)
    if letter not in options or (by_text is not None and not named):
        return by_text
    said = _by_text(rest, options) or _by_text(rest.removeprefix("(").removesuffix(")"), options)
    if said is not None:
        return letter if _is_alike(options[said], options[letter]) else None
    told = words(rest).split() or [""]
    if rest in ("选项", "项") or (told[0] == "is" and {*told} <= _AFFIRMED):
        return letter
    denied = told[1 if told[0] in ("is", "was", "are") else 0 :][:1]
    if not mark or {*denied} & DENIALS:
        return None
    return letter if _names_no_other(rest, letter, options) else None


def _letter(content: str) -> tuple[str, str, str]:
    """Return the letter with which an answer begins, or nothing; the mark that sets it apart; the rest."""
    for lead in ("option ", "choice "):
        content = content[len(lead) :].lstrip() if content.casefold().startswith(lead) else content
    bracket = content[:1] if content[:1] in ("(", "[") else ""
    letter, after = content[len(bracket) :][:1].upper(), content[len(bracket) + 1 :]
    if after[:1] not in (")", "]") if bracket else after[:1].isascii() and after[:1].isalpha():
        return "", "", ""
    rest = after[len(bracket) :].lstrip()
    dash = after[:1] == " " and rest.startswith("- ")
    mark = rest[:1] if dash or rest[:1] in {*".):="} else ""
    return letter, mark or bracket, unwrap(rest.removeprefix(mark))


def right_letters(target: str, options: Mapping[str, str]) -> set[str]:
    """Return the target's letter, and the letters of options with the same text."""
    return {key for key, text in options.items() if key == target or _is_alike(text, options[target])}


def _by_text(content: str, options: Mapping[str, str]) -> str | None:
    """Return the option with this text, else the one of this value; None if different ones are, or the value
    stands beside another option's letter ("18 (B)").
    """
    named = {part.text for part in tokens(content)[-2:]} & options.keys()
    for same in (_is_alike, _is_equal):
        found = [letter for letter, text in options.items() if same(text, content)]
        if found:
            alike = all(_is_alike(options[f], options[found[0]]) for f in found)
            return found[0] if alike and (same is _is_alike or named <= {*found}) else None
    return None


def _is_alike(a: str, b: str) -> bool:
    """Whether texts have the same words, or are spellings of one value with its unit."""
    (words_a, x), (words_b, y) = _spelt(a), _spelt(b)
    return bool(words_a) and (words_a == words_b or (x is not None and x == y))


def _is_equal(a: str, b: str) -> bool:
    x, y = _spelt(a)[1], _spelt(b)[1]
    if isinstance(x, Number) and isinstance(y, Number) and x.percent != y.percent:
        return False  # two options may differ in the percent sign only
    return x is not None and y is not None and compare_values(x, y, Target("")).verdict == "right"


@lru_cache(maxsize=4096)
def _spelt(text: str) -> tuple[str, Value | None]:
    """Return a text as words and as a value."""
    text = unwrap(plain(text))
    value = read(text)
    return words(text), value.value if isinstance(value, Named) and value.rounded is None else value


def _names_no_other(rest: str, letter: str, options: Mapping[str, str]) -> bool:
    """Whether an explanation after "B." names neither another letter nor another option's text.

    Small letters are words and variables, but for those that are listed behind the first one or stand alone.
    """
    said = [part.text.strip("\\'") for part in tokens(rest)]
    listed = list(takewhile(lambda text: len(text) == 1 or text.casefold() in _JOINS, said))
    named = {text for text in said if len(text) == 1 and text.isupper()}
    if listed == said or said[0].casefold() in _JOINS:
        named |= {text.upper() for text in listed}
    if named & (options.keys() - {letter}):
        return False
    told, own = f" {words(rest)} ", _spelt(options[letter])[0]
    others = (_spelt(text)[0] for key, text in options.items() if key != letter)
    return not any(text and text not in own and text in told for text in others)
