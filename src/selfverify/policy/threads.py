"""Conversations that grow: what the policy says, what it hears, whose keys and values are all kept.

A thread is one of the G conversations that follow a prompt. `SharedThreads` keeps each prompt's keys and
values once for its group, and each thread's own behind them. `apart_threads.ApartThreads` serves vLLM and
families whose prompts cannot be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Finish
from selfverify.policy.continuations import Continuation
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.families import ImageInput
from selfverify.policy.forward import Forward
from selfverify.policy.head import Head
from selfverify.policy.sampling import Sample, pick_tokens, uniforms
from selfverify.policy.shared_attention import SharedLayout

T = TypeVar("T")


class Inside(Protocol):
    """`Policy.infer`: it calls what computes with the model where the model's wrappers see it."""

    def __call__(self, run: Callable[[], T]) -> T:
        """The result of ``run()``."""
        ...


Place = tuple[int, int]
"""A thread: its prompt's place in the batch, and its own in the group."""

GivenUp = Callable[[], Collection[int]]
"""Returns the places of those prompts in a batch that need no more samples."""

SCORES_AT_ONCE = 2**27
"""Attention scores of a layer that may exist at a time while threads hear something long."""


class Threads(Protocol):
    """The conversations of B prompts, G of each."""

    def say(self, places: Collection[Place], turn: int, more: bool = True) -> dict[Place, Sample]:
        """Let the policy go on in some threads.

        Args:
            places: Which threads.
            turn: How often the policy has spoken before; with seed and place in the group it decides what is
                drawn.
            more: False where no thread will be continued after this.

        Returns:
            What was said, by thread.
        """
        ...

    def hear(self, pieces: Mapping[Place, Continuation], score: bool = False) -> dict[Place, Tensor]:
        """Put tokens and images behind threads that were not drawn from the policy.

        Args:
            pieces: By thread; a family that splits lone images has to have split none here.
            score: Whether the log-probabilities of the pieces' tokens are wanted.

        Returns:
            With ``score`` a tensor ``[tokens]`` for each piece, else nothing.
        """
        ...


