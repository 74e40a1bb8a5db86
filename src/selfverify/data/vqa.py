"""Questions with short answers: our own columns, VLMEvalKit's, those of benchmark files, open-r1's.

Columns are found by name, the first that is filled counts:

- question: ``question``, ``problem``, else the human's turn of ``conversations``; ``hint`` is put before it,
  ``unit`` behind it. A file without such a column whose rows have an image and options asks in the image
  (MMMU-Pro's vision part)
- answer: ``answer_option``, ``answer``, ``solution`` (its ``<answer>`` if it has one), else the model's turn
- options: ``A``, ``B``, ... (VLMEvalKit), or ``options`` / ``choices``, a dictionary or a list, also as text
- images: ``images``, ``image``, ``decoded_image``, ``image_1`` ... ``image_9``, ``image_path``
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from selfverify.data.fields import (
    LONGEST_ANSWER,
    LONGEST_QUESTION,
    Images,
    Place,
    Record,
    Row,
    filled,
    first,
    listed,
    number,
    shown,
    text,
)
from selfverify.data.images import ImageRef
from selfverify.errors import DataError

LONGEST_NAME = 500
IDS = ("id", "index", "question_id", "pid", "sample_index", "problem_id")
CATEGORIES = ("category", "l2-category", "l2_category", "subfield", "subject", "task", "problem_version")
GROUPINGS = (
    *(*CATEGORIES, "skills", "level", "difficulty", "topic_difficulty", "context", "grade", "key"),
    "knowledge concept",
)
"""Columns that results are broken down by; also looked for in ``metadata`` (MathVista, MathVerse)."""
SOURCES = ("source", "data_source", "dataset", "dataset_name")
HUMAN, MODEL = ("human", "user"), ("gpt", "assistant")
"""Who speaks in ``conversations``."""
IN_IMAGE = "Answer the question in the image."
THINK_TAG = re.compile(r"<think>(.*?)</think>", re.DOTALL)
ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def convert_vqa(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`."""
    options = _options(record)
    answers = _answers(record, options)
    shared = common(record, images, place)
    row: Row = {
        **shared,
        "question": _question(record, drawn=bool(options and shared["images"])),
        "answer": answers[0],
        "options": options,
        # Of a letter it would say nothing.
        "answer_type": None if options else first(record, "answer_type"),
        "precision": _precision(record.get("precision")),
    }
    if len(answers) > 1:
        row["alternatives"] = answers
    if filled(record.get("unit")):
        row["unit"] = text(record["unit"], "unit", 100)
    if (solution := _solution(record)) is not None:
        row["solution"] = solution
    return [row]


def common(record: Record, images: Images, place: Place) -> Row:
    """The fields that all kinds of rows have."""
    category = first(record, *CATEGORIES)
    source = first(record, *SOURCES)
    own = first(record, *IDS)
    return {
        "id": None if own is None else text(own, "id", LONGEST_NAME),
        "images": find_images(record, images, place),
        "source": None if source is None else text(source, "source", LONGEST_NAME),
        "category": None if category is None else text(category, "category", LONGEST_NAME),
        "categories": _categories(record),
    }


def _categories(record: Record) -> dict[str, list[str]]:
    """Values of `GROUPINGS` by column: one, or several where the file has a list (MathVista's skills)."""
    inner = record.get("metadata")
    columns = inner | record if isinstance(inner, dict) else record
    found = {}
    for name in GROUPINGS:
        value = columns.get(name)
        if isinstance(value, str) and value.startswith("["):
            value = listed(value, name)
        values = value if isinstance(value, list | tuple) else [value]
        if any(filled(v) for v in values):
            found[name] = [text(v, name, LONGEST_NAME) for v in values if filled(v)]
    return found


def find_images(record: Record, images: Images, place: Place) -> list[ImageRef]:
    """The images of a record, by its columns' usual names."""
    for name in ("images", "decoded_image", "image"):
        if found := images.refs(record.get(name), place):
            return found
    if "image_1" in record:
        return [ref for k in range(1, 10) for ref in images.refs(record.get(f"image_{k}"), place)]
    path = record.get("image_path")
    if isinstance(path, str) and path.startswith("["):
        path = listed(path, "image_path")
    return images.refs(path, place)


