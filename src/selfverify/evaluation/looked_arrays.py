"""Conversations that were held to the cap (`selfverify.evaluation.looked`) as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfverify.core.errors import DataError
from selfverify.evaluation.looked import CappedConversation, CappedProblem, CappedStep
from selfverify.selection.rules import Floats

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CappedArrays:
    """Conversations as arrays: N conversations about P problems, of at most H steps, H above 0.

    Args:
        problem: ``[N]`` the problem's place, from 0 to P - 1.
        lengths: ``[N]`` how many steps each has.
        delta_r: ``[N, H]`` Δr, nats; NaN where nothing was measured, and behind the last step.
        delta_r_plan: ``[N, H]`` the plan's part of it.
        correct: ``[N, H + 1]`` whether the answer after h = 0, 1, ... steps is right; NaN behind the last.
        own: ``[N, H]`` whether the model's own, refused answer in a step is right; NaN where there is none.
        final: ``[N]`` whether the answer is right with which the conversation ended.
        visual: ``[N, H + 1]`` visual tokens that have been shown after h steps, the question's among them.
        enough: ``[N]`` the step after which everything needed had been shown, 0 where it never had; None
            where the task does not know.
        left_out: How many conversations were left out, as they failed or a judge had no verdict.
        seen: ``[N, H + 1]`` how much of what the answer needs had been shown after h steps, from 0 to 1; NaN
            behind the last step, None where the task does not know.
        names: The ids of the P problems.
    """

    problem: Ints
    lengths: Ints
    delta_r: Floats
    delta_r_plan: Floats
    correct: Floats
    own: Floats
    final: Floats
    visual: Floats
    enough: Ints | None
    left_out: int
    seen: Floats | None = None
    names: Sequence[str] = ()

    @property
    def problems(self) -> int:
        """P."""
        return int(self.problem.max(initial=-1)) + 1


def as_arrays(rows: Mapping[int, CappedProblem]) -> CappedArrays:
    """The conversations of a journal as arrays; those of which nothing can be said are left out and counted.

    Raises:
        DataError: None is left.
    """
    kept: list[tuple[int, CappedProblem, CappedConversation]] = []
    left_out, place = 0, 0
    for index in sorted(rows):
        whole = [talk for talk in rows[index].talks if _is_whole(talk)]
        left_out += len(rows[index].talks) - len(whole)
        kept += [(place, rows[index], talk) for talk in whole]
        place += bool(whole)
    if not kept:
        raise DataError(
            f"all {left_out} conversations failed or have no verdict; there is nothing to compare"
        )
    talks = [talk for _, _, talk in kept]
    most = max(1, *(len(talk.steps) for talk in talks))

    def steps(figure: Callable[[CappedStep], float | None]) -> Floats:
        filled = np.full((len(talks), most), np.nan)
        for row, talk in zip(filled, talks, strict=True):
            values = [figure(step) for step in talk.steps]
            row[: len(values)] = [np.nan if value is None else value for value in values]
        return filled

    before = np.array([talk.before for talk in talks], dtype=np.float64)
    first = np.array([row.visual_tokens for _, row, _ in kept], dtype=np.float64)
    shown = np.nan_to_num(steps(lambda step: step.visual_tokens))
    enough = [talk.enough for talk in talks]
    known = all(step.seen is not None for talk in talks for step in talk.steps) and None not in enough
    seen = np.column_stack([np.zeros(len(talks)), steps(lambda step: step.seen)])
    return CappedArrays(
        np.array([number for number, _, _ in kept], dtype=np.int64),
        np.array([len(talk.steps) for talk in talks], dtype=np.int64),
        steps(lambda step: step.delta_r),
        steps(lambda step: step.delta_r_plan),
        np.column_stack([before, steps(lambda step: step.correct)]),
        steps(lambda step: step.own),
        np.array([talk.final for talk in talks], dtype=np.float64),
        first[:, None] + np.column_stack([np.zeros(len(talks)), np.cumsum(shown, axis=1)]),
        None if None in enough else np.array(enough, dtype=np.int64),
        left_out,
        seen if known else None,
        [row.problem for row in {id(row): row for _, row, _ in kept}.values()],
    )


def _is_whole(talk: CappedConversation) -> bool:
    verdicts: Sequence[float | None] = [talk.before, talk.final, *(step.correct for step in talk.steps)]
    return not talk.lost and None not in verdicts
