"""Who says whether the answers of traces are right: the task's rules, or a model behind a server.

Rules compare words. They are right about numbers, choices and single words (`settled_by_rules`); by them "A
man is riding a bike" is wrong where "The man is riding a bicycle" is wanted, and would be learnt as the worse
side of a pair. All other answers, right and wrong ones alike, are judged by a model (`judge_looks`), as VTS-V
§4.1 judges the right ones (``llm_as_a_judge``).

``FOLDER/verdicts.jsonl`` has the verdicts, each under the number of the prompt that was answered. Equal
answers to one question are judged once, and what is asked again is known.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfverify.clients.replies import ending, text_of, usable_choices
from selfverify.core import event_loop
from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.core.jsonl_store import JsonlStore, StrictRow, open_journal, read_journal
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.experiments.command_config import TeacherConfig
from selfverify.tasks.math import read_choice
from selfverify.tasks.math_text import final_expression
from selfverify.visual.traces import VisualTrace

if TYPE_CHECKING:
    from selfverify.clients.openai_client import OpenAIClient

VERDICTS = "verdicts.jsonl"
AT_ONCE = 32
"""Answers that are judged at the same time."""
TEMPERATURE = 0.7
"""Of several votes; a single one is greedy."""
_ASKED = (
    "A question about an image was answered. Say whether the answer means the same as the reference. Details "
    "that the reference leaves open do not matter; what contradicts it does.\n\n"
    "Question: {question}\n\nReference: {reference}\n\nAnswer: {answer}\n\n"
    "Reply with one word: CORRECT or INCORRECT."
)
_WORD = re.compile(r"(?<![^\W_])(?:IN)?CORRECT(?![^\W_])")
_FIRST = re.compile(r"[\W_]*(?P<word>(?:IN)?CORRECT)[*_`]*\s*(?:[.,;!(\n-]|$|(?:BECAUSE|SINCE)\b)")
"""A verdict that reasons may follow; "correct answer" and '"correct": false' are none."""
_LAST = re.compile(
    r"(?P<before>(?:.*(?:[.:;!=。：]|\b(?:IS|ARE|AS|SO|IT['’]S|THAT['’]S|THUS|HENCE|THEREFORE|CLEARLY|YES|"
    r"IST|EST|ES|VERDICT|ANSWER|BOXED|TEXT)\b))?[\W_]*)(?:IN)?CORRECT(?:[^\w?]|_)*"
)
"""A verdict at the end; any other word right before it may doubt it or take it back, in any language."""
_TAGS = re.compile(r"</?\w+>|<\|\w+\|>")
_HEDGED = re.compile(
    r"\b(?:NOT|NO(?!,)|NON|NEVER|CANNOT|\w+N['’]T|NEITHER|NOR|LESS|IF|WHETHER|UNLESS|EXCEPT|ONLY|"
    r"(?:ANY|NO)THING BUT|PERHAPS|POSSIBLY|DOUBT\w*|UNSURE|UNCLEAR|WRONG|FALSE|FAIL\w*|LACK\w*|FAR FROM|"
    r"CLOSE|HARDLY|BARELY|SEMI|HALF|PART\w*|SOMEWHAT|MOSTLY|LARGELY|NEARLY|ALMOST|ROUGHLY)\b|"
    r"\b(?:WOULD|COULD|MIGHT|MAY|SHOULD)\b[^,.;:]*$|\b(?:IN|UN)[\W_]*$|\bREFERENCE (?:IS|WAS)\W*$|"
    r"[不没沒未非无無否错錯部半]"
)
"""Words before a verdict that take it back, doubt it, or say it of something else."""
_TAKEN_BACK = re.compile(
    r"(?:[^\w.!]|_)*(?:BUT|ONLY|IN PART|PART\w*|IF|EXCEPT|UNLESS|(?:AL)?THOUGH|HOWEVER|NO|NOT|"
    r"MOSTLY|NEARLY|ALMOST|HALF|WRONG|FALSE)\b"
)
"""The beginning of what takes a verdict back behind it, in the same sentence."""
_ENDED = re.compile(r"[.!?:;。]\W*$")
_FEW = 3
"""Words of a line that belongs to the next one also where it ends as sentences do ("Partly.")."""
_OF_ONE = (400, 413, 422)
"""Statuses with which a server refuses one prompt, such as one that is too long for it."""
LONGEST_ANSWER = 20_000
"""Characters of an answer that is judged."""
_LETTER = re.compile(r"[A-H]")
_UNSPACED = re.compile(
    r"[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
    r"\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""Letters of scripts that leave no space between words."""


