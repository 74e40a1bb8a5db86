"""A training step's real code without weights: how long its conversations are, and what it would hold.

`Lengths.of` finds how long a step's prompts and conversations are, from a few problems of the recipe's and
its limits. `Meter` counts the bytes that tensors hold and `count_flops` the floating-point operations on
them, real or empty.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any, tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from selfverify.core.episode import Observation
from selfverify.core.problem import Problem
from selfverify.experiments.recipe import Recipe, recipe_task
from selfverify.methods.base import Method
from selfverify.policy.encoding import Prompt
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn

MOST = 8
"""The most problems that are drawn; a larger step repeats them."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The prompts and conversations of one step on one GPU.

    Args:
        prompts: The B prompts; no two images are the same.
        problems: The problems that were drawn, at most `MOST`.
        group_size: The number of conversations per prompt (G).
        trained: Of each token behind a prompt, at the longest, whether the policy has said it.
        heard: How many tokens an environment says at a time.
        sampled: How many of them are sampled, 0 where nothing is.
        stated: Where the lengths come from, in words for people.
    """

    prompts: list[Prompt]
    problems: list[Problem]
    group_size: int
    trained: list[bool]
    heard: int
    sampled: int
    stated: str

    @classmethod
    def of(cls, recipe: Recipe, method: Method, policy: Policy, groups: int, heard: int | None) -> Lengths:
        """Draw a few problems, and let conversations go on to the recipe's limits.

        Args:
            recipe: The recipe.
            method: Its method.
            policy: Encodes the prompts.
            groups: How many problems the step has.
            heard: The tokens of what an environment says at a time.

        Raises:
            DataError: The task cannot make its problems.
        """
        task = recipe_task(recipe)
        task.set_coordinate_space(policy.coordinate_space)
        problems = [task.problem("train", recipe.seed, i) for i in range(min(groups, MOST))]
        drawn = [policy.encoder.prompt(problem) for problem in problems]
        prompts = [
            replace(prompt, images=[replace(image, key=f"{n}/{image.key}") for image in prompt.images])
            for n, prompt in enumerate(islice(cycle(drawn), groups))
        ]
        stated = f"{len(drawn)} problems of {task.name} were drawn"
        if not samples(recipe, method):
            return cls(prompts, problems, 1, [], 0, 0, stated)
        limits = method.limits or task.limits
        begins = any(problem.environment_begins for problem in problems)
        words = recipe.method.options.get("second_turn")
        if heard is None and words is not None and not begins:
            asked = Problem("planned", user_turn("", 0))
            heard = len(ReplyEncoder(policy.encoder).encode(asked, Observation(words), 1).tokens)
        stated += f", conversations go on to sampling.max_new_tokens in each of {limits.turns} turns"
        if heard is None and (begins or limits.turns > 1):
            stated += ", and what their environment says is NOT counted: say how long it is"
        reply, said = [False] * (heard or 0), [True] * recipe.sampling.max_new_tokens
        trained = [*(reply if begins else []), *(said + reply) * (limits.turns - 1), *said]
        if limits.tokens is not None:
            trained = trained[: max(limits.tokens - min(len(prompt.ids) for prompt in prompts), 1)]
        group = recipe.sampling.group_size
        return cls(prompts, problems, group, trained, len(reply), sum(trained), stated)


def samples(recipe: Recipe, method: Method) -> bool:
    """Whether the method samples. Of fine-tuning methods, only that of second turns does."""
    return method.measured or "second_turn" in recipe.method.options


@dataclass(slots=True, eq=False)
class Span:
    """The memory and the operations between two moments.

    Args:
        peak: The bytes held at the worst moment, by label.
        flops: Floating-point operations of matrix products, convolutions and attention, two per
            multiply-add; causal attention is counted in full.
    """

    peak: dict[str, int] = field(default_factory=dict)
    flops: int = 0

    @property
    def total(self) -> int:
        """The bytes at the worst moment."""
        return sum(self.peak.values())


class Meter(TorchDispatchMode):
    """A context in which every tensor's storage is counted from when it is made until it is freed.

    The memory that a kernel needs besides its results, and the memory that an allocator holds back, are not
    counted.

    Args:
        vocabulary: Tensors whose last dimension is this are labelled ``logits``.
    """

    def __init__(self, vocabulary: int | None = None) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.label = "activations"
        """The label of new storages."""
        self.live: Counter[str] = Counter()
        self._held: dict[int, tuple[str, int]] = {}
        self._spans: list[Span] = []

    @contextmanager
    def span(self, label: str = "activations") -> Iterator[Span]:
        """Count until the end of the block, where new tensors are labelled ``label``."""
        before, self.label = self.label, label
        span = Span(dict(self.live))
        self._spans.append(span)
        try:
            yield span
        finally:
            self._spans.remove(span)
            self.label = before

    def relabel(self, tensors: Iterable[Tensor | None], label: str) -> None:
        """Give ``tensors`` another label. Tensors made outside of the context are counted from now on."""
        for tensor in tensors:
            if tensor is not None:
                self._count(tensor, label, replace=True)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor):
                    self._count(tensor, self.label)
            if self._spans and (flops := count_flops(func, args, kwargs or {}, out)):
                for span in self._spans:
                    span.flops += flops
        return out

    def _count(self, tensor: Tensor, label: str, replace: bool = False) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        held = self._held.get(key)
        if held is not None:
            if replace and held[0] != label:
                self.live[held[0]] -= held[1]
                self.live[label] += held[1]
                self._held[key] = (label, held[1])
            return
        if not replace and label == "activations" and tensor.dim() and tensor.shape[-1] == self.vocabulary:
            label = "logits"
        self._held[key] = (label, storage.nbytes())
        weakref.finalize(storage, self._free, key).atexit = False
        self.live[label] += storage.nbytes()
        total = sum(self.live.values())
        for span in self._spans:
            if total > span.total:
                span.peak = dict(self.live)

    def _free(self, key: int) -> None:
        label, size = self._held.pop(key)
        self.live[label] -= size


def count_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Return the floating-point operations of one call, by PyTorch's formulas.

    Attention is counted by our own formula, because key heads may be fewer than query heads.
    """
    packet = func._overloadpacket
    name: str = packet.__name__
    if name.startswith("_scaled_dot_product") and "attention" in name:
        # Backward: the gradient comes first, and five products instead of two are made.
        (query, key, value), more = (args[1:4], (3, 2)) if name.endswith("backward") else (args[:3], (1, 1))
        products = more[0] * query.shape[-1] + more[1] * value.shape[-1]
        return int(2 * prod(query.shape[:-1]) * key.shape[-2] * products)
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0


