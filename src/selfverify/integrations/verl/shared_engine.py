"""verl's FSDP engine with the prompt of a group forwarded once for all its rows.

verl's own engine forwards each of the G answers to a problem with a copy of the prompt: G * (P + R) tokens.
This one puts the answers of a micro-batch that have the same prompt behind one copy of it, P + G * R tokens,
with the attention of `selfverify.policy.shared_attention`; the images of a prompt pass through the vision
tower once. Values and gradients are the same. Rows that it cannot share are forwarded as verl does, and a
warning says why.

verl takes it where the environment variable ``VERL_ENGINE_VENDOR`` is `launch.VENDOR`.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict
from torch import Tensor
from verl.utils import tensordict_utils
from verl.utils import torch_functional as verl_functional
from verl.utils.model import extract_multi_modal_inputs
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

from selfverify.core.errors import ConfigError
from selfverify.integrations.verl.launch import VENDOR
from selfverify.policy.packing import Carrier, SharedLayout
from selfverify.policy.shared_attention import ATTENTION, check_kinds, check_layers

_IMAGES = {"pixel_values", "image_grid_thw"}
"""The inputs of images that belong to a prompt as a whole. Others may be per token."""
_UNUSED = {"images_seqlens"}
"""Sizes of images that verl counts operations with."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Packed:
    """Prompts with their responses behind them, and where verl wants what is computed of them.

    Args:
        layout: B prompts with up to G responses each.
        ids_bl: ``[B, P + G*R]`` tokens; the last of a response predicts nothing and is left out.
        positions: ``[B, P + G*R]``, or ``[A, B, P + G*R]`` with A axes.
        sources: ``[T]`` for all T response tokens, row by row, the place in flat ``[B * (P + G*R)]`` of the
            token that predicts it.
        labels: ``[T]`` these tokens.
        targets: ``[T]`` the places of their figures in verl's flat rows of prompt and response, where a
            figure stands at the token before.
        rows: ``[T]`` their rows.
    """

    layout: SharedLayout
    ids_bl: Tensor
    positions: Tensor
    sources: Tensor
    labels: Tensor
    targets: Tensor
    rows: Tensor


def same_prompts(prompts: Sequence[Tensor], images: Sequence[dict[str, Tensor]]) -> list[list[int]]:
    """Return the rows of each different prompt, in the order of first rows.

    Args:
        prompts: The tokens of each row's prompt.
        images: What the vision tower gets for each row; two prompts with different images are different.
    """
    by_tokens: dict[tuple[int, ...], list[list[int]]] = {}
    groups: list[list[int]] = []
    for row, prompt in enumerate(prompts):
        candidates = by_tokens.setdefault(tuple(prompt.tolist()), [])
        for group in candidates:
            first = images[group[0]]
            if first.keys() == images[row].keys() and all(
                torch.equal(value, images[row][name]) for name, value in first.items()
            ):
                group.append(row)
                break
        else:
            candidates.append([row])
            groups.append(candidates[-1])
    return groups


def pack(
    groups: Sequence[Sequence[int]],
    prompts: Sequence[Tensor],
    responses: Sequence[Tensor],
    positions: Sequence[Tensor],
    offsets: Tensor,
) -> Packed:
    """Put the responses of each group behind one copy of their prompt.

    Args:
        groups: Rows with the same prompt.
        prompts: Tokens ``[P]`` of each row.
        responses: Tokens ``[R]`` of each row, R >= 1.
        positions: ``[P + R]`` or ``[A, P + R]`` of each row.
        offsets: Where each row begins in verl's flat rows.
    """
    device = prompts[0].device
    lengths = torch.tensor([len(prompts[group[0]]) for group in groups], device=device)
    width, fed = int(lengths.max()), max(len(response) for response in responses) - 1
    size = max(len(group) for group in groups)
    total = width + size * fed
    ids_bl = prompts[0].new_zeros(len(groups), total)
    places = positions[0].new_zeros(*positions[0].shape[:-1], len(groups), total)
    sources, targets, rows = ([torch.empty(0)] * len(prompts) for _ in range(3))
    for b, group in enumerate(groups):
        prompt = prompts[group[0]]
        ids_bl[b, : len(prompt)] = prompt
        places[..., b, : len(prompt)] = positions[group[0]][..., : len(prompt)]
        for g, row in enumerate(group):
            response, begin = responses[row], width + g * fed
            said = len(response) - 1
            ids_bl[b, begin : begin + said] = response[:-1]
            places[..., b, begin : begin + said] = positions[row][..., len(prompt) : len(prompt) + said]
            own = torch.arange(begin - 1, begin + said, device=device)
            own[0] = len(prompt) - 1
            sources[row] = b * total + own
            targets[row] = offsets[row] + len(prompt) - 1 + torch.arange(said + 1, device=device)
            rows[row] = torch.full_like(own, row)
    layout = SharedLayout("packed", lengths, width, size)
    flat = torch.cat(sources), torch.cat(list(responses)), torch.cat(targets), torch.cat(rows)
    return Packed(layout, ids_bl, places, *flat)