@dataclass(slots=True)
class Voice:
    """How the policy speaks: what `SharedThreads` needs to know of it beside its forward passes.

    Args:
        head: The output head.
        sampling: Group size, temperature, top-p, length limit of what is said at a time.
        stop: ``[S]`` tokens that end what is said.
        suppressed: ``[N]`` tokens that are never drawn.
    """

    head: Head
    sampling: SamplingConfig
    stop: Tensor
    suppressed: Tensor

    def choose(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens ``[...]`` and their log-probabilities under the temperature, before top-p."""
        logits = self.head.logits(hidden).float()
        free = logits.index_fill(-1, self.suppressed, float("-inf")) if len(self.suppressed) else logits
        temperature = self.sampling.temperature
        tokens = pick_tokens(free, uniform, temperature, self.sampling.top_p)
        scaled = logits / temperature if temperature > 0 else logits
        chosen = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)
        return tokens, chosen


@dataclass(slots=True)
class _Rows:
    """The threads that pass through the model together.

    Args:
        problems: ``[B']`` their prompts' places in the batch.
        slots: ``[B', G']`` their places in the group.
        kept: ``[B', G']`` own tokens whose keys are kept.
        next: ``[B', G']`` the position of the next token.
        least: The smallest of ``kept``.
        most: The largest of ``kept``.
    """

    problems: Tensor
    slots: Tensor
    kept: Tensor
    next: Tensor
    least: int
    most: int

    @property
    def at(self) -> tuple[Tensor, Tensor]:
        """The index of the threads in a tensor ``[B, G, ...]``."""
        return self.problems[:, None], self.slots


class SharedThreads:
    """Threads of a model whose prompts can be shared.

    Args:
        forward: The model's forward passes.
        voice: How it speaks.
        prompts: B prompts; they are prefilled here.
        seeds: One per prompt.
        inside: Calls what computes with the model where its wrappers see it (`Policy.infer`).
    """

    def __init__(
        self,
        forward: Forward,
        voice: Voice,
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        inside: Inside,
    ) -> None:
        self.forward, self.voice, self.prompts, self.seeds = forward, voice, prompts, seeds
        self._inside = inside
        self._room = longest_row(forward.model)
        b, g = len(prompts), voice.sampling.group_size
        last_bh, prefilled = self._compute(lambda: forward.prefill(prompts))
        self._layout = prefilled.to_grow(g)
        self._hidden_bgh = last_bh[:, None].expand(b, g, -1)
        """The state behind each thread's last forwarded token."""
        self.lengths_bg = torch.zeros(b, g, dtype=torch.long)
        """Own tokens of each thread whose keys are kept."""
        self._next_bg = torch.tensor([prompt.next_position for prompt in prompts])[:, None].repeat(1, g)
        """The position of each thread's next token."""
        self._pending: dict[Place, int] = {}
        """The last token that a thread has said, which no forward pass has seen."""
        self.forwarded = 0
        """Tokens that have passed through the model behind the prompts, padding included."""

    def _compute(self, run: Callable[[], T]) -> T:
        with torch.no_grad():
            return self._inside(run)

    def say(
        self, places: Collection[Place], turn: int, more: bool = True, given_up: GivenUp | None = None
    ) -> dict[Place, Sample]:
        """See `Threads.say`. ``given_up`` is called before every token; what it names is cut off there.

        What reaches the model's context is cut off, too: a model with learned positions has none beyond it.
        Threads that have ended leave the batch once that saves a fifth of it.
        """
        return self._compute(lambda: self._say(places, turn, more, given_up)) if places else {}

    def _say(
        self, places: Collection[Place], turn: int, more: bool, given_up: GivenUp | None
    ) -> dict[Place, Sample]:
        # A thread that has heard nothing since it last spoke goes on from its last token.
        unheard = {place: Continuation([]) for place in places if place in self._pending}
        if unheard:
            self._hear(unheard, score=False)
        device, steps = self.forward.device, self.voice.sampling.max_new_tokens
        wanted_bg = self._flags(places)
        rows, layout = self._take(wanted_bg)
        b, g = wanted_bg.shape
        draws_bgt = uniforms(self.seeds, g, steps, turn).to(device)
        tokens_bgt = torch.zeros(b, g, steps, dtype=torch.long, device=device)
        logprobs_bgt = torch.zeros(b, g, steps, device=device)
        ended_bg = torch.full((b, g), -1, dtype=torch.long, device=device)
        ended_bg[~wanted_bg] = 0
        last_bg = self._last_steps(steps).to(device)
        hidden_bgh = self._hidden_bgh[rows.at]
        for step in range(steps):
            if given_up is not None:
                for problem in given_up():
                    goes_on = (ended_bg[problem] < 0) & (last_bg[problem] >= step)
                    ended_bg[problem] = torch.where(goes_on, step, ended_bg[problem])
            chosen, chosen_logprobs = self.voice.choose(hidden_bgh, draws_bgt[*rows.at, step])
            tokens_bgt[*rows.at, step] = chosen
            logprobs_bgt[*rows.at, step] = chosen_logprobs
            before, last = ended_bg[rows.at], last_bg[rows.at]
            ends = torch.isin(chosen, self.voice.stop) & (before < 0) & (step <= last)
            ended_bg[rows.at] = torch.where(ends, step, before)
            alive = (ended_bg[rows.at] < 0) & (step < last)
            if step + 1 == steps or not bool(alive.any()):
                break
            which, slots = _packed_rows(alive)
            if slots.numel() <= 0.8 * alive.numel():
                self._put_back(layout, rows, step, more)
                layout, chosen = layout.select(which, slots), chosen[which[:, None], slots]
                rows = self._rows(rows.problems[which], rows.slots[which[:, None], slots])
            hidden_bgh = self._decode(chosen, rows, layout, step)
        self._put_back(layout, rows, step, more)
        lengths = torch.where(ended_bg >= 0, ended_bg, last_bg).add(1).tolist()
        ended, tokens, logprobs = ended_bg.tolist(), tokens_bgt.tolist(), logprobs_bgt.tolist()
        said = {}
        for i, j in places:
            n = lengths[i][j]
            finish = Finish.STOP if ended[i][j] >= 0 else Finish.LENGTH
            said[i, j] = Sample(tokens[i][j][:n], logprobs[i][j][:n], finish)
            self.lengths_bg[i, j] += n - 1
            self._next_bg[i, j] += n - 1
            self._pending[i, j] = tokens[i][j][n - 1]
        return said

    def _last_steps(self, steps: int) -> Tensor:
        """``[B, G]`` the number, from 0, of the last token that each thread may say, of ``steps``."""
        if self._room is None:
            return torch.full_like(self.lengths_bg, steps - 1)
        prompts_b = torch.tensor([len(prompt.ids) for prompt in self.prompts])
        return (self._room - prompts_b[:, None] - self.lengths_bg).clamp(1, steps) - 1

    def _decode(self, chosen: Tensor, rows: _Rows, layout: SharedLayout, step: int) -> Tensor:
        """States ``[B', G', H]`` behind the tokens ``chosen`` [B', G'], the ``step``-th of what is said."""
        layout.place(rows.kept + step, rows.most + step, rows.least == rows.most)
        positions = (rows.next + step)[..., None]
        if self._room is not None:
            # Threads that have ended may still be in the batch; the model need not know places that far.
            positions = positions.clamp(max=self._room - 1)
        positions = positions.expand(self.forward.family.position_axes, *positions.shape)
        self.forwarded += chosen.numel()
        return self.forward.grow(chosen[..., None], positions, layout)[:, :, 0]

    def hear(self, pieces: Mapping[Place, Continuation], score: bool = False) -> dict[Place, Tensor]:
        """See `Threads.hear`. What is long goes through the model in chunks."""
        return self._compute(lambda: self._hear(pieces, score)) if pieces else {}

    def _hear(self, pieces: Mapping[Place, Continuation], score: bool) -> dict[Place, Tensor]:
        family, model, device = self.forward.family, self.forward.model, self.forward.device
        rows, layout = self._take(self._flags(pieces))
        problems, slots = rows.problems.tolist(), rows.slots.tolist()
        where = {(b, g): (i, j) for i, b in enumerate(problems) for j, g in enumerate(slots[i])}
        given = {place: [*self._said(place), *piece.tokens] for place, piece in pieces.items()}
        width = max(1, *(len(tokens) for tokens in given.values()))
        ids_bgr = torch.full((*rows.slots.shape, width), self.forward.loaded.tokenizer.pad_token_id)
        positions_abgr = torch.zeros(family.position_axes, *ids_bgr.shape, dtype=torch.long)
        for place, tokens in given.items():
            i, j = where[place]
            if tokens:
                row = torch.tensor(tokens)
                ids_bgr[i, j, : len(row)] = row
                own = family.positions(model, row, pieces[place].images)
                positions_abgr[:, i, j, : len(row)] = own + self._next_bg[place]
        # Features take the places of placeholders row by row.
        images = [i for place in sorted(pieces, key=lambda p: where[p]) for i in pieces[place].images]
        states_bgrh = self._forward(ids_bgr.to(device), positions_abgr.to(device), layout, rows, images)
        self._put_back(layout, rows, width, True)
        self.forwarded += ids_bgr.numel()
        found = {}
        hidden_bgh = self._hidden_bgh.clone()
        for place, tokens in given.items():
            i, j = where[place]
            count, fresh = len(tokens), len(pieces[place].tokens)
            if score:
                before_h = torch.cat([self._hidden_bgh[place][None], states_bgrh[i, j, :count]])
                states = before_h[count - fresh : count]
                wanted = ids_bgr[i, j, count - fresh : count].to(device)
                found[place] = self.voice.head.logprobs(states, wanted, self.voice.sampling.temperature)
            if count:
                hidden_bgh[place] = states_bgrh[i, j, count - 1]
                self._next_bg[place] = int(positions_abgr[:, i, j, :count].max()) + 1
                self.lengths_bg[place] += count
            self._pending.pop(place, None)
        self._hidden_bgh = hidden_bgh
        return found

    def _forward(
        self,
        ids_bgr: Tensor,
        positions_abgr: Tensor,
        layout: SharedLayout,
        rows: _Rows,
        images: Sequence[ImageInput],
    ) -> Tensor:
        """States ``[B', G', R, H]`` of tokens that are heard; in chunks where there are many of them."""
        n, m, width = ids_bgr.shape
        owners = [self.prompts[i] for i in rows.problems.tolist()]
        heads = self.forward.model.config.get_text_config().num_attention_heads
        columns = layout.prompt_width + rows.most + width
        size = max(SCORES_AT_ONCE // (n * m * heads * columns), 16)
        if images:
            size = width  # an image's features and masks belong together
        parts = []
        for start in range(0, width, size):
            layout.place(rows.kept + start, rows.most + start, rows.least == rows.most)
            ids, positions = ids_bgr[:, :, start : start + size], positions_abgr[..., start : start + size]
            parts.append(self.forward.grow(ids, positions, layout, images, owners))
        return torch.cat(parts, dim=2)

    def _said(self, place: Place) -> list[int]:
        """The last token that a thread has said, as a list; empty where its state is known."""
        return [self._pending[place]] if place in self._pending else []

    def _flags(self, places: Iterable[Place]) -> Tensor:
        """``[B, G]`` True at ``places``."""
        flags_bg = torch.zeros_like(self.lengths_bg, dtype=torch.bool)
        for place in places:
            flags_bg[place] = True
        return flags_bg

    def _rows(self, problems: Tensor, slots: Tensor) -> _Rows:
        known = self.lengths_bg[problems.cpu()[:, None], slots.cpu()]
        following = self._next_bg[problems.cpu()[:, None], slots.cpu()]
        device = slots.device
        return _Rows(
            problems, slots, known.to(device), following.to(device), int(known.min()), int(known.max())
        )

    def _take(self, wanted_bg: Tensor) -> tuple[_Rows, SharedLayout]:
        """The threads to work on and their layout: a copy of some saves work, else it is that of all."""
        b, g = wanted_bg.shape
        device = self.forward.device
        which, slots = _packed_rows(wanted_bg.to(device))
        if slots.numel() <= 0.8 * wanted_bg.numel():
            return self._rows(which, slots), self._layout.select(which, slots)
        everything = torch.arange(b, device=device), torch.arange(g, device=device).expand(b, g)
        return self._rows(*everything), self._layout

    def _put_back(self, layout: SharedLayout, rows: _Rows, count: int, more: bool) -> None:
        """Keep the last ``count`` tokens of a copy, unless no thread will be continued."""
        if layout is not self._layout and more and count:
            self._layout.put_back(layout, rows.problems, rows.slots, rows.least, rows.most + count)


def _packed_rows(alive: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``[B']`` and of each the places ``[B', G']`` that hold all True entries of ``alive`` [B, G].

    Rows with fewer True entries are filled up with others, whose results mean nothing.
    """
    counts = alive.sum(1)
    which = counts.nonzero().squeeze(1)
    order = alive[which].to(torch.int8).sort(dim=1, descending=True, stable=True).indices
    return which, order[:, : int(counts.max())]
