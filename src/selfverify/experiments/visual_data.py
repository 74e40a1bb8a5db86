"""VTS-V's data of looking again: traces, the verdicts on them, and the sets and pairs made of them.

FOLDER/
  collected.jsonl      conversations as they were held, by problem (a journal)
  branched.jsonl       those that go on from the middle of a right one
  induced.jsonl        the same, by a model that was asked to go on wrongly
  hurried.jsonl        the same, by a model that was told to answer at once
  verdicts.jsonl       what a model that judges answers has said
  images/              what they show, by content
  sft.jsonl            right traces, for supervised fine-tuning
  pairs.jsonl          preferences, for the verifier
  data.json            how many traces were dropped for which reason

Teachers make the traces. VTS-V §4.1 has a large model look in a few-shot setting (`collect_looks`) and a
model judge the answers of right traces once more (``llm_as_a_judge``, `judge_looks`); §4.2 has a large model
go on from an intermediate step with wrong reasoning (`branch_looks`). Beside that, traces are branched:
the model goes on from the middle in earnest, and a trace that comes out wrong by itself is a negative that
was not asked for. `make_sets` makes the data sets: one for supervised fine-tuning, and pairs for the verifier
(§4.2).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from PIL.Image import Image
from pydantic import BaseModel, ValidationError

from selfverify.clients.replies import text_of, usable_choices
from selfverify.core import event_loop
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.files import naming, read_regular, write_json, write_text
from selfverify.core.jsonl_store import STRICT, parse_rows, read_journal
from selfverify.core.problem import Problem
from selfverify.data.images import read_image
from selfverify.evaluation.samples import IMAGES, Progress, ResumableBatches, written_images
from selfverify.experiments.command_config import TeacherConfig
from selfverify.experiments.recipe import Recipe, recipe_task
from selfverify.experiments.teaching import Asked, TaughtProblem, Teaching, at_most
from selfverify.rollouts.wrappers import Message, RecordingEpisode, ResumedEpisode, noted_messages
from selfverify.tasks.answering import worth_imitating
from selfverify.visual.config import ANSWER_NOW
from selfverify.visual.episode import asked_anew
from selfverify.visual.pairs import Pair, Pairing, make_pairs
from selfverify.visual.task import VisualTask
from selfverify.visual.traces import Curation, Demands, VisualTrace, is_image, malformed_message, parts_of

if TYPE_CHECKING:
    from selfverify.clients.openai_client import OpenAIClient

COLLECTED, VERDICTS = "collected.jsonl", "verdicts.jsonl"
SFT, PAIRS, ABOUT = "sft.jsonl", "pairs.jsonl", "data.json"
Way = Literal["branched", "induced", "hurried"]
SOURCES = {"sampled": COLLECTED} | {way: f"{way}.jsonl" for way in get_args(Way)}
"""Journals by the source of their traces."""


def image_keeper(folder: Path) -> Callable[[Image], str]:
    """Return a function that writes images into a folder and names them by their content, for several
    threads."""
    lock = Lock()

    def keep(image: Image) -> str:
        with lock:
            [name] = written_images(folder / IMAGES, [image])
        return name

    return keep


def read_traces(folder: Path, source: str) -> tuple[dict[str, Any], list[tuple[TaughtProblem, VisualTrace]]]:
    """The header and the traces of one of a folder's journals, in order, each with its line.

    Raises:
        ConfigError: There is no such journal.
        DataError: It is damaged.
    """
    path = folder / SOURCES[source]
    if not path.is_file():
        raise ConfigError(f"{folder} has no {path.name}; `selfverify visual collect` makes it")
    settings, rows = read_journal(path, TaughtProblem)
    found: list[tuple[TaughtProblem, VisualTrace]] = []
    for _, row in sorted(rows.items()):
        if fault := _fault(row):
            raise DataError(f"{path}: problem {row.problem}: {fault}. Restore the file, or delete it")
        found += [(row, trace) for trace in _traces_of(row, source, str(settings.get("task", "")))]
    return settings, found


def _fault(row: TaughtProblem) -> str:
    """Return the fault of a line whose fields have the right types; empty where nothing is."""
    for number, one in enumerate(row.conversations):
        why = next(filter(None, map(malformed_message, one.messages)), "")
        if why or not one.messages:
            return f"conversation {number}: {why or 'it has no messages'}"
    try:
        _Beginning.model_validate(row.about, strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        return f"about.{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    return ""


class _Beginning(BaseModel):
    """The part of `TaughtProblem.about` on the beginning that a conversation goes on from."""

    told: int = 1
    cuts: list[list[Any]] = []
    steps: list[dict[str, Any]] = []


def all_traces(folder: Path) -> Iterator[VisualTrace]:
    """The traces of all journals in a folder.

    Raises:
        ConfigError: Nothing was collected there.
        DataError: A journal is damaged.
    """
    return (trace for _, trace in _lines_and_traces(folder, SOURCES))


def _lines_and_traces(folder: Path, sources: Iterable[str]) -> Iterator[tuple[TaughtProblem, VisualTrace]]:
    """The traces of a folder's journals, each with its line; only ``collected.jsonl`` has to be there."""
    for source in sources:
        if source == "sampled" or (folder / SOURCES[source]).is_file():
            yield from read_traces(folder, source)[1]


