"""g10: each model family on a tiny model: log-probabilities and gradients with an image in mid-conversation.

Sliced: as many continuations at once as fit, and one by one; checkpointed: with activations made anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from goldens.tree import Tree

FIRST, LAST = [[70, 71, 72], [75], [76, 77]], [[80, 81, 82, 83], [84], [85, 86]]
WAYS: dict[str, dict[str, Any]] = {
    "shared": {},
    "plain": {"shared_prefix": "off"},
    "checkpointed": {"gradient_checkpointing": True},
    "in chunks": {"prefill_chunk": 5, "logprob_chunk": 3},
}
MOST = 12
"""Gradients that are stored whole, of each family and way; of the others the sums are."""


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Return noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def run(tree: Tree) -> None:
    """Compute all families in all ways."""
    torch.set_num_threads(1)
    families = tree.get("benchmarks.families")
    user_turn, problem = (
        tree.get("selfverify.tasks.base:user_turn"),
        tree.get("selfverify.core.problem:Problem"),
    )
    problems = [
        problem("one", user_turn("Which digits are shown here?"), [picture(1, 48, 40)]),
        problem("none", user_turn("Say 7.", images=0)),
        problem("two", user_turn("Compare these.", images=2), [picture(2, 64, 32), picture(3, 32, 32)]),
    ]
    for kind in sorted(families.KINDS):
        folder = families.write_family(kind, tree.scratch / kind)
        for way, settings in WAYS.items():
            options = tree.options("policy", settings)
            policy = tree.get("selfverify.policy.policy:Policy.load")(str(folder), device="cpu", **options)
            compute(tree, f"{kind} {way}", policy, problems, sliced=way == "plain")


def compute(tree: Tree, name: str, policy: Any, problems: list[Any], sliced: bool) -> None:
    """Store what a policy says of continuations, and the gradient of a weighted sum."""
    prompts = policy.encode(problems)
    tree.row(f"{name} prompts", ids=[prompt.ids for prompt in prompts])
    groups = [[continuation(tree, policy, p, b, g) for g in range(3)] for b, p in enumerate(problems)]
    found = policy.logprobs(prompts, groups)
    noise = torch.randn(found.shape, generator=torch.Generator().manual_seed(7))
    if sliced:
        for g in range(3):
            part = policy.logprobs(prompts, [[group[g]] for group in groups])
            (part[:, 0] * noise[:, g, : part.shape[2]]).sum().backward()
    else:
        (found * noise).sum().backward()
    tree.tensor(f"{name} log-probabilities", found)
    learning = [(n, p.grad) for n, p in policy.model.named_parameters() if p.grad is not None]
    tree.row(f"{name} gradients", sums={n: float(grad.double().sum()) for n, grad in learning})
    for number, (parameter, grad) in enumerate(learning):
        if number < MOST:
            tree.tensor(f"{name} gradient {parameter}", grad)


def continuation(tree: Tree, policy: Any, problem: Any, b: int, g: int) -> Any:
    """Return a turn, what the environment shows, and another turn; an image in two of three."""
    encoder = tree.get("selfverify.policy.replies:ReplyEncoder")(policy.encoder)
    reply = tree.get("selfverify.core.episode:Reply")
    words = {"type": "text", "text": "and " * (b + g + 1)}
    shown = reply([words]) if g == 1 else reply([{"type": "image"}, words], [picture(g + 5, 48, 32)])
    end = policy.tokenizer.eos_token_id
    piece = encoder.encode(problem, shown, 0)
    tokens = [*FIRST[g], end, *piece.tokens, *LAST[b][: g + 1]]
    return tree.get("selfverify.policy.continuations:Continuation")(tokens, piece.images)
