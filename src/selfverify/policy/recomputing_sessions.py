"""Sampling where prompts are not shared: by vLLM, and by model families that share none.

`RecomputingSession` has conversations that each have a prompt of their own, for both. `sample_apart` samples
for such families: each sample has its own keys and values. An `Engine`, such as vLLM, samples in place of our
own decoder while a policy is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Finish, SampleIndex
from selfverify.policy.checks import refused_above
from selfverify.policy.decoding import Sample, TokenSampler, derived_seed, require_finite, uniform_draws
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.forward import Forward
from selfverify.policy.packing import Continuation


class RecomputingSession:
    """Threads each of which has a prompt of its own, which is prefilled whenever the policy goes on.

    Args:
        sample: `Policy.sample` of the engine or the model.
        logprobs: `Policy.logprobs`.
        prompts: B prompts.
        seeds: One per prompt.
        sampling: As in `Policy.sample`.
        extend: Makes a prompt with a piece behind it.
    """

    def __init__(
        self,
        sample: Callable[..., list[list[Sample]]],
        logprobs: Callable[..., Tensor],
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        sampling: SamplingConfig,
        extend: Callable[[Prompt, Continuation], Prompt],
    ) -> None:
        self._sample, self._logprobs, self._extend = sample, logprobs, extend
        self.prompts, self.seeds, self.sampling = prompts, seeds, sampling
        self._longer: dict[SampleIndex, Prompt] = {}
        self._begun: dict[int, list[Sample]] = {}
        """By prompt what its threads say first."""

    def generate(self, turns: Mapping[SampleIndex, int], more: bool = True) -> dict[SampleIndex, Sample]:
        """Let threads speak. A thread's first turn, before it has heard anything, is drawn with its whole
        group, once: it is the same whichever of the group's threads begin, and when. vLLM is called by all
        processes together, also by one with nothing to ask.
        """
        begin = [place for place, turn in turns.items() if turn == 0 and place not in self._longer]
        which = sorted({i for i, _ in begin} - self._begun.keys())
        prompts, seeds = [self.prompts[i] for i in which], [self.seeds[i] for i in which]
        self._begun |= zip(which, self._sample(prompts, self.sampling, seeds=seeds), strict=True)
        said = {(i, j): self._begun[i][j] for i, j in begin}
        asked = [place for place in turns if place not in said]
        prompts = [self._longer.get(place, self.prompts[place[0]]) for place in asked]
        seeds = [derived_seed(self.seeds[i], turns[i, j], j) for i, j in asked]
        one = self.sampling.model_copy(update={"group_size": 1})
        made = self._sample(prompts, one, seeds=seeds)
        said |= {place: sample for place, [sample] in zip(asked, made, strict=True)}
        if more:
            for place, sample in said.items():
                self._append(place, Continuation(sample.tokens))
        return said

    def append(
        self, pieces: Mapping[SampleIndex, Continuation], score: bool = False
    ) -> dict[SampleIndex, Tensor]:
        found = {}
        if score:
            prompts = [self._longer.get(place, self.prompts[place[0]]) for place in pieces]
            read = [[piece] for piece in pieces.values()]
            with torch.no_grad():
                rows = self._logprobs(prompts, read, temperature=self.sampling.temperature)
            each = zip(pieces.items(), rows, strict=True)
            found = {place: row[0, : len(piece.tokens)] for (place, piece), row in each}
        for place, piece in pieces.items():
            self._append(place, piece)
        return found

    def mark(self, places: Collection[SampleIndex]) -> Callable[[], None]:
        kept = {place: self._longer.get(place) for place in places}

        def back() -> None:
            self.end(kept)
            self._longer |= {place: prompt for place, prompt in kept.items() if prompt is not None}

        return back

    def begin(self, places: Collection[SampleIndex]) -> None:
        self.end(places)
        for i in {i for i, _ in places}:
            if any(sample.finish == Finish.ERROR for sample in self._begun.get(i, ())):
                del self._begun[i]  # what was given up is asked for anew

    def end(self, places: Collection[SampleIndex]) -> None:
        for place in places:
            self._longer.pop(place, None)

    def _append(self, place: SampleIndex, piece: Continuation) -> None:
        self._longer[place] = self._extend(self._longer.get(place, self.prompts[place[0]]), piece)


_COMPARED = 64
"""Tokens of a sample whose log-probabilities are compared with those of a forward pass."""


@torch.no_grad()
def sample_apart(
    forward: Forward,
    voice: TokenSampler,
    prompts: Sequence[Prompt],
    seeds: Sequence[int],
    logprobs: Callable[..., Tensor],
) -> list[list[Sample]]:
    """Sample prompt by prompt, by transformers' own cache: what shared prompts would let a sample draw.

    In every call two samples are compared with one forward pass over them.

    Args:
        forward: The forward passes of a model in evaluation mode.
        voice: How it speaks.
        prompts: B prompts.
        seeds: One per prompt.
        logprobs: `Policy.logprobs`.

    Returns:
        B lists of G samples.

    Raises:
        ConfigError: Samples have other log-probabilities in a forward pass: the model's cache keeps
            something else than what was read.
        SamplingError: The model's logits are not finite.
    """
    groups = [_draw(forward, voice, *pair) for pair in zip(prompts, seeds, strict=True)]
    require_finite((sample for group in groups for sample in group), voice.name)
    few = groups[0][:2]
    tokens = [sample.tokens[:_COMPARED] for sample in few]
    [values] = logprobs(prompts[:1], [tokens], temperature=voice.sampling.temperature).tolist()
    gaps = [
        abs(drawn - value)
        for sample, row in zip(few, values, strict=True)
        for drawn, value in zip(sample.logprobs, row, strict=False)
    ]
    gap = sum(gaps) / len(gaps)
    if not gap <= refused_above(forward.model):
        raise ConfigError(
            f"policy.path={voice.name}: models of type {forward.model.config.model_type!r} give what they "
            f"sample by transformers' cache other log-probs in one forward pass (on average by {gap:.2g}), "
            "so that training on samples would be wrong; take a model of docs/models.md"
        )
    return groups


def _draw(forward: Forward, voice: TokenSampler, prompt: Prompt, seed: int) -> list[Sample]:
    """Draw the samples of a prompt."""
    steps, room = voice.sampling.max_new_tokens, longest_row(forward.model)
    if room is not None:
        # A model with learned positions has none beyond its context.
        steps = max(1, min(steps, room - len(prompt.ids)))
    draws = [uniform_draws(seed, sample, 0, steps) for sample in range(voice.sampling.group_size)]
    said = _Said(voice, torch.stack(draws).to(forward.device))
    if forward.family.shares_prompts and forward.family.placeholder(forward.model) is not None:
        _continue(forward, prompt, said)
    else:
        _generate(forward, prompt, said)
    return said.samples()


class _Said(LogitsProcessor):
    """The G samples of a prompt so far. As a logits processor it leaves `generate` no choice.

    Args:
        voice: How the policy speaks.
        draws_gt: ``[G, steps]`` numbers in [0, 1), one for each token.
    """

    def __init__(self, voice: TokenSampler, draws_gt: Tensor) -> None:
        self.voice, self.draws_gt = voice, draws_gt
        self.tokens: list[Tensor] = []
        self.logprobs: list[Tensor] = []
        self.ended_g = torch.zeros(len(draws_gt), dtype=torch.bool)

    @property
    def is_done(self) -> bool:
        """Return whether all samples have ended."""
        return len(self.tokens) == self.draws_gt.shape[1] or bool(self.ended_g.all())

    def draw(self, logits_gv: Tensor) -> Tensor:
        """Draw the next token of each sample; ``[G]``."""
        chosen_g, logprobs_g, ends_g = self.voice.pick(logits_gv, self.draws_gt[:, len(self.tokens)])
        self.tokens.append(chosen_g)
        self.logprobs.append(logprobs_g)
        self.ended_g |= ends_g
        return chosen_g

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores by which `generate` can choose only the tokens that were drawn."""
        chosen_g = self.draw(scores)
        return torch.full_like(scores, float("-inf")).scatter(1, chosen_g[:, None], 0.0)

    def samples(self) -> list[Sample]:
        """The samples, each up to and with its first stop token."""
        stop = {*self.voice.stop.tolist()}
        made = []
        rows = (torch.stack(drawn, 1).tolist() for drawn in (self.tokens, self.logprobs))
        for tokens, logprobs in zip(*rows, strict=True):
            end = next((n for n, token in enumerate(tokens, 1) if token in stop), None)
            made.append(Sample(tokens[:end], logprobs[:end], Finish.LENGTH if end is None else Finish.STOP))
        return made


