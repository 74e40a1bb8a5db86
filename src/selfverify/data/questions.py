"""Questions with short answers, in our own columns or as published files have them.

Columns are found by name (`COLUMNS`), the first that is filled counts:

- question: ``question``, ``problem``, else the human's turn of ``conversations``; ``hint`` is put before it,
  ``unit`` behind it. It stands in the image where a row has an image and an empty question (MathVerse), or an
  image and options in a file without such a column (MMMU-Pro's vision part)
- answer: ``answer_option``, ``answer``, ``ground_truth``, ``solution`` (its ``<answer>`` if it has one), else
  the model's turn
- options: ``A``, ``B``, ... (VLMEvalKit), ``option_a``, ``option_b``, ..., or ``options`` / ``choices`` /
  ``option``, a dictionary or a list, also as text, or a text with letters (``A. 4; B. 3``, We-Math); the
  answer to them is a letter, also ``(A)`` (BLINK), a text, or in some files a place
- images: ``images``, ``decoded_image``, ``image``, ``image_urls``, ``image_1`` ... ``image_9``,
  ``image_path``, or a ``file_name`` that names a picture
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data import fields
from selfverify.data.fields import Images, Place, Record, Row, filled, first, listed, shown, text, written
from selfverify.data.images import ImageRef
from selfverify.data.records import PICTURES

DISCIPLINES = {
    "Art & Design": "Art Art_Theory Design Music",
    "Business": "Accounting Economics Finance Manage Marketing",
    "Science": "Biology Chemistry Geography Math Physics",
    "Health & Medicine": "Basic_Medical_Science Clinical_Medicine Diagnostics_and_Laboratory_Medicine "
    "Pharmacy Public_Health",
    "Humanities & Social Science": "History Literature Psychology Sociology",
    "Tech & Engineering": "Agriculture Architecture_and_Engineering Computer_Science Electronics "
    "Energy_and_Power Materials Mechanical_Engineering",
}
"""The subjects of MMMU's six disciplines (Yue et al. 2024, arXiv:2311.16502, Table 1), which its file names
nowhere."""
_BY_SUBJECT = {subject: name for name, subjects in DISCIPLINES.items() for subject in subjects.split()}
_ID = re.compile(r"(?:dev|validation|test)_(?P<subject>[A-Za-z_]+)_[0-9]+")


def discipline(id: str | None) -> str | None:
    """Return the discipline of a question with this id; None if it is no id of MMMU.

    MMMU's ids begin with the part of the data and the subject: ``validation_Art_Theory_7``.
    """
    match = _ID.fullmatch(id or "")
    return _BY_SUBJECT.get(match["subject"]) if match else None


COLUMNS = {
    "id": ("id", "index", "idx", "question_id", "pid", "sample_index", "problem_id", "ID"),
    "images": ("images", "decoded_image", "image", "image_urls", "image_1", "image_path", "file_name"),
    "question": ("question", "problem", "conversations"),
    "options": ("A", "option_a", "option_A", "options", "choices", "option"),
    "answer": ("answer_option", "answer", "ground_truth", "solution", "conversations"),
    "box": ("bbox_x1", "bbox_x1_norm", "box", "bbox", "bbox_2d", "solution", "answer", "conversations"),
    "category": (
        *("category", "l2-category", "l2_category", "subfield", "subject", "task", "problem_version"),
        "sub_task",
    ),
    "source": ("source", "data_source", "dataset", "dataset_name"),
}
"""The names of a row's fields in files, of which the first that is filled counts; other fields have their own
names."""
GROUPINGS = (
    *(*COLUMNS["category"], "skills", "level", "difficulty", "topic_difficulty", "context", "grade", "key"),
    "knowledge concept",
)
"""Columns that results are broken down by; also looked for in ``metadata`` (MathVista, MathVerse)."""
HUMAN, MODEL = ("human", "user"), ("gpt", "assistant")
"""The speakers' names in ``conversations``."""
IN_IMAGE = "Answer the question in the image."
THINK_TAG = re.compile(r"<think>(.*?)</think>", re.DOTALL)
LETTERS = string.ascii_uppercase
_LETTER_COLUMNS = {letter: (letter, f"option_{letter.lower()}", f"option_{letter}") for letter in LETTERS}
OPTIONS = 'a list of texts, {"A": text, ...}, or a text A. ...; B. ...'
"""The forms of options."""
_MARKED = re.compile(r"\(?([A-Z])[.):：、．]+\s*(.*)", re.DOTALL)
"""A letter before its option, or alone, as BLINK and others mark it."""
_LETTERED = [
    (re.compile(rf"(?:\A|{before})\s*\(?([A-Z])[.):：、．]\s*"), furthest)
    for before, furthest in ((r"[;；\n]", 25), (r"\s", 1))
]
"""A letter before its option in a text of all options, and how far on the next may be: behind semicolons
letters may be left out, behind blanks not."""
ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def convert_vqa(record: Record, place: Place, images: Images) -> list[Row]:
    options = _options(record)
    answers = _answers(record, options)
    shared = common(record, images, place)
    unit = fields.optional(record, "unit")
    row: Row = {
        **shared,
        "question": _question(record, unit, shared["images"], options),
        "answer": answers[0],
        "options": options,
        # The type of a text says nothing about a letter.
        "answer_type": None if options else first(record, "answer_type"),
        "precision": _precision(record.get("precision")),
    }
    more = {"alternatives": answers[1:] and answers, "unit": unit, "solution": _solution(record)}
    return [row | {name: value for name, value in more.items() if value}]


