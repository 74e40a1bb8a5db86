"""Forward passes of an optimiser batch: which rows of which groups are forwarded together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.core import ranks
from selfverify.learner.streams import TokenStreams

_PASS_TOKENS = 256
"""What a forward pass costs beside its tokens, in tokens. It keeps slices of groups from being too small."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of a group, which are forwarded behind one copy of its prompt.

    Args:
        group: The place of the group in the batch.
        rows: The places of its trajectories in the group.
    """

    group: int
    rows: list[int]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Slices of groups that are forwarded together.

    Args:
        slices: At least one.
        counts: False for a pass that only keeps the processes in step. Its gradient and its figures are
            dropped.
    """

    slices: list[Slice]
    counts: bool = True


def micro_batches(
    groups: Sequence[TokenStreams], size: int, tokens: int | None = None, whole: bool = False
) -> list[MicroBatch]:
    """Return this process's forward passes. Groups of like lengths go together, so that little is padding.

    A group that is longer than ``tokens`` is sliced: its longest row does not make all others as long, and
    its passes need less memory. The prompt is forwarded once for each slice.

    Wrappers make all processes work in step, so all get as many passes as the busiest process has. A process
    that has fewer repeats a small pass, which does not count.

    Args:
        groups: The groups of all processes; each names its owner.
        size: The largest number of groups in one pass.
        tokens: The largest number of tokens in one pass, padding included. A single row that is longer is a
            pass of its own. None is no limit.
        whole: Whether the rows of a group have to stay together, whatever their length.
    """
    order = sorted(range(len(groups)), key=lambda i: (len(groups[i].prompt.ids), groups[i].width))
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks.count())]
    for owner, passes in enumerate(shares):
        own = [i for i in order if groups[i].owner == owner]
        passes += _joined(groups, own, size, tokens) if whole else _sliced(groups, own, size, tokens)
    mine = shares[ranks.index()]
    spare = (mine or [each for share in shares for each in share])[0]
    missing = max(len(share) for share in shares) - len(mine)
    return mine + [MicroBatch(spare.slices[:1], counts=False)] * missing


def _sliced(
    groups: Sequence[TokenStreams], own: Sequence[int], size: int, tokens: int | None
) -> list[MicroBatch]:
    """Return the passes of the groups ``own``: those that fit are joined, the others are cut into slices."""
    fitting = [i for i in own if tokens is None or _padded([groups[i]]) <= tokens]
    cut = [Slice(i, rows) for i in own if i not in fitting for rows in row_slices(groups[i], tokens or 0)]
    return _joined(groups, fitting, size, tokens) + [MicroBatch([each]) for each in cut]


def _joined(
    groups: Sequence[TokenStreams], own: Sequence[int], size: int, tokens: int | None
) -> list[MicroBatch]:
    """Return passes of whole groups, in the order of ``own``."""
    batches: list[list[int]] = []
    for i in own:
        joined = [*batches[-1], i] if batches else [i]
        fits = tokens is None or _padded([groups[j] for j in joined]) <= tokens
        if batches and len(joined) <= size and fits:
            batches[-1] = joined
        else:
            batches.append([i])
    return [MicroBatch([Slice(i, [*range(len(groups[i].tokens))]) for i in batch]) for batch in batches]


def _padded(groups: Sequence[TokenStreams]) -> int:
    """Return how many tokens a pass of groups has, padding included."""
    prompt = max(len(group.prompt.ids) for group in groups)
    rows = max(len(group.tokens) for group in groups) * max(group.width for group in groups)
    return len(groups) * (prompt + rows)


def row_slices(group: TokenStreams, tokens: int) -> list[list[int]]:
    """Cut a group's rows into slices, such that all slices together have as few tokens as possible.

    A slice has the prompt once and its rows as long as its longest. So rows of like lengths belong together,
    and the best cut goes through the rows in the order of their lengths (dynamic programming over cuts).

    Args:
        group: A group of G rows.
        tokens: The largest number of tokens in a slice. A slice of one row may have more.

    Returns:
        Lists of rows. Together they are all G rows, from the shortest to the longest.
    """
    lengths = [len(row) for row in group.tokens]
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    best: list[tuple[int, list[list[int]]]] = [(0, [])]
    """The cost and the slices of the first 0, 1, 2, ... rows of ``order``."""
    for end in range(1, len(order) + 1):
        choices = []
        for start in range(end):
            count = end - start
            needed = len(group.prompt.ids) + count * lengths[order[end - 1]]
            if needed <= tokens or count == 1:
                cost, slices = best[start]
                choices.append((cost + needed + _PASS_TOKENS, [*slices, order[start:end]]))
        best.append(min(choices, key=lambda choice: choice[0]))
    return best[-1][1]