class SharedPrefixEngine(FSDPEngineWithLMHead):
    """verl's FSDP engine for language models, in which rows with the same prompt share it.

    Raises:
        ConfigError: verl is told to remove padding, to split sequences over devices, or to fuse its last
            layer: each has an attention or a forward of its own.
    """

    def __init__(self, model_config: Any, engine_config: Any, *more: Any, **kwargs: Any) -> None:
        for name, given in (
            ("actor_rollout_ref.model.use_remove_padding", model_config.use_remove_padding),
            ("actor_rollout_ref.model.use_fused_kernels", model_config.use_fused_kernels),
            ("ulysses_sequence_parallel_size", engine_config.ulysses_sequence_parallel_size > 1),
        ):
            if given:
                raise ConfigError(f"engine.shared_prefix: {name} has to be off: rows share prompts instead")
        self._told: set[str] = set()
        super().__init__(model_config, engine_config, *more, **kwargs)

    def _build_module(self) -> Any:
        module = super()._build_module()
        config = module.config.get_text_config()
        check_kinds(config)
        config._attn_implementation = ATTENTION  # without a layout it is PyTorch's attention
        return module

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any], forward_only: bool = False
    ) -> Any:
        """Keep rows with the same prompt in one micro-batch where verl cuts them by tokens."""
        if tensordict_utils.get_non_tensor_data(data, "use_dynamic_bsz", True) and "prompts" in data:
            size = run_length(
                data["prompts"].unbind(),
                data["input_ids"].offsets().diff().tolist(),
                int(tensordict_utils.get_non_tensor_data(data, "max_token_len_per_gpu", 0)),
            )
            tensordict_utils.assign_non_tensor(data, force_group_size=size)
        return super().forward_backward_batch(data, loss_function, forward_only)

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the model's inputs, and the `Packed` rows under the name ``packed`` where prompts are
        shared."""
        if "prompts" not in micro_batch:
            return self._unshared(micro_batch, "it has no prompts apart")
        responses = micro_batch["responses"].unbind()
        count, token = len(responses), getattr(self.module.config, "image_token_id", None)
        given = micro_batch.get("multi_modal_inputs", [None] * count)
        images = [dict((row.data if isinstance(row, NonTensorData) else row) or {}) for row in given]
        if others := set().union(*images) - _IMAGES - _UNUSED:
            return self._unshared(micro_batch, f"its images come with {', '.join(sorted(others))}")
        images = [{name: value for name, value in own.items() if name in _IMAGES} for own in images]
        if token is not None and bool((micro_batch["responses"].values() == token).any()):
            return self._unshared(micro_batch, "there are images behind a prompt")
        if min(map(len, responses)) == 0:
            return self._unshared(micro_batch, "a response is empty")
        prompts = micro_batch["prompts"].unbind()
        groups = same_prompts(prompts, images)
        if len(groups) == count:
            return super().prepare_model_inputs(micro_batch)
        offsets = micro_batch["input_ids"].offsets()
        packed = pack(groups, prompts, responses, micro_batch["position_ids"].unbind(), offsets)
        inputs: dict[str, Any] = {
            "input_ids": packed.ids_bl,
            "position_ids": packed.positions,
            # transformers takes a mask with four axes as finished: the layout says who sees what.
            "attention_mask": torch.zeros(1, 1, 1, 1, device=packed.ids_bl.device),
            "shared": Carrier(packed.layout),
        }
        if "logits_to_keep" in inspect.signature(self.module.forward).parameters:
            inputs["logits_to_keep"], packed.sources = _read_only(packed)
        inputs |= extract_multi_modal_inputs(images, [group[0] for group in groups])
        return inputs, {"packed": packed}

    def _unshared(self, micro_batch: TensorDict, why: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if why not in self._told:
            self._told.add(why)
            log.warning("a micro-batch is forwarded without shared prompts: %s", why)
        return super().prepare_model_inputs(micro_batch)

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """Return verl's figures of tokens: nested, of prompt and response, at the token before; 0 in
        prompts."""
        packed: Packed | None = output_args.get("packed")
        if packed is None:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        check_layers(self.module.get_decoder(), packed.layout)
        logits = output.logits.flatten(0, 1)[packed.sources]
        temperature = micro_batch["temperature"]
        if isinstance(temperature, Tensor):
            logits = logits / temperature.to(logits.device, torch.float32)[packed.rows, None]
        elif temperature != 1.0:
            logits = logits / temperature
        offsets = micro_batch["input_ids"].offsets()

        def nested(figures: Tensor) -> Tensor:
            flat = figures.new_zeros(int(offsets[-1])).index_put((packed.targets,), figures)
            return torch.nested.nested_tensor_from_jagged(flat, offsets)

        def wants(name: str) -> bool:
            return bool(tensordict_utils.get_non_tensor_data(micro_batch, name, False))

        found = {}
        if wants("calculate_entropy"):
            found["entropy"] = nested(self.compute_entropy_from_logits(logits))
        if wants("calculate_sum_pi_squared"):
            found["sum_pi_squared"] = nested(verl_functional.calculate_sum_pi_squared_from_logits(logits))
        logprobs = verl_functional.logprobs_from_logits(logits, packed.labels, inplace_backward=not found)
        if wants("distillation_use_topk"):
            index = packed.targets.new_full((int(offsets[-1]),), len(logits))
            index[packed.targets] = torch.arange(len(logits), device=index.device)
            asked = logits_processor_func(student_logits=logits[None], data=micro_batch, index=index)
            found |= {name: nested(values[0]) for name, values in asked.items()}
        return found | {"log_probs": nested(logprobs)}


def _read_only(packed: Packed) -> tuple[Tensor, Tensor]:
    """The columns of the rows whose logits are read, and `Packed.sources` among these alone."""
    total = packed.ids_bl.shape[1]
    last = (packed.layout.prompt_lengths - 1).unique()
    columns = torch.cat([last, torch.arange(packed.layout.prompt_width, total, device=last.device)])
    place = torch.zeros(total, dtype=torch.long, device=last.device)
    place[columns] = torch.arange(len(columns), device=last.device)
    return columns, packed.sources // total * len(columns) + place[packed.sources % total]


def run_length(prompts: Sequence[Tensor], lengths: Sequence[int], most: int) -> int:
    """Return how many neighbouring rows of the same prompt a micro-batch can keep together; 1 is none.

    Args:
        prompts: The tokens of each row's prompt.
        lengths: How many tokens each row has.
        most: The tokens of a micro-batch, each row counted whole.
    """
    keys = [tuple(prompt.tolist()) for prompt in prompts]
    edges = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)]
    group = math.gcd(*(end - begin for begin, end in pairwise(edges)))
    for size in range(group, 0, -1):
        runs = [sum(lengths[first : first + size]) for first in range(0, len(lengths), size)]
        if group % size == 0 and max(runs) <= most:
            return size
    return 1


for _device in ("cuda", "cpu"):
    EngineRegistry.register("language_model", ["fsdp", "fsdp2"], _device, VENDOR)(SharedPrefixEngine)