def common(record: Record, images: Images, place: Place) -> Row:
    """Return the fields that all kinds of rows have."""
    found = {name: fields.optional(record, *COLUMNS[name]) for name in ("id", "source", "category")}
    if "ID" in record and (key := fields.optional(record, "key")) is not None:
        found["id"] = f"{found['id']}/{key}"  # We-Math asks about one ID several times
    categories = _categories(record, found["id"])
    return {**found, "images": find_images(record, images, place), "categories": categories}


def _categories(record: Record, id: str | None) -> dict[str, list[str]]:
    """Return the values of `GROUPINGS` by column; a list in the file (MathVista's skills) gives several.

    A record may also have them as rows do, in ``categories``. MMMU's ids name a ``discipline``.

    Raises:
        DataError: ``categories`` is no dictionary, or a value is neither a text nor a finite number.
    """
    inner, given = record.get("metadata"), first(record, "categories")
    if not isinstance(given, dict | None):
        raise DataError(f"its categories is {shown(given)}, not values by column")
    columns = inner | record if isinstance(inner, dict) else record
    found = {}
    for name, value in ({name: columns.get(name) for name in GROUPINGS} | (given or {})).items():
        if isinstance(value, str) and value.startswith("["):
            value = listed(value, name)
        values = value if isinstance(value, list | tuple) else [value]
        if any(filled(v) for v in values):
            found[name] = [written(v, name) for v in values if filled(v)]
    if (of := discipline(id)) is not None:
        found.setdefault("discipline", [of])
    return found


def find_images(record: Record, images: Images, place: Place) -> list[ImageRef]:
    """Return the images of a record, which stand in columns of the usual names."""
    for name in COLUMNS["images"]:
        value = record.get(name)
        if name == "image_1":
            value = [ref for k in range(1, 10) for ref in images.refs(record.get(f"image_{k}"), place)]
        if name == "file_name" and not str(value).lower().endswith(PICTURES):
            continue  # it names another file than an image
        if found := images.refs(value, place):
            return found
    return []


def spoken(record: Record, who: tuple[str, ...]) -> Any:
    """Return what ``who`` says first in ``conversations``, without the images' marks."""
    turns = record.get("conversations")
    turns = listed(turns, "conversations") if isinstance(turns, str) and turns else turns
    for turn in turns if isinstance(turns, list) else []:
        # MM-EUREKA has `role` and `content`.
        if isinstance(turn, dict) and first(turn, "from", "role") in who:
            said = first(turn, "value", "content")
            return re.sub(r"\s*<image>\s*", "", said) if isinstance(said, str) else said
    return None


def asked(record: Record, *names: str) -> Any:
    """Return the question in the first of these columns that is filled, else in ``conversations``."""
    found = first(record, *names)
    return spoken(record, HUMAN) if found is None else found


def _question(
    record: Record, unit: str | None, images: Sequence[ImageRef], options: dict[str, str] | None
) -> str:
    found = asked(record, "question", "problem")
    if not filled(found) and images:
        # Null says nothing. An empty text, or what pandas makes of it, is MathVerse's own mark.
        empty = any(record.get(name) is not None for name in ("question", "problem"))
        if empty or (options and not record.keys() & {*COLUMNS["question"]}):
            return IN_IMAGE
    question = text(_told(record, "question", found), "question", fields.LONGEST_QUESTION)
    hint = fields.optional(record, "hint")
    return "".join([f"{hint}\n" if hint else "", question, f" (unit: {unit})" if unit else ""])


def _told(record: Record, field: str, found: Any) -> Any:
    """Return what a field is.

    Raises:
        DataError: It is missing, and so are the columns that it could stand in.
    """
    if found is None and not record.keys() & {*COLUMNS[field]}:
        columns = f"none of its columns {shown(', '.join(record), 200)} is {', '.join(COLUMNS[field])}"
        raise DataError(f"its {field} is missing: {columns}")
    return found