aten = torch.ops.aten
META, CPU = torch.device("meta"), torch.device("cpu")


class DryRun(TorchDispatchMode):
    """Runs the real code without weights: a tensor that depends on a weight has a shape and no values.

    Inside it and `Host`, tensors that are made from nothing but token ids, positions, masks, image grids and
    other small tables are computed as always, so code may look into them. Every tensor that depends on a
    weight is on PyTorch's meta device: it has a shape and a type, takes no memory and costs no arithmetic.
    Code that asks such a tensor for its device is told that it is the CPU, so it chooses as it would there.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not tree_any(_is_empty, (args, kwargs)):
            return func(*args, **({**kwargs, "device": CPU} if "device" in kwargs else kwargs))
        if func is aten._local_scalar_dense.default:
            # Losses, norms and largest differences go into logs and checks, and never into a shape.
            return torch.zeros((), dtype=args[0].dtype, device=CPU).item()
        if func._schema.is_mutable and isinstance(args[0], Tensor) and not args[0].is_meta:
            return args[0]
        if func in _INDEXED:
            args = (args[0], _without_masks(args[1]), *args[2:])
        args, kwargs = tree_map(_emptied, (args, kwargs))
        if func is aten.masked_scatter_backward.default:
            return args[0].new_empty(args[2])
        return func(*args, **({**kwargs, "device": META} if "device" in kwargs else kwargs))


CHECKPOINTING = {
    "use_reentrant": False,
    "determinism_check": "none",
    "context_fn": lambda: (nullcontext(), Host()),
}
"""The arguments of ``torch.utils.checkpoint``. When autograd computes a forward pass again, it does so
outside of function modes, so the mode that names the device is entered again."""

_INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}


def _is_empty(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_meta


def _emptied(x: Any) -> Any:
    return torch.empty_like(x, device=META) if isinstance(x, Tensor) and not x.is_meta else x


def _without_masks(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Replace boolean masks by indices: the shape of what a mask selects depends on its values."""
    found: list[Tensor | None] = []
    for x in indices:
        mask = x is not None and x.dtype is torch.bool and not x.is_meta
        found += x.nonzero().unbind(1) if mask and x is not None else [x]
    return found


class Host(TorchFunctionMode):
    """Says that tensors without values are on the CPU, and chooses its kernels."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _DEVICE:
            return CPU
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is Tensor.cpu:
            return args[0]
        if isinstance(func, OpOverload | OpOverloadPacket):
            return func(*args, **kwargs)
        # `DryRun` decides what is computed.
        here = META if func is Tensor.to and args[0].is_meta else CPU
        if func is Tensor.to:
            args = tuple(here if isinstance(x, torch.device | str) else x for x in args)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": here}
        return func(*args, **kwargs)


_DEVICE = Tensor.device.__get__


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run the kernel that PyTorch would take: flash, unless there is dropout or the mask needs a gradient."""
    if dropout_p or (attn_mask is not None and attn_mask.requires_grad):
        plain = aten._scaled_dot_product_attention_math
        out = plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    else:
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = query.new_zeros(attn_mask.shape).masked_fill(~attn_mask, float("-inf"))
        if attn_mask is not None:
            attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
        flash = aten._scaled_dot_product_flash_attention_for_cpu
        out = flash(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    result: Tensor = out[0]
    return result