def asked_and_wanted(problem: Problem) -> dict[str, Any]:
    """Return all of a problem that a judge of answers has to know, in JSON's types."""
    # As the row has it: a target that rules compare has lost its signs of money and its words around.
    target = problem.meta.get("answer", problem.target)
    about = {"question": problem.meta.get("question"), "target": target}
    about |= {name: problem.meta[name] for name in ("options", "alternatives") if problem.meta.get(name)}
    if further := [letter for letter in problem.meta.get("right", ()) if letter != problem.target]:
        about["alternatives"] = further  # options of one meaning
    return about if isinstance(problem.target, str) else {"question": about["question"]}


def settled_by_rules(about: Mapping[str, Any], answer: str | None) -> bool:
    """Whether the task's rules say if an answer is right.

    They do where all references and the answer are each one number, or each one word, where one of the
    problem's options is chosen, and where the reference is no text, such as a box.
    """
    target, options = about.get("target"), about.get("options")
    if not isinstance(target, str):
        return True
    if answer is None:
        return False
    target, *others = (final_expression(one) or one for one in (target, *about.get("alternatives", ())))
    if options or _LETTER.fullmatch(target):
        return read_choice(answer, options or dict.fromkeys("ABCDEFGH", "")) is not None
    compared = (target, *others, answer)
    # A number and a word, such as 4 and four, may be the same.
    alike = len({any(map(str.isnumeric, t)) for t in compared}) == 1
    return alike and all(len(t.split()) == 1 and not _UNSPACED.search(t) for t in compared)


def judge_prompt(about: Mapping[str, Any], trace: VisualTrace) -> str:
    """Return the request to judge an answer; of a turn in which none could be read, the whole turn.

    Raises:
        DataError: The problem has no question in words.
    """
    if about.get("question") is None:
        raise DataError(f"{trace.id}: its problem has no question in words, so that no model can judge it")
    options = about.get("options") or {}
    listed = "\n".join(f"{letter}. {text}" for letter, text in options.items())
    wanted = [about["target"], *about.get("alternatives", ())]
    reference = " or: ".join(f"{one}. {options[one]}" if one in options else str(one) for one in wanted)
    answer = trace.turns[-1]["content"] if trace.answer is None else trace.answer
    return _ASKED.format(
        question="\n".join(filter(None, [str(about["question"]), listed])), reference=reference, answer=answer
    )


def number_of(prompt: str) -> int:
    """Return the number that a prompt has in ``verdicts.jsonl``: 60 bits of its hash."""
    return int(hashlib.blake2b(prompt.encode("utf-8", "replace"), digest_size=8).hexdigest()[:15], 16)


@dataclass(frozen=True, slots=True)
class OnAnswer(StrictRow):
    """A line of ``verdicts.jsonl``.

    Args:
        index: The prompt's number.
        trace: The first trace with this answer.
        votes: What the model has said: right, wrong, or neither.
        said: Its words in the first vote that says neither.
    """

    index: int
    trace: str
    votes: list[bool | None] = field(default_factory=list)
    said: str = ""

    @property
    def right(self) -> bool | None:
        """The verdict of more than half of the votes; None where there is none."""
        return next((v for v in (True, False) if self.votes.count(v) > len(self.votes) / 2), None)