def _traces_of(row: TaughtProblem, source: str, task: str) -> Iterator[VisualTrace]:
    """The traces in a line of a journal."""
    about, begun = row.about, _Beginning.model_validate(row.about)
    name = f"{about.get('parent') or row.problem}{'' if source == 'sampled' else f'/{source}'}"
    for number, told in enumerate(row.conversations):
        yield VisualTrace(
            id=f"{name}#{number}",
            problem=str(about.get("problem") or row.problem),
            messages=told.messages,
            cuts=[*begun.cuts, *told.cuts],
            rewards=told.rewards,
            steps=[*begun.steps, *told.steps],
            finish=told.finish,
            lost=told.lost,
            source=source,
            category=str(about.get("category") or ""),
            task=task,
            told=begun.told,
        )


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file, or of the file in a folder; their images are named as seen from beside it.

    Raises:
        ConfigError: There is no such file.
        DataError: A line is no pair, or its pair stands there twice; the message names it.
    """
    path = path / PAIRS if path.is_dir() else path
    found, lines = [], dict[str, int]()
    for number, pair in read_lines(path, Pair):
        if why := _pair_fault(pair) or stands_twice(pair.id, number, lines):
            raise DataError(f"{path}, line {number}: {why}")
        found.append(pair)
    return found


def stands_twice(id: str, number: int, lines: dict[str, int]) -> str:
    """Return the fault of an id that stands in a line before, since it would be learnt twice; else empty.

    ``lines`` has the ids of the file's lines so far, with their numbers; this one is added to it.
    """
    first = lines.setdefault(id, number)
    return "" if first == number else f"{id[:200]} stands in line {first}, too; take one of them out"


def _pair_fault(pair: Pair) -> str:
    """Return the fault of a pair whose fields have the right types; empty where nothing is."""
    for name, messages in (("prompt", pair.prompt), ("chosen", pair.chosen), ("rejected", pair.rejected)):
        if why := fault_in(messages):
            return f"{name}: {why}"
        if name != "prompt" and not messages[0]["role"] == messages[-1]["role"] == "assistant":
            return f"{name}: it begins and ends with a turn of the assistant"
    return ""


def fault_in(messages: Sequence[Message]) -> str:
    """Return the fault of the form of a conversation, or of a part of one; empty where nothing is."""
    for place, message in enumerate(messages):
        if why := malformed_message(message):
            return f"message {place}: {why}"
        if message["role"] == "assistant" and not isinstance(message["content"], str):
            return f"message {place}: a turn is no text"
    return "" if messages else "it has no messages"


def read_lines(path: Path, row: type[Any] = dict[str, Any]) -> Iterator[tuple[int, Any]]:
    """The lines of a file of JSON lines as rows, with their numbers, from 1.

    Raises:
        ConfigError: There is no such file.
        DataError: A line is no such row.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; `selfverify visual sets` writes it")
    with naming(path):
        lines = read_regular(path).splitlines()
    return enumerate(parse_rows(path, lines, row), start=1)


