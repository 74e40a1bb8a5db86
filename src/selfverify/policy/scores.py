"""Reads verification scores greedily and softly, instead of taking the sampled scores.

Sampling a score at T = 1 throws most of its information away. Here one forward pass, which shares the prompt,
gives the probabilities of the score's tokens behind a given answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from selfverify.core.score_tokens import ScoreReading, ScoreTree, score_texts
from selfverify.policy.encoding import Prompt
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy

READ_BATCH = 8
"""The number of prompts whose scores are read at once. Memory depends on it, and the scores do not."""


def score_tree(tokenizer: Any, decimals: int = 1, bare: bool = False) -> ScoreTree:
    """Return the tree of the score texts of so many decimals, as they are written behind ``<score>``.

    With ``bare`` also of a 0 without decimals: what closes the tag behind it is a branch beside the point. (A
    1 is 1 with and without decimals.)
    """
    texts = score_texts(decimals)
    written = [tokenizer(f"<score>{text}", add_special_tokens=False)["input_ids"] for text in texts]
    shared = next(n for n, tokens in enumerate(zip(*written, strict=False)) if len(set(tokens)) > 1)
    root = ScoreTree()
    for text, tokens in zip(texts, written, strict=True):
        root.add(tokens[shared:], float(text))
    if bare:
        tokens = tokenizer("<score>0</score>", add_special_tokens=False)["input_ids"][shared:]
        node, path = root, list[int]()
        for token in tokens:
            path.append(token)
            if token not in node.children:
                root.add(path, 0.0)
                break
            node = node.children[token]
    return root


@torch.no_grad()
def read_scores(
    policy: Policy,
    prompts: Sequence[Prompt],
    prefixes: Sequence[Sequence[Sequence[int] | Continuation | None]],
    temperature: float = 1.0,
    decimals: int = 1,
    bare: bool = False,
) -> list[list[ScoreReading | None]]:
    """Read the scores behind given answers.

    The soft score is the expectation over the score texts 0.0, 0.1, ..., 1.0. At each token where those
    texts branch, the policy's probabilities are normalised over the branches; where they do not branch
    (the point after "0") the token is taken as certain. With one token per character this is
    p(1) * 1 + p(0) * sum_d p(d | "0.") * d/10, and with ``bare`` the sum times p("." | "0"): a policy that
    closes the tag behind a 0 means 0. Scores from a server are read so, too (`clients.replies`).

    Args:
        policy: Any policy, not only the one that wrote the answers.
        prompts: B encoded prompts.
        prefixes: The responses to each prompt, up to and with ``<score>``, as tokens or, where they hold
            images, as `Continuation`; None where there is no score.
        temperature: Divides the logits, as in sampling; 0 is read as 1.
        decimals: The decimals of the score texts: 2 for 0.00, 0.01, ..., 1.00.
        bare: Whether a 0 without decimals is a score, too.

    Returns:
        B lists of readings, None where the prefix is None.
    """
    if len(prompts) > READ_BATCH:
        parts = [slice(start, start + READ_BATCH) for start in range(0, len(prompts), READ_BATCH)]
        more = temperature, decimals, bare
        return [row for part in parts for row in read_scores(policy, prompts[part], prefixes[part], *more)]
    tree = score_tree(policy.tokenizer, decimals, bare)
    branchings = tree.branchings()
    paths = tree.paths()
    given = [
        [
            (g, prefix if isinstance(prefix, Continuation) else Continuation(prefix))
            for g, prefix in enumerate(group)
            if prefix is not None
        ]
        for group in prefixes
    ]
    results: list[list[ScoreReading | None]] = [[None] * len(group) for group in prefixes]
    if not any(given):
        return results
    continuations = [
        [Continuation([*prefix.tokens, *path, 0], prefix.images) for _, prefix in group for path in paths]
        for group in given
    ]
    hidden = policy.hidden_states(prompts, policy.stack(continuations))
    found: dict[tuple[int, int], dict[tuple[int, ...], dict[int, float]]] = {}
    for path, node in branchings:
        slot = next(i for i, p in enumerate(paths) if p[: len(path)] == path)
        places = {
            (b, g): (b, n * len(paths) + slot, len(prefix.tokens) + len(path))
            for b, group in enumerate(given)
            for n, (g, prefix) in enumerate(group)
        }
        states = hidden[torch.tensor(list(places.values()), device=hidden.device).unbind(-1)]
        children = list(node.children)
        for answer, shares in zip(places, _shares(policy, states, children, temperature), strict=True):
            found.setdefault(answer, {})[path] = dict(zip(children, shares, strict=True))
    for (b, g), probabilities in found.items():
        results[b][g] = ScoreReading(tree, probabilities)
    return results


def _shares(policy: Policy, states: Tensor, tokens: list[int], temperature: float) -> list[list[float]]:
    """Return probabilities ``[N, K]`` of ``tokens`` against each other, with few rows of logits at a time."""
    logits = [policy.head.logits(part)[:, tokens] for part in states.split(policy.config.logprob_chunk)]
    shares: list[list[float]] = (torch.cat(logits).float() / (temperature or 1.0)).softmax(-1).tolist()
    return shares