class Verdicts:
    """A folder's verdicts by the prompt's number.

    Args:
        path: The journal.
        settings: How the model is asked, to append verdicts; None reads those that are there.

    Raises:
        ConfigError: There is no journal to read, or it was written under other settings.
        DataError: It is damaged.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.known: dict[int, bool | None] = {}
        self._store: JsonlStore | None = None
        if settings is not None:
            self._store, self.known = open_journal(path, OnAnswer, settings, brief=attrgetter("right"))
        elif path.is_file():
            _, self.known = read_journal(path, OnAnswer, brief=attrgetter("right"))
        else:
            raise ConfigError(f"{path.parent} has no {path.name}; `selfverify visual judge` makes it")

    def add(self, rows: Sequence[OnAnswer]) -> None:
        """Append verdicts."""
        assert self._store is not None
        self._store.append(*map(asdict, rows))
        self.known |= {row.index: row.right for row in rows}

    def decide(self, about: Mapping[str, Any], trace: VisualTrace) -> str:
        """Set whether a trace's answer is right, where rules do not say it; return why it cannot be known."""
        if settled_by_rules(about, trace.answer):
            return ""
        number = number_of(judge_prompt(about, trace))
        if number not in self.known:
            return "no model has judged the answer"
        right = self.known[number]
        if right is None:
            return "the model that judged the answer said neither right nor wrong"
        trace.rewards, trace.decider = trace.rewards | {"correct": float(right)}, "judge"
        return ""


@dataclass(slots=True)
class JudgedLooks:
    """The outcome for a folder's traces.

    Args:
        right: How many answers are right for the model.
        wrong: How many are wrong.
        neither: Of how many it says neither.
        unasked: How many could not be judged: the server failed, or they are too long.
        by_rules: How many the task's rules settle.
        reason: Why the first of those could not be judged.
        again: Whether a server failed in passing, so that a further call may judge more.
    """

    right: int = 0
    wrong: int = 0
    neither: int = 0
    unasked: int = 0
    by_rules: int = 0
    reason: str = ""
    again: bool = False


def judge_answers(
    traces: Iterable[tuple[Mapping[str, Any], VisualTrace]],
    path: Path,
    judge: TeacherConfig,
    votes: int = 1,
    on_batch: Callable[[], None] = lambda: None,
) -> JudgedLooks:
    """Ask a model about every answer that rules do not settle, and return the outcome.

    Args:
        traces: Traces that have an end, each with what a judge has to know (`asked_and_wanted`).
        path: The journal of the verdicts.
        judge: The model: a server.
        votes: How often it is asked about each answer. More than half of the votes decide.
        on_batch: Called after each batch.

    Raises:
        ConfigError: The judge is no server, or the verdicts were made otherwise.
        DataError: The journal is damaged, or a problem has no question in words.
        ServerError: The server failed on all of a batch, and not because of what was to be judged.
    """
    if judge.server is None:
        raise ConfigError("answers are judged by a model behind a server: name its server and model")
    asked = judge.model_dump(mode="json", include={"server", "model", "max_tokens"})
    found, verdicts = JudgedLooks(), Verdicts(path, {"judge": asked, "votes": votes})
    left = iter(traces)
    while batch := list(islice(left, AT_ONCE)):
        waiting: list[tuple[int, VisualTrace]] = []
        missing: dict[int, tuple[str, str]] = {}
        for about, trace in batch:
            if settled_by_rules(about, trace.answer):
                found.by_rules += 1
                continue
            prompt = judge_prompt(about, trace)
            number = number_of(prompt)
            waiting.append((number, trace))
            if len(prompt) <= LONGEST_ANSWER and number not in verdicts.known:
                missing.setdefault(number, (trace.id, prompt))
        made, fault = event_loop.start(_ask_all(missing, judge, votes)).result() if missing else ([], None)
        verdicts.add(made)
        if fault is not None and not made and (fault.status not in _OF_ONE or not verdicts.known):
            raise fault
        found.again = found.again or (fault is not None and fault.retry)
        for number, trace in waiting:
            if number in verdicts.known:
                right = verdicts.known[number]
                found.right += right is True
                found.wrong += right is False
                found.neither += right is None
                continue
            found.unasked += 1
            why = fault or f"question and answer are longer than {LONGEST_ANSWER:,} characters"
            found.reason = found.reason or f"{trace.id}: {why}"
        on_batch()
    return found


