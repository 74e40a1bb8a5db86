"""Questions with short answers, in our own columns or as published files have them.

Columns are found by name (`COLUMNS`), the first that is filled counts:

- question: ``question``, ``problem``, else the human's turn of ``conversations``; ``hint`` is put before it,
  ``unit`` behind it. It stands in the image where a row has an image and an empty question (MathVerse), or an
  image and options in a file without such a column (MMMU-Pro's vision part)
- answer: ``answer_option``, ``answer``, ``solution`` (its ``<answer>`` if it has one), else the model's turn
- options: ``A``, ``B``, ... (VLMEvalKit), or ``options`` / ``choices`` / ``option``, a dictionary or a list,
  also as text, or a text with letters (``A. 4; B. 3``, We-Math); the answer to them is a letter, also ``(A)``
  (BLINK), a text, or in some files a place
- images: ``images``, ``decoded_image``, ``image``, ``image_urls``, ``image_1`` ... ``image_9``,
  ``image_path``
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

DISCIPLINES = {
    "Art & Design": ("Art", "Art_Theory", "Design", "Music"),
    "Business": ("Accounting", "Economics", "Finance", "Manage", "Marketing"),
    "Science": ("Biology", "Chemistry", "Geography", "Math", "Physics"),
    "Health & Medicine": (
        *("Basic_Medical_Science", "Clinical_Medicine", "Diagnostics_and_Laboratory_Medicine"),
        *("Pharmacy", "Public_Health"),
    ),
    "Humanities & Social Science": ("History", "Literature", "Psychology", "Sociology"),
    "Tech & Engineering": (
        *("Agriculture", "Architecture_and_Engineering", "Computer_Science", "Electronics"),
        *("Energy_and_Power", "Materials", "Mechanical_Engineering"),
    ),
}
"""The subjects of MMMU's six disciplines (Yue et al. 2024, arXiv:2311.16502, Table 1), which its file names
nowhere."""
_BY_SUBJECT = {subject: discipline for discipline, subjects in DISCIPLINES.items() for subject in subjects}
_ID = re.compile(r"(?:dev|validation|test)_(?P<subject>[A-Za-z_]+)_[0-9]+")


def discipline(id: str | None) -> str | None:
    """Return the discipline of a question with this id; None if it is no id of MMMU.

    MMMU's ids begin with the part of the data and the subject: ``validation_Art_Theory_7``.
    """
    match = _ID.fullmatch(id or "")
    return _BY_SUBJECT.get(match["subject"]) if match else None


LONGEST_NAME = 500
IDS = ("id", "index", "idx", "question_id", "pid", "sample_index", "problem_id", "ID")
CATEGORIES = (
    *("category", "l2-category", "l2_category", "subfield", "subject", "task", "problem_version"),
    "sub_task",
)
GROUPINGS = (
    *(*CATEGORIES, "skills", "level", "difficulty", "topic_difficulty", "context", "grade", "key"),
    "knowledge concept",
)
"""Columns that results are broken down by; also looked for in ``metadata`` (MathVista, MathVerse)."""
SOURCES = ("source", "data_source", "dataset", "dataset_name")
COLUMNS = {
    "id": IDS,
    "images": ("images", "decoded_image", "image", "image_urls", "image_1", "image_path"),
    "question": ("question", "problem", "conversations"),
    "options": ("A", "options", "choices", "option"),
    "answer": ("answer_option", "answer", "solution", "conversations"),
    "box": ("bbox_x1", "bbox_x1_norm", "box", "bbox", "bbox_2d", "solution", "answer", "conversations"),
    "category": CATEGORIES,
    "source": SOURCES,
}
"""What a row's fields are called in files, the first that is filled; other fields have their own names."""
HUMAN, MODEL = ("human", "user"), ("gpt", "assistant")
"""Who speaks in ``conversations``."""
IN_IMAGE = "Answer the question in the image."
THINK_TAG = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_MARKED = re.compile(r"\(([A-Z])\)")
"""A letter as BLINK marks it."""
_LETTERED = [
    (re.compile(rf"(?:\A|{before})\s*\(?([A-Z])[.):：、]\s*"), furthest)
    for before, furthest in ((r"[;；\n]", 25), (r"\s", 1))
]
"""A letter before its option in a text of all options, and how far on the next may be: behind semicolons
letters may be left out, behind blanks not."""
ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def convert_vqa(record: Record, place: Place, images: Images) -> list[Row]:
    """See `Convert`."""
    options = _options(record)
    answers = _answers(record, options)
    shared = common(record, images, place)
    unit = fields.optional(record, ["unit"], 100)
    row: Row = {
        **shared,
        "question": _question(record, unit, shared["images"], options),
        "answer": answers[0],
        "options": options,
        # The type of a text says nothing about a letter.
        "answer_type": None if options else first(record, "answer_type"),
        "precision": _precision(record.get("precision")),
    }
    if len(answers) > 1:
        row["alternatives"] = answers
    if unit is not None:
        row["unit"] = unit
    if (solution := _solution(record)) is not None:
        row["solution"] = solution
    return [row]