def _options(record: Record) -> dict[str, str] | None:
    given = {letter: first(record, *names) for letter, names in _LETTER_COLUMNS.items()}
    given = {letter: option for letter, option in given.items() if option is not None}
    found = None if given else first(record, "options", "choices", "option")
    if found is not None and found not in ("None", "[]"):
        lettered = _lettered(found) if isinstance(found, str) else None
        found = lettered or fields.decoded(found, "options", OPTIONS, dict, list, tuple)
    if isinstance(found, dict) and {*found} == {"label", "text"}:  # ARC's
        found = dict(zip(found["label"], found["text"], strict=True))
    if isinstance(found, dict):
        # In Arrow files every row has all letters that any row has, with empty texts.
        given = {str(name).strip().upper(): option for name, option in found.items() if filled(option)}
    elif isinstance(found, list | tuple):
        given = _without_letters(dict(zip(LETTERS, found, strict=False)))
        if len(found) > len(LETTERS):
            raise DataError(f"it has {len(found)} options")
    if not given:
        return None
    if len(given) < 2 or not given.keys() <= {*LETTERS}:
        raise DataError(f"its options are {shown(given, 200)}, not {OPTIONS} with two options or more")
    return {letter: written(option, f"option {letter}") for letter, option in given.items()}


def _without_letters(given: dict[str, Any]) -> dict[str, Any]:
    """Return options by the letters that all of them begin with, such as ``A. red``, without these."""
    marks = [_MARKED.fullmatch(option) if isinstance(option, str) else None for option in given.values()]
    found = {mark[1]: mark[2] for mark in marks if mark is not None and mark[2]}
    return found if sorted(found) == [*given] else given


def _lettered(text: str) -> dict[str, str]:
    """Return the options of a text such as ``A. 4; B. 3; E. none``, whose letters rise; empty if it is
    none."""
    for pattern, furthest in _LETTERED:
        marks: list[re.Match[str]] = []
        for mark in pattern.finditer(text):
            step = ord(mark[1]) - ord(marks[-1][1] if marks else "@")
            if 1 <= step <= (furthest if marks else 1) and (marks or mark.start() == 0):
                marks.append(mark)
        ends = [*(mark.start() for mark in marks[1:]), len(text)]
        if len(marks) > 1:
            return {
                mark[1]: text[mark.end() : end].strip(" \t\n;；,，")
                for mark, end in zip(marks, ends, strict=True)
            }
    return {}


def _answers(record: Record, options: dict[str, str] | None) -> list[str]:
    """Return the letters of the right options, or the accepted answers, in the record's order."""
    by_place = not filled(record.get("answer_option"))
    told = options is not None and not by_place
    found = record["answer_option"] if told else first(record, "answer", "ground_truth", "solution")
    found = _told(record, "answer", spoken(record, MODEL) if found is None else found)
    if isinstance(found, str) and (tagged := ANSWER_TAG.findall(found)):
        found = tagged[-1]
    # MMMU writes several accepted answers as a list; MathVista's lists are one answer.
    is_list = isinstance(found, str) and found.strip().startswith("[")
    if options is None and record.get("question_type") == "open" and is_list:
        found = listed(found, "answer")
    several = found if isinstance(found, list) and found else [found]
    if filled(record.get("alternatives")):
        several = [*several, *listed(record["alternatives"], "alternatives")]
    answers = [written(answer, "answer") for answer in several]
    if options is not None:
        # MathVista's answers to `choices` are texts, even "2" and "B"; AI2D's to `options` are places.
        are_texts = filled(record.get("choices")) or record.get("answer_type") == "text"
        answers = [_letter(answer, options, by_place, are_texts and by_place) for answer in answers]
    return list(dict.fromkeys(answers))


def _solution(record: Record) -> str | None:
    """Return how the answer is found, if the record says so besides the answer itself."""
    found = record.get("solution")
    if not isinstance(found, str):
        return None
    if thoughts := THINK_TAG.findall(found):
        return str(thoughts[0]).strip() or None
    answered = first(record, "answer", "ground_truth") is not None
    return (found.strip() or None) if answered else None


def _letter(answer: str, options: dict[str, str], by_place: bool, is_text: bool) -> str:
    """Return the letter that an answer means: as a letter, a text, or with ``by_place`` a number from 0.

    With ``is_text`` the only option with this text comes first, and there are no places.

    Raises:
        DataError: The answer means no option, or two different ones.
    """
    letters = [letter for letter, option in options.items() if option == answer]
    if is_text and len(letters) == 1:
        return letters[0]
    if answer.upper() in options:
        return answer.upper()
    marked = _MARKED.fullmatch(answer)
    if marked and not letters and marked[1] in options and marked[2] in ("", options[marked[1]]):
        return marked[1]
    if by_place and not is_text and answer.isascii() and answer.isdigit() and int(answer) < len(options):
        letters.append([*options][int(answer)])
    if len(set(letters)) == 1:
        return letters[0]
    reason = "could be " + " or ".join(letters) if letters else "is none of the options"
    raise DataError(f"its answer {shown(answer)} {reason}: {shown(options, 200)}")


def _precision(value: Any) -> int | None:
    if not filled(value) or value == "None":
        return None
    found = fields.number(value, "precision")
    if not found.is_integer() or not 0 <= found <= 12:
        raise DataError(f"its precision is {shown(value)}, not a number of decimals from 0 to 12")
    return int(found)