async def _ask_all(
    missing: Mapping[int, tuple[str, str]], judge: TeacherConfig, votes: int
) -> tuple[list[OnAnswer], ServerError | None]:
    """Return the verdicts on prompts, and a fault, a passing one first, where some could not be asked."""
    from selfverify.clients.openai_client import OpenAIClient, ServerConfig  # they need the extra `serve`

    assert judge.server is not None
    async with OpenAIClient(ServerConfig(judge.server, timeout_s=judge.timeout)) as client:
        asked = (_ask(client, judge, votes, number, *one) for number, one in missing.items())
        rows = await asyncio.gather(*asked)
    faults = sorted((row for row in rows if isinstance(row, ServerError)), key=lambda fault: not fault.retry)
    return [row for row in rows if isinstance(row, OnAnswer)], faults[0] if faults else None


async def _ask(
    client: OpenAIClient, judge: TeacherConfig, votes: int, number: int, trace: str, prompt: str
) -> OnAnswer | ServerError:
    body = judge.fields | {
        "temperature": TEMPERATURE if votes > 1 else 0.0,
        "messages": [{"role": "user", "content": prompt}],
    }
    found, unclear = list[bool | None](), ""
    asked = (client.chat({**body, "seed": seed}) for seed in range(votes))
    try:
        # All are waited for: what was still under way would be asked again by the next call.
        for replies in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(replies, BaseException):
                raise replies
            choice = usable_choices(replies)[0]
            said, finish = text_of(choice["message"].get("content")), str(choice.get("finish_reason") or "")
            if ending(finish, said) == "broken_off":
                raise ServerError(f"the server broke its answer off: {finish}", retry=True)
            found.append(None if finish == Finish.LENGTH else read_verdict(said))
            unclear = unclear or (said[:200] if found[-1] is None else "")
    except ServerError as error:
        return error
    return OnAnswer(number, trace, found, unclear)


def read_verdict(said: str) -> bool | None:
    """Return a judge's verdict: its only word, else that of its last line; None where it says neither.

    The word begins what was said, or ends its last line, and nothing in its phrase takes it back ("not
    correct", "correct, but only in part"), also where the phrase is broken into lines. Thoughts in a tag
    before it do not count; where they have no end, there is no verdict.
    """
    text = unicodedata.normalize("NFKC", said.rpartition("</think>")[2]).replace("\u00ad", "")
    if "<think>" in text.lower():
        return None
    text = _TAGS.sub(" ", text).strip("`" + string.whitespace).upper()
    *lines, last = [line for line in text.splitlines() if re.search(r"\w", line)] or [""]
    phrase, ends = _phrase(lines), _LAST.fullmatch(last)
    for part, before in ((text, ""), (last, phrase)):
        words = {match[0] for match in _WORD.finditer(part)}
        begins = _FIRST.match(part)
        if len(words) == 1 and (
            (begins and not _HEDGED.search(before) and not _TAKEN_BACK.match(part, begins.end("word")))
            or (ends and not _HEDGED.search(f"{phrase} {ends['before']}"))
        ):
            return words == {"CORRECT"}
    return None


def _phrase(lines: Sequence[str]) -> str:
    """The part of these lines that belongs to the sentence which goes on behind them."""
    found = list[str]()
    for line in reversed(lines):
        ended = _ENDED.search(line) is not None
        if ended and len(line.split()) > _FEW:
            break
        found.insert(0, line)
        if ended:
            break
    return " ".join(found)