def common(record: Record, images: Images, place: Place) -> Row:
    """Return the fields that all kinds of rows have."""
    id = fields.optional(record, IDS, LONGEST_NAME)
    if "ID" in record and (key := fields.optional(record, ["key"], LONGEST_NAME)) is not None:
        id = f"{id}/{key}"  # We-Math asks about one ID several times
    return {
        "id": id,
        "images": find_images(record, images, place),
        "source": fields.optional(record, SOURCES, LONGEST_NAME),
        "category": fields.optional(record, CATEGORIES, LONGEST_NAME),
        "categories": _categories(record),
    }


def _categories(record: Record) -> dict[str, list[str]]:
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
            found[name] = [written(v, name, LONGEST_NAME) for v in values if filled(v)]
    if (of := discipline(fields.optional(record, IDS, LONGEST_NAME))) is not None:
        found.setdefault("discipline", [of])
    return found


def find_images(record: Record, images: Images, place: Place) -> list[ImageRef]:
    """Return the images of a record, which stand in columns of the usual names."""
    for name in ("images", "decoded_image", "image", "image_urls"):
        if found := images.refs(record.get(name), place):
            return found
    if "image_1" in record:
        return [ref for k in range(1, 10) for ref in images.refs(record.get(f"image_{k}"), place)]
    path = record.get("image_path")
    if isinstance(path, str) and path.startswith("["):
        path = listed(path, "image_path")
    return images.refs(path, place)


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
    record: Record, unit: str | None, shown: Sequence[ImageRef], options: dict[str, str] | None
) -> str:
    found = asked(record, "question", "problem")
    # A field that is null says nothing. An empty text, or what pandas makes of it, is MathVerse's own mark.
    empty = any(record.get(name) is not None for name in ("question", "problem"))
    unasked = not record.keys() & {"question", "problem", "conversations"}
    if (found is None or found == "") and shown and (empty or (options and unasked)):
        return IN_IMAGE
    question = text(found, "question", fields.LONGEST_QUESTION)
    if (hint := fields.optional(record, ["hint"], fields.LONGEST_QUESTION)) is not None:
        question = f"{hint}\n{question}"
    return question if unit is None else f"{question} (unit: {unit})"