INDUCE = (
    "From here on, let your reasoning go astray in a way that sounds reasonable: look at an unhelpful place, "
    "misread what is shown, or draw a conclusion that does not follow. Keep to the same form and the same "
    "length as before, end with a final answer that is not right, and write as if you believed all of it."
)
"""The prompt of a model that makes wrong traces (§4.2's error induction, in our words)."""
SHOTS = 2
_EXAMPLES = "Here are examples of how questions about images were worked on, each from its question on."


@dataclass(frozen=True, slots=True)
class CollectedLooks:
    """The outcome of a collection.

    Args:
        traces: How many conversations were held.
        correct: How many of them came to a right end.
        lost: How many broke off.
        reason: Why the first of these did, or the first problem could not be made; empty if there is none.
    """

    traces: int
    correct: int
    lost: int
    reason: str


def collect_looks(
    recipe: Recipe,
    teacher: TeacherConfig,
    folder: Path,
    problems: int,
    samples: int = 1,
    shots: Path | None = None,
    progress: Progress | None = None,
) -> CollectedLooks:
    """Hold conversations about a recipe's training problems; ``FOLDER/collected.jsonl`` has them all.

    Args:
        recipe: Names the task; its seed decides the problems.
        teacher: The model that looks.
        folder: See the module's docstring.
        problems: How many problems, at most those that the task has.
        samples: Conversations about each.
        shots: A file of traces (``sft.jsonl``), of which `SHOTS` are drawn for each problem and put before
            its question.
        progress: Called after each batch of problems.

    Raises:
        ConfigError: The task has no conversations or no demonstrations, or the folder is that of other
            settings.
        DataError: ``shots`` is damaged.
    """
    task = recipe_task(recipe)
    total, school = at_most(task, problems), Teaching(recipe, task, teacher, samples)
    keep = image_keeper(folder)
    examples = [] if shots is None else read_transcripts(shots)

    def ask(index: int) -> Asked:
        problem = task.problem("train", recipe.seed, index)
        asked, shown = noted_messages(problem, keep), problem
        if examples:
            drawn = np.random.default_rng([recipe.seed, index]).permutation(len(examples))[:SHOTS]
            shown = _with_examples(problem, [examples[place] for place in drawn])
        known = {"category": str(problem.meta.get("category") or ""), "told": len(asked)}
        about = known | _judged_by(problem)
        return Asked(shown, lambda seed: RecordingEpisode(task.open(problem, seed), asked, keep), about)

    settings = school.settings() | {"shots": None if shots is None else [str(shots), SHOTS]}
    return _summary(school.hold(folder / SOURCES["sampled"], settings, ask, total, progress))


def branch_looks(
    recipe: Recipe,
    teacher: TeacherConfig,
    folder: Path,
    way: Way,
    samples: int = 1,
    most: int | None = None,
    progress: Progress | None = None,
) -> CollectedLooks:
    """Let a teacher go on from an intermediate step of each right trace that was collected.

    How many steps are kept is drawn for each trace, from one to all of them.

    Args:
        recipe: As it was collected with.
        teacher: The model that goes on: a server or the recipe's own policy.
        folder: See the module's docstring; it has ``collected.jsonl``.
        way: ``branched``: in earnest; ``induced``: it is asked to go on wrongly; ``hurried``: it is told to
            answer at once.
        samples: Conversations from each trace.
        most: From so many traces only, the first ones.
        progress: Called after each batch.

    Raises:
        ConfigError: Nothing was collected, or with another task or seed; or the teacher is a script.
        DataError: A journal is damaged, or no collected trace is right and has a step.
    """
    if teacher.expert:
        raise ConfigError(
            "a script cannot go on from the middle; name the recipe's own policy or a server with a model"
        )
    about, held = read_traces(folder, "sampled")
    task = recipe_task(recipe)
    for name, ours in (("task", task.name), ("seed", recipe.seed)):
        if about.get(name) != ours:
            raise ConfigError(
                f"{folder}: it was collected with {name} {about.get(name)!r}, and the recipe has {ours!r}"
            )
    parents = [
        (row, trace)
        for row, trace in held
        if trace.correct and not trace.lost and trace.finish == "stop" and len(trace.turns) > 1
    ][:most]
    if not parents:
        raise DataError(f"{folder}: no collected trace is right and has a step to go on from")
    school, keep = Teaching(recipe, task, teacher, samples), image_keeper(folder)
    hurry = f"\n{task.settings.answer_now}" if isinstance(task, VisualTask) else ANSWER_NOW
    words = {"branched": "", "induced": INDUCE, "hurried": hurry}[way]

    def ask(index: int) -> Asked:
        row, trace = parents[index]
        problem = task.problem("train", recipe.seed, row.index)
        rng = np.random.default_rng([recipe.seed, index])
        kept = int(rng.integers(1, len(trace.turns)))
        said = [place for place, message in enumerate(trace.messages) if message["role"] == "assistant"]
        told = trace.messages[: said[kept]]
        heard = told[trace.told :]
        shown = go_on_from(problem, heard, folder / IMAGES, words)
        cut = {"cuts": trace.cuts[:kept], "steps": trace.steps[:kept]}
        about = row.about | {"problem": trace.problem, "parent": trace.id} | cut

        def begin(seed: int) -> RecordingEpisode:
            return RecordingEpisode(ResumedEpisode(task.open(problem, seed), heard, keep), told, keep)

        return Asked(shown, begin, about)

    settings = school.settings() | {"from": [trace.id for _, trace in parents], "way": way}
    return _summary(school.hold(folder / SOURCES[way], settings, ask, len(parents), progress))


