"""MathVista's published scoring: a model extracts the answer, which is normalised and compared as text.

After `evaluation/extract_answer.py` and `calculate_score.py` of github.com/lupantech/MathVista at 53d5258
(Lu et al. 2024), as its README calls them: without `--quick_extract` and `--ignore_empty_extractions`. There
GPT-4 extracts, which reads the question with its hint at the answer's form behind five examples, in one
message of the user; here the extractor of evaluations does, with the same in our words and no examples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from selfverify.core.jsonl_store import read_journal
from selfverify.core.problem import Problem
from selfverify.evaluation.extraction import Extractor
from selfverify.evaluation.samples import StoredProblem, StoredSample, find_store
from selfverify.tasks.base import Task
from selfverify.tasks.math import form_hint
from selfverify.tasks.mobile import edit_distance


def published_accuracy(folder: Path, task: Task, extractor: Extractor) -> float:
    """The share of right answers of an evaluation's folder, of whose problems each was asked once."""
    _, rows = read_journal(find_store(folder), StoredProblem)
    asked = [(task.problem("test", 0, row.index), last_words(row.samples[0])) for row in rows.values()]
    unread = [(problem, said) for problem, said in asked if quick(said, problem.meta) is None]
    told = iter(
        extractor.extract([_with_form(problem) for problem, _ in unread], [said for _, said in unread])
    )
    right = 0
    for problem, said in asked:
        extraction = quick(said, problem.meta)
        found = next(told) if extraction is None else extraction
        right += equals(found or "", problem)
    return right / len(asked)


def _with_form(problem: Problem) -> Problem:
    """A problem whose question says which form its answer has, so that "2007 and 2008" is read as a list."""
    question = f"{problem.meta['question']}\n{form_hint(problem.meta)}".strip()
    return replace(problem, meta=problem.meta | {"question": question})


def last_words(sample: StoredSample) -> str:
    """The last turn of a conversation, or the answer."""
    return next((step.text for step in reversed(sample.steps) if step.author == "policy"), sample.text)


def quick(said: str, meta: Mapping[str, Any]) -> str | None:
    """The extraction where none is needed: nothing, an option's text, or a number of the wanted type."""
    if not said or said in (meta.get("options") or {}).values():
        return said
    kinds = {"integer": int, "float": float}
    try:
        return str(kinds[meta["answer_type"]](said))
    except (KeyError, ValueError):
        return None


def equals(extraction: str, problem: Problem) -> bool:
    """Whether an extraction is the answer, once normalised.

    A choice is the option that is written most alike, which for no extraction is the shortest one; equal
    options are one. An integer loses its decimals, and a float is rounded.
    """
    meta, options = problem.meta, problem.meta.get("options")
    if options:
        marked = re.search(r"\(([a-zA-Z])\)", extraction)
        letter = marked[1].upper() if marked else extraction.strip()
        if letter not in options:
            letter = min(options, key=lambda own: edit_distance(letter, options[own]))
        return bool(options[letter] == options[problem.target])
    try:
        match meta.get("answer_type"):
            case "integer":
                extraction = str(int(float(extraction)))
            case "float":
                extraction = str(round(float(extraction), meta["precision"]))
    except (KeyError, ValueError, OverflowError):
        return False
    return extraction == str(meta["answer"])