def _options(record: Record) -> dict[str, str] | None:
    given = {letter: record[letter] for letter in string.ascii_uppercase if filled(record.get(letter))}
    if not given:
        found = first(record, "options", "choices", "option")
        if found is None or found in ("None", "[]"):
            return None
        if isinstance(found, str):
            found = _lettered(found) or fields.decoded(found, "options", "a list, nor a text A. ...; B. ...")
        if isinstance(found, dict):
            # In Arrow files every row has all letters that any row has, with empty texts.
            given = {str(name).strip().upper(): option for name, option in found.items() if filled(option)}
        else:
            texts = listed(found, "options")
            if len(texts) > len(string.ascii_uppercase):
                raise DataError(f"it has {len(texts)} options")
            given = dict(zip(string.ascii_uppercase, texts, strict=False))
    if not given:
        return None
    if len(given) < 2 or not all(len(letter) == 1 and letter in string.ascii_uppercase for letter in given):
        raise DataError(f"its options {shown(sorted(given))} are not two or more single letters")
    return {
        letter: written(option, f"option {letter}", fields.LONGEST_ANSWER) for letter, option in given.items()
    }


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
                mark[1]: text[mark.end() : end].strip(" \t\n;；")
                for mark, end in zip(marks, ends, strict=True)
            }
    return {}


def _answers(record: Record, options: dict[str, str] | None) -> list[str]:
    """Return the letters of the right options, or the accepted answers, in the record's order."""
    if options is not None and filled(record.get("answer_option")):
        return [
            _letter(written(record["answer_option"], "answer_option", fields.LONGEST_ANSWER), options, False)
        ]
    found = first(record, "answer", "solution")
    found = spoken(record, MODEL) if found is None else found
    if isinstance(found, str) and (tagged := ANSWER_TAG.findall(found)):
        found = tagged[-1]
    several = found if isinstance(found, list) and found else [found]
    # MMMU writes several accepted answers as a list; MathVista's lists are one answer.
    is_list = isinstance(found, str) and found.strip().startswith("[")
    if options is None and record.get("question_type") == "open" and is_list:
        several = listed(found, "answer")
    if filled(record.get("alternatives")):
        several = [*several, *listed(record["alternatives"], "alternatives")]
    answers = [written(answer, "answer", fields.LONGEST_ANSWER) for answer in several]
    if options is not None:
        # MathVista's answers to `choices` are texts, even "2" and "B"; AI2D's to `options` are places.
        are_texts = filled(record.get("choices")) or record.get("answer_type") == "text"
        read = _chosen_text if are_texts else _letter
        answers = [read(answer, options) for answer in answers]
    return list(dict.fromkeys(answers))


def _solution(record: Record) -> str | None:
    """Return how the answer is found, if the record says so besides the answer itself."""
    found = record.get("solution")
    if not isinstance(found, str):
        return None
    if thoughts := THINK_TAG.findall(found):
        return str(thoughts[0]).strip() or None
    return found.strip() if filled(record.get("answer")) and found.strip() else None


def _letter(answer: str, options: dict[str, str], by_place: bool = True) -> str:
    """Return the letter that an answer means: as a letter, a text, or with ``by_place`` a number from 0.

    Raises:
        DataError: The answer means no option, or two different ones.
    """
    if answer.upper() in options:
        return answer.upper()
    if (marked := _MARKED.fullmatch(answer)) and marked[1] in options and answer not in options.values():
        return marked[1]
    letters = [letter for letter, option in options.items() if option == answer]
    if by_place and answer.isascii() and answer.isdigit() and int(answer) < len(options):
        letters.append(list(options)[int(answer)])
    if len(set(letters)) == 1:
        return letters[0]
    reason = "could be " + " or ".join(letters) if letters else "is none of the options"
    raise DataError(f"its answer {shown(answer)} {reason}: {shown(options, 200)}")


def _chosen_text(answer: str, options: dict[str, str]) -> str:
    """Return the letter of the only option with this text, else what `_letter` reads without places."""
    letters = [letter for letter, option in options.items() if option == answer]
    return letters[0] if len(letters) == 1 else _letter(answer, options, by_place=False)


def _precision(value: Any) -> int | None:
    if not filled(value) or value == "None":
        return None
    found = fields.number(value, "precision")
    if not found.is_integer() or not 0 <= found <= 12:
        raise DataError(f"its precision is {shown(value)}, not a number of decimals from 0 to 12")
    return int(found)