def _judged_by(problem: Problem) -> dict[str, Any]:
    """Return all that a judge of answers has to know, as far as JSON can hold it."""
    asked = {"question": problem.meta.get("question"), "target": problem.target}
    try:
        return dict(json.loads(json.dumps(asked, allow_nan=False)))
    except (TypeError, ValueError):
        return {"question": asked["question"]}


def go_on_from(problem: Problem, told: Sequence[Message], images: Path, words: str) -> Problem:
    """The problem that a conversation is after some turns, with ``words`` behind what was shown last.

    Raises:
        DataError: An image is gone.
    """
    turns: list[tuple[str, Sequence[dict[str, Any]], Sequence[Any]]] = []
    role = "user"
    for place in range(0, len(told) - 1, 2):
        said, reply = told[place], told[place + 1]
        role, parts = reply["role"], parts_of(reply)
        shown = [read_image(images / part["image"], tries=1) for part in parts if is_image(part)]
        plain = [{"type": "image"} if is_image(part) else part for part in parts]
        turns.append((said["content"], plain, shown))
    return asked_anew(problem, turns, role, words)


def read_transcripts(file: Path) -> list[str]:
    """The conversations of a file of traces as texts, in which images are named by their numbers.

    Raises:
        DataError: The file cannot be read, or a line is no trace.
    """
    found = []
    for number, line in read_lines(file):
        try:
            found.append(transcript(line["messages"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file}, line {number}: it is no trace ({type(error).__name__}: {error})"
            ) from None
    if not found:
        raise DataError(f"{file}: it has no traces to show as examples")
    return found


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as one text; its images are numbered as its model saw them."""
    lines, numbers = [], count(1)
    for message in messages:
        parts = (f"[image {next(numbers)}]" if is_image(p) else p["text"] for p in parts_of(message))
        lines.append(f"{'You' if message['role'] == 'assistant' else 'Shown'}: {''.join(parts)}")
    return "\n".join(lines)


def _with_examples(problem: Problem, examples: Sequence[str]) -> Problem:
    """A problem whose last message begins with examples in words, so that its images keep their numbers."""
    last = dict(problem.messages[-1])
    numbered = "\n\n".join(f"Example {n}:\n{text}" for n, text in enumerate(examples, start=1))
    words = {"type": "text", "text": f"{_EXAMPLES}\n\n{numbered}\n\nNow it is your turn.\n"}
    last["content"] = [words, *parts_of(last)]
    return replace(problem, messages=[*problem.messages[:-1], last])


def _summary(rows: Sequence[TaughtProblem]) -> CollectedLooks:
    held = [one for row in rows for one in row.conversations]
    correct, lost = sum(worth_imitating(one.rewards) for one in held), sum(bool(one.lost) for one in held)
    reasons = (why for row in rows for why in (*(one.lost for one in row.conversations), row.unusable))
    return CollectedLooks(len(held), correct, lost, next(filter(None, reasons), ""))


AT_ONCE = 32
"""Requests that wait for the server at the same time."""
_ASKED = (
    "A question about an image was answered. Say whether the answer means the same as the reference.\n\n"
    "Question: {question}\nReference: {target}\nAnswer: {answer}\n\n"
    "Reply with one word: CORRECT or INCORRECT."
)
_WORD = re.compile(r"\b(IN)?CORRECT\b")
_LONGEST_ANSWER = 4000


@dataclass(frozen=True, slots=True)
class OnAnswer:
    """A line of ``verdicts.jsonl``.

    Args:
        index: The trace's number among those that are judged.
        trace: Its id.
        right: The model's verdict; None where it says neither.
        reason: Why there is no verdict.
    """

    __pydantic_config__: ClassVar = STRICT

    index: int
    trace: str
    right: bool | None = None
    reason: str = ""


def judge_looks(folder: Path, judge: TeacherConfig, progress: Progress | None = None) -> tuple[int, int, int]:
    """Ask a model about the answer of every trace that the task found right.

    Args:
        folder: See the module's docstring.
        judge: The model: a server.
        progress: Called after each batch.

    Returns:
        How many answers are right for it, how many are wrong, and of how many it says neither.

    Raises:
        ConfigError: The judge is no server, nothing was collected, or the verdicts were made otherwise.
        DataError: The journal is damaged, or a problem has no question or target in words.
    """
    if judge.server is None:
        raise ConfigError("answers are judged by a model behind a server: name its server and model")
    asked = [
        (trace, _question(row.about, trace))
        for row, trace in _lines_and_traces(folder, [source for source in SOURCES if source != "induced"])
        if trace.correct and not trace.lost and trace.turns
    ]
    about = {
        "judge": judge.model_dump(mode="json", exclude={"timeout"}),
        "traces": [trace.id for trace, _ in asked],
    }
    sweep = ResumableBatches(folder / VERDICTS, OnAnswer, about, len(asked), AT_ONCE, progress)
    for share in sweep.shares():
        batch = [(index, *asked[index]) for index in share]
        sweep.store(event_loop.start(_ask_all(batch, judge)).result())
    found = [row.right for row in sweep.rows.values()]
    return found.count(True), found.count(False), found.count(None)


def _question(about: dict[str, Any], trace: VisualTrace) -> str:
    if about.get("question") is None or about.get("target") is None:
        raise DataError(
            f"{trace.id}: its problem has no question and target in words, so that no model can judge it"
        )
    answer = trace.turns[-1]["content"][-_LONGEST_ANSWER:]
    return _ASKED.format(question=about["question"], target=about["target"], answer=answer)


async def _ask_all(batch: Sequence[tuple[int, VisualTrace, str]], judge: TeacherConfig) -> list[OnAnswer]:
    from selfverify.clients.openai_client import OpenAIClient, ServerConfig  # they need the extra `serve`

    assert judge.server is not None
    async with OpenAIClient(ServerConfig(judge.server, timeout_s=judge.timeout)) as client:
        return await asyncio.gather(*(_ask(client, judge, *one) for one in batch))


async def _ask(
    client: OpenAIClient, judge: TeacherConfig, index: int, trace: VisualTrace, words: str
) -> OnAnswer:
    body = {**judge.fields, "seed": 0, "temperature": 0.0, "messages": [{"role": "user", "content": words}]}
    try:
        choice, *_ = usable_choices(await client.chat(body))
    except SelfVerifyError as error:
        return OnAnswer(index, trace.id, None, str(error)[:500])
    said = text_of(choice["message"].get("content"))
    words_said = {match[0] for match in _WORD.finditer(said.upper())}
    if len(words_said) != 1:
        return OnAnswer(index, trace.id, None, f"it says neither: {said[:200]!r}")
    return OnAnswer(index, trace.id, words_said == {"CORRECT"})


@dataclass(slots=True)
class Sets:
    """The outcome for a folder's traces.

    Args:
        traces: How many there were.
        sft: How many are in ``sft.jsonl``.
        pairs: How many pairs are in ``pairs.jsonl``.
        sft_dropped: How many traces are not in ``sft.jsonl``, by the reason.
        pairs_dropped: How many traces and possible pairs are not in ``pairs.jsonl``, by the reason.
        kinds: How many pairs there are of each kind and source.
    """

    traces: int = 0
    sft: int = 0
    pairs: int = 0
    sft_dropped: dict[str, int] = field(default_factory=dict)
    pairs_dropped: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)


def make_sets(folder: Path, demands: Demands, pairing: Pairing, judged: bool = False) -> Sets:
    """Write ``sft.jsonl``, ``pairs.jsonl`` and ``data.json`` from what was collected in a folder.

    D_SFT has the right traces that were sampled or branched, D_DPO the pairs. Of the same traces the same
    files come, so that the call may be made again at any time.

    Args:
        folder: See the module's docstring.
        demands: The demands on a trace.
        pairing: How pairs are made.
        judged: Whether right traces have to be right for a model, too (``verdicts.jsonl``, §4.1).

    Raises:
        ConfigError: Nothing was collected.
        DataError: A journal is damaged, or no right trace is left; the message says what was dropped and why.
    """
    found, everything = Sets(), list(all_traces(folder))
    found.traces = len(everything)
    curation = Curation(folder / IMAGES, demands)
    kept = curation.take(everything)
    if judged:
        kept = _as_judged(kept, folder, curation.dropped)
    right = [trace for trace in kept if trace.correct and trace.source not in _WHY_NOT]
    found.sft = len(right)
    unwanted = Counter(
        _WHY_NOT.get(trace.source, "their answer is wrong")
        for trace in kept
        if trace.source in _WHY_NOT or not trace.correct
    )
    found.sft_dropped = dict(curation.dropped + unwanted)
    if not right:
        reasons = ", ".join(f"{count} because {why}" for why, count in found.sft_dropped.items())
        raise DataError(f"{folder}: no right trace is left of {found.traces}; dropped: {reasons or 'none'}")
    pairs, dropped = make_pairs(kept, pairing)
    found.pairs, found.pairs_dropped = len(pairs), dict(curation.dropped + dropped)
    found.kinds = dict(Counter(f"{pair.kind}, {pair.source}" for pair in pairs))
    _write_lines(folder / SFT, map(sft_line, right))
    _write_lines(folder / PAIRS, map(pair_line, pairs))
    write_json(folder / ABOUT, {"demands": asdict(demands), "pairing": asdict(pairing), **asdict(found)})
    return found


_WHY_NOT = {
    "induced": "they were induced to be wrong", "hurried": "they were told to answer at once"
}  # fmt: skip
"""Why traces are not imitated, by their source."""


def sft_line(trace: VisualTrace) -> dict[str, Any]:
    """A line of ``sft.jsonl``."""
    return {
        "id": trace.id,
        "question_id": trace.problem,
        "data_source": trace.task,
        "category": trace.category,
        "messages": in_folder(trace.messages),
        "cuts": trace.cuts,
        "steps": trace.steps,
    }


def pair_line(pair: Pair) -> dict[str, Any]:
    """A line of ``pairs.jsonl``."""
    line = asdict(pair)
    return line | {name: in_folder(line[name]) for name in ("prompt", "chosen", "rejected")}


def in_folder(messages: Iterable[Message]) -> list[Message]:
    """Messages whose images are named as seen from beside the folder of images."""
    found = []
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            parts = parts_of(message)
            content = [p | {"image": f"{IMAGES}/{p['image']}"} if is_image(p) else p for p in parts]
        found.append({"role": message["role"], "content": content})
    return found


def _as_judged(traces: Iterable[VisualTrace], folder: Path, dropped: Counter[str]) -> list[VisualTrace]:
    """Traces without those whose right answer the model did not find right."""
    _, rows = read_journal(folder / VERDICTS, OnAnswer)
    opinions = {row.trace: row.right for row in rows.values()}
    kept = []
    for trace in traces:
        right = opinions.get(trace.id)
        if trace.correct and not right:
            dropped[
                "no model has judged the answer" if right is None else "a model judged the answer wrong"
            ] += 1
        else:
            kept.append(trace)
    return kept


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    write_text(path, text)