def _generate(forward: Forward, prompt: Prompt, said: _Said) -> None:
    """Let ``said`` say all it can by transformers' `generate`, which knows how a model keeps what it read."""
    model, (g, steps) = forward.model, said.draws_gt.shape
    stop = said.voice.stop.tolist()
    settings = GenerationConfig(
        max_new_tokens=steps, do_sample=False, use_cache=True, eos_token_id=stop or None, pad_token_id=0
    )
    # A row needs all images of the prompt in turn. `generate` itself would repeat image by image.
    tensors = {
        name: tensor.to(forward.device).repeat(g, *[1] * (tensor.dim() - 1))
        for image in prompt.images
        for name, tensor in image.tensors.items()
    }
    ids = prompt.ids.to(forward.device).repeat(g, 1)
    # `generate` takes what its settings leave open from the checkpoint's: penalties, cuts, forced tokens.
    theirs, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with forward.own_attention():
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=settings,
                logits_processor=LogitsProcessorList([said]),
                synced_gpus=False,  # all weights are in place (`Policy.whole`)
                **tensors,
            )
    finally:
        model.generation_config = theirs


def _continue(forward: Forward, prompt: Prompt, said: _Said) -> None:
    """Let ``said`` say all it can behind a prompt with images, by the decoder and transformers' cache."""
    model, family, device = forward.model, forward.family, forward.device
    g, head = len(said.draws_gt), said.voice.head
    cache: Any = DynamicCache(config=family.backbone(model).config)
    ids_1p, positions_a1p = prompt.ids.to(device)[None], prompt.positions.to(device)[:, None]
    hidden_1ph = forward.plain(
        ids_1p, positions_a1p, torch.ones_like(ids_1p), prompt.images, [prompt], past_key_values=cache
    )
    cache.batch_repeat_interleave(g)
    hidden_gh = hidden_1ph[:, -1].expand(g, -1)
    mask_gl = torch.ones(g, len(prompt.ids), dtype=torch.long, device=device)
    place = prompt.next_position
    while True:
        chosen_g = said.draw(head.logits(hidden_gh))
        if said.is_done:
            return
        mask_gl = torch.cat([mask_gl, mask_gl[:, :1]], dim=1)
        positions_ag1 = torch.full((family.position_axes, g, 1), place, device=device)
        embedded_g1h = model.get_input_embeddings()(chosen_g[:, None])
        with forward.own_attention():
            hidden_g1h = family.run_decoder(
                model, embedded_g1h, positions_ag1, mask_gl, past_key_values=cache
            )
        hidden_gh = hidden_g1h[:, 0]
        place += 1


class Engine(Protocol):
    """A sampler with its own copy of a policy's weights. The trainer starts, updates and closes it."""

    stale: bool
    """Whether the policy's weights have changed since the last `send_weights`."""

    def sample(self, prompts: Sequence[Prompt], sampling: SamplingConfig) -> list[list[Sample]]:
        """G samples for each of B prompts. All processes of a run have to call this together."""

    def send_weights(self) -> None:
        """Copy the policy's present weights to the engine."""

    def close(self) -> None:
        """Free what the engine holds."""