def spoken(record: Record, who: tuple[str, ...]) -> Any:
    """What somebody says first in ``conversations``, without the images' marks."""
    turns = record.get("conversations")
    for turn in turns if isinstance(turns, list) else []:
        if isinstance(turn, dict) and turn.get("from") in who:
            said = turn.get("value")
            return re.sub(r"\s*<image>\s*", "", said) if isinstance(said, str) else said
    return None


def _question(record: Record, drawn: bool) -> str:
    found = first(record, "question", "problem") or spoken(record, HUMAN)
    if found is None and drawn and not record.keys() & {"question", "problem", "conversations"}:
        return IN_IMAGE
    question = text(found, "question", LONGEST_QUESTION)
    if filled(hint := record.get("hint")):
        question = f"{text(hint, 'hint', LONGEST_QUESTION)}\n{question}"
    if filled(unit := record.get("unit")):
        question = f"{question} (unit: {text(unit, 'unit', 100)})"
    return question


def _options(record: Record) -> dict[str, str] | None:
    letters = [letter for letter in string.ascii_uppercase if filled(record.get(letter))]
    if letters:
        return {letter: text(record[letter], f"option {letter}", LONGEST_ANSWER) for letter in letters}
    found = first(record, "options", "choices")
    if found is None or found in ("None", "[]"):
        return None
    if isinstance(found, dict):
        # Arrow gives every row all letters that any row has.
        return {
            str(letter): text(option, f"option {letter}", LONGEST_ANSWER)
            for letter, option in found.items()
            if filled(option)
        } or None
    options = listed(found, "options")
    if len(options) > len(string.ascii_uppercase):
        raise DataError(f"it has {len(options)} options")
    texts = [text(option, "option", LONGEST_ANSWER) for option in options]
    return dict(zip(string.ascii_uppercase, texts, strict=False)) or None


def _answers(record: Record, options: dict[str, str] | None) -> list[str]:
    """The letter of the right option, or the accepted answers, the first one first."""
    if options is not None and filled(record.get("answer_option")):
        return [_letter(text(record["answer_option"], "answer_option", LONGEST_ANSWER), options, False)]
    found = first(record, "answer", "solution")
    found = spoken(record, MODEL) if found is None else found
    if isinstance(found, str) and (tagged := ANSWER_TAG.findall(found)):
        found = tagged[-1]
    if isinstance(found, list):
        return [text(answer, "answer", LONGEST_ANSWER) for answer in found] or [text(None, "answer", 1)]
    answer = text(found, "answer", LONGEST_ANSWER)
    if options is not None:
        # MathVista's answers to `choices` are texts, even "2" and "B"; AI2D's to `options` are places.
        if not filled(record.get("choices")):
            return [_letter(answer, options, True)]
        letters = [letter for letter, option in options.items() if option == answer]
        return letters if len(letters) == 1 else [_letter(answer, options, False)]
    # MMMU writes several accepted answers as a list; MathVista's lists are one answer.
    if record.get("question_type") == "open" and answer.startswith("["):
        return [text(a, "answer", LONGEST_ANSWER) for a in listed(answer, "answer")]
    return [answer]


def _solution(record: Record) -> str | None:
    """How the answer is found, where a record tells besides the answer."""
    found = record.get("solution")
    if not isinstance(found, str):
        return None
    if thoughts := THINK_TAG.findall(found):
        return str(thoughts[0]).strip() or None
    return found.strip() if filled(record.get("answer")) and found.strip() else None


def _letter(answer: str, options: dict[str, str], by_place: bool) -> str:
    """Letter, text of an option, or with ``by_place`` its number from 0.

    Raises:
        DataError: None of these, or two of them that do not agree.
    """
    if answer.upper() in options:
        return answer.upper()
    letters = [letter for letter, option in options.items() if option == answer]
    if by_place and answer.isascii() and answer.isdigit() and int(answer) < len(options):
        letters.append(list(options)[int(answer)])
    if len(set(letters)) == 1:
        return letters[0]
    reason = "could be " + " or ".join(letters) if letters else "is none of the options"
    raise DataError(f"its answer {shown(answer)} {reason}: {shown(options, 200)}")


def _precision(value: Any) -> int | None:
    return None if not filled(value) or value == "None" else int(number(value, "precision"))
