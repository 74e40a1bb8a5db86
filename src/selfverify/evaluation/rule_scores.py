"""Verifiers that cost nothing: rules on an answer's text that a task knows, as scores beside the model's own.

A verifier that reads the same text is worth what it is above them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG, parse_tagged
from selfverify.evaluation.store import StoredSample
from selfverify.tasks.base import Task

TEXT_RULES = ("text_rule", "text_rule_read")
"""The names of such scores (`Task.text_rules`)."""


def with_rule_scores(
    samples: Sequence[StoredSample], task: Task, problems: Mapping[str, Problem]
) -> list[StoredSample]:
    """Return the samples with the scores of the task's rules, too; the others stay as they are.

    Answers without a score to compare with have none: those of a task that asks for no score, malformed ones,
    and whole conversations.

    Args:
        samples: What was answered; the text is read once more.
        task: Has the rules.
        problems: The problems by id; their images are not needed.
    """
    if SCORE_TAG not in task.tags:
        return [*samples]
    return [replace(s, scores={**s.scores, **_scores(s, task, problems[s.problem])}) for s in samples]


def _scores(sample: StoredSample, task: Task, problem: Problem) -> dict[str, float]:
    tagged = parse_tagged(sample.text, task.tags)
    return {} if sample.steps or not tagged.answer_ok else task.text_rules(problem, tagged)
