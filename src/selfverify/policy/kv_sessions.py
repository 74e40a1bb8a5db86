"""Conversations that grow behind kept prompts: what the policy says in them, and what it hears.

A thread is one of the G conversations that follow a prompt. `SharedKVSession` keeps each prompt's keys and
values once for its group, and each thread's own behind them. vLLM and families whose prompts cannot be shared
have `RecomputingSession` (`recomputing_sessions`). A `TokenCallback` is shown what a policy says while it
says it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from selfverify.core.trajectory import Finish, SampleIndex
from selfverify.policy.decoding import Sample, TokenSampler, require_finite, uniform_draws
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.forward import Forward, Heard, append, batches, prefill, scores_at_once
from selfverify.policy.packing import Continuation, Places, SharedLayout


class KVSession(Protocol):
    """The conversations of B prompts, G of each."""

    def generate(self, turns: Mapping[SampleIndex, int], more: bool = True) -> dict[SampleIndex, Sample]:
        """Let the policy go on in some threads.

        Args:
            turns: By thread how often the policy has spoken before; with seed and place in the group it
                decides what is drawn.
            more: False where no thread will be continued after this.

        Returns: The new turns by thread.
        """

    def append(
        self, pieces: Mapping[SampleIndex, Continuation], score: bool = False
    ) -> dict[SampleIndex, Tensor]:
        """Put tokens and images behind threads that were not drawn from the policy.

        Args:
            pieces: By thread; a family that splits lone images has to have split none here.
            score: Whether the log-probabilities of the pieces' tokens are wanted.

        Returns:
            With ``score`` a tensor ``[tokens]`` for each piece, else nothing.
        """

    def mark(self, places: Collection[SampleIndex]) -> Callable[[], None]:
        """Return a function that brings threads back to where they stand now and forgets all that comes
        after."""

    def begin(self, places: Collection[SampleIndex]) -> None:
        """Put threads back to the ends of their prompts."""

    def end(self, places: Collection[SampleIndex]) -> None:
        """Forget threads that are not continued; they can begin again."""


@dataclass(slots=True)
class SessionRows:
    """The threads that pass through the model together.

    Args:
        at: Which they are.
        on_host: The same on the CPU.
        kept: ``[B', G']`` own tokens whose keys are kept.
        next: ``[B', G']`` the position of the next token.
        least: The smallest of ``kept``.
        most: The largest of ``kept``.
        neighbours: The first problem and the end, where these are all threads of problems that stand next to
            each other, in order; else None.
    """

    at: Places
    on_host: Places
    kept: Tensor
    next: Tensor
    least: int
    most: int
    neighbours: tuple[int, int] | None

    def where(self) -> dict[SampleIndex, SampleIndex]:
        """For each thread where it stands among these."""
        rows = torch.stack(self.on_host, -1).tolist()
        return {(b, g): (i, j) for i, row in enumerate(rows) for j, (b, g) in enumerate(row)}


def packed_rows(alive: Tensor) -> Places:
    """Places ``[B', G']`` that hold all True entries of ``alive`` [B, G].

    Rows with fewer True entries are filled up with others, whose results mean nothing.
    """
    counts = alive.sum(1)
    which = counts.nonzero().squeeze(1)
    order = alive[which].to(torch.int8).sort(dim=1, descending=True, stable=True).indices
    slots = order[:, : int(counts.max())]
    return which[:, None].expand_as(slots), slots


class TokenCallback(Protocol):
    """Told of every token and of every finished sample, in the thread that samples, which waits meanwhile."""

    def token(self, place: SampleIndex, token: int) -> None:
        """A thread has said a token, which may be the one that ends what it says."""

    def ended(self, place: SampleIndex, sample: Sample) -> None:
        """A thread has said all that it says."""


def show(
    watcher: TokenCallback, writing: dict[SampleIndex, Sample], rows: SessionRows, *facts: Tensor
) -> None:
    """Show a callback the next token of each thread.

    Args:
        watcher: Is told.
        writing: The tokens of each thread so far; grows, and loses those that have ended.
        rows: The threads of the facts.
        facts: Each ``[B', G']``: the tokens; their log-probabilities; whether a thread has ended with this
            token by itself; whether it has no room for another; whether it goes on. One that was given up
            does not go on, and is not told of any more.
    """
    for place, *fact in zip(rows.where(), *(each.flatten().tolist() for each in facts), strict=True):
        token, logprob, stopped, full, alive = fact
        if (sample := writing.get(place)) is None:
            continue
        sample.tokens.append(token)
        sample.logprobs.append(logprob)
        given_up = not (alive or stopped or full)
        if not given_up:
            watcher.token(place, token)
        if not alive:
            del writing[place]
            if not given_up:
                sample.finish = Finish.STOP if stopped else Finish.LENGTH
                watcher.ended(place, sample)


T = TypeVar("T")

GivenUp = Callable[[], Collection[int]]
"""Returns the places of those prompts in a batch that need no more samples."""


class SharedKVSession:
    """Threads of a model whose prompts can be shared: all keys and values are kept.

    Args:
        forward: The model's forward passes.
        voice: How it speaks.
        prompts: B prompts; they are prefilled here.
        seeds: One per prompt.
        inside: Calls what computes with the model where its wrappers see it (`ModuleRunner.infer`).
        rows: How many threads there may be at a time, each with a copy of its prompt's keys; they have to
            `begin`, and memory depends on their number alone. None has all B x G, which share prompts.
    """

    def __init__(
        self,
        forward: Forward,
        voice: TokenSampler,
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        inside: Callable[[Callable[[], Any]], Any],
        rows: int | None = None,
    ) -> None:
        self.forward, self.voice, self.prompts = forward, voice, list(prompts)
        self._inside = inside
        self._room = longest_row(forward.model)
        self._asked, self._seeds = list(prompts), seeds
        b, g = len(prompts), voice.sampling.group_size
        self._last_bh, self._prefilled = self._compute(lambda: prefill(forward, prompts))
        self._rows_of: dict[SampleIndex, SampleIndex] | None = None
        """Where threads that have begun stand, if there are fewer rows than threads."""
        copies = None
        if rows is not None:
            self._rows_of, self._free = {}, [(row, 0) for row in range(rows)]
            copies, b, g = [0] * rows, rows, 1
            self.prompts = [prompts[0]] * rows
        self._layout = self._prefilled.to_grow(g, scores_at_once(forward), copies)
        last_bh = self._last_bh if copies is None else self._last_bh[copies]
        self._hidden_bgh = last_bh[:, None].expand(b, g, -1)
        """The state behind each thread's last forwarded token."""
        self.lengths_bg = torch.zeros(b, g, dtype=torch.long)
        """Own tokens of each thread whose keys are kept."""
        self._next_bg = torch.tensor([prompt.next_position for prompt in self.prompts])[:, None].repeat(1, g)
        """The position of each thread's next token."""
        self._pending: dict[SampleIndex, int] = {}
        """The last token that a thread has said, which no forward pass has seen."""
        self.forwarded = 0
        """Tokens that have passed through the model behind the prompts, padding included."""

    def _row(self, place: SampleIndex) -> SampleIndex:
        """Where a thread stands in tensors ``[B, G, ...]``."""
        return place if self._rows_of is None else self._rows_of[place]

    def begin(self, places: Collection[SampleIndex]) -> None:
        self._hidden_bgh = self._hidden_bgh.clone()
        for place in places:
            problem = place[0]
            if self._rows_of is not None and place not in self._rows_of:
                self._rows_of[place] = self._free.pop(0)
                row, _ = self._rows_of[place]
                self.prompts[row] = self._asked[problem]
                self._layout.take_prompt(row, self._prefilled, problem)
            at = self._row(place)
            self.lengths_bg[at], self._next_bg[at] = 0, self._asked[problem].next_position
            self._hidden_bgh[at] = self._last_bh[problem]
            self._pending.pop(at, None)

    def end(self, places: Collection[SampleIndex]) -> None:
        for place in places:
            if self._rows_of is not None and (at := self._rows_of.pop(place, None)) is not None:
                self._free.append(at)
                self.lengths_bg[at] = 0  # so that it makes no other row longer

    def _compute(self, run: Callable[[], T]) -> T:
        with torch.no_grad():
            result: T = self._inside(run)
        return result

    def generate(
        self,
        turns: Mapping[SampleIndex, int],
        more: bool = True,
        given_up: GivenUp | None = None,
        watcher: TokenCallback | None = None,
    ) -> dict[SampleIndex, Sample]:
        """Let the policy go on in some threads (`KVSession.generate`).

        ``given_up`` is called before every token; what it names is cut off there. ``watcher`` is told what is
        said; it changes nothing.

        A thread that reaches the model's context is cut off, too: a model with learned positions has none
        beyond it. Threads that have ended leave the batch once that saves a fifth of it.
        """
        if not turns:
            return {}
        rows = {self._row(place): (place, turn) for place, turn in turns.items()}
        said = self._compute(lambda: self._say(rows, more, given_up, watcher))
        return {rows[at][0]: sample for at, sample in said.items()}

    def _say(
        self,
        turns: Mapping[SampleIndex, tuple[SampleIndex, int]],
        more: bool,
        given_up: GivenUp | None,
        watcher: TokenCallback | None,
    ) -> dict[SampleIndex, Sample]:
        """`generate`; ``turns`` has for each row its thread and turn."""
        # A thread that has heard nothing since it last spoke goes on from its last token.
        unheard = {place: Continuation([]) for place in turns if place in self._pending}
        if unheard:
            self._hear(unheard, score=False)
        device, steps = self.forward.device, self.voice.sampling.max_new_tokens
        wanted_bg = self._flags(turns)
        rows = self._chosen(wanted_bg)
        layout = self._take(rows)
        draws_bgt = self._draws(turns, steps).to(device)
        tokens_bgt = torch.zeros(draws_bgt.shape, dtype=torch.long, device=device)
        logprobs_bgt = torch.zeros(draws_bgt.shape, device=device)
        # On the host, like all that decides who goes on: it waits for the device only in `pick`.
        last_bg = self._last_steps(steps).masked_fill(~wanted_bg, -1)
        stopped_bg = torch.zeros_like(wanted_bg)
        hidden_bgh = self._hidden_bgh[rows.at]
        writing = {place: Sample([], [], Finish.LENGTH) for place in turns}
        for step in range(steps):
            if given_up is not None:
                for problem in given_up():
                    stopped_bg[problem] |= last_bg[problem] >= step
                    last_bg[problem].clamp_(max=step)
            draws_bg = draws_bgt[*rows.at, step]
            chosen, chosen_logprobs, ends = self.voice.pick(self.voice.head.logits(hidden_bgh), draws_bg)
            tokens_bgt[*rows.at, step] = chosen
            logprobs_bgt[*rows.at, step] = chosen_logprobs
            here = rows.on_host
            last = last_bg[here]
            ends &= last >= step
            alive = (last > step) & ~ends
            if watcher is not None:
                told = ~stopped_bg[here]
                facts = chosen, chosen_logprobs, ends & told, (step >= last) & told, alive
                show(watcher, writing, rows, *facts)
            last_bg[here] = last.masked_fill(ends, step)
            stopped_bg[here] |= ends
            count, few = int(alive.sum()), 0.8 * alive.numel()
            if step + 1 == steps or not count:
                break
            if count <= few and (going := packed_rows(alive))[0].numel() <= few:
                self._put_back(layout, rows, step, more)
                at = going[0].to(device), going[1].to(device)
                layout = layout.select(at, release=layout is not self._layout)
                chosen = chosen[at]
                rows = self._rows((here[0][going], here[1][going]))
            hidden_bgh = self._decode(chosen, rows, layout, step)
        self._put_back(layout, rows, step, more)
        tokens, logprobs = tokens_bgt.tolist(), logprobs_bgt.tolist()
        said = {}
        for i, j in turns:
            n = int(last_bg[i, j]) + 1
            finish = Finish.STOP if stopped_bg[i, j] else Finish.LENGTH
            said[i, j] = Sample(tokens[i][j][:n], logprobs[i][j][:n], finish)
            self.lengths_bg[i, j] += n - 1
            self._next_bg[i, j] += n - 1
            self._pending[i, j] = tokens[i][j][n - 1]
        require_finite(said.values(), self.voice.name)
        return said

    def _draws(self, turns: Mapping[SampleIndex, tuple[SampleIndex, int]], steps: int) -> Tensor:
        """``[B, G, steps]`` what each row draws from; see `uniform_draws`."""
        draws_bgt = torch.zeros(*self.lengths_bg.shape, steps, dtype=torch.float64)
        for at, ((problem, sample), turn) in turns.items():
            draws_bgt[at] = uniform_draws(self._seeds[problem], sample, turn, steps)
        return draws_bgt

    def _last_steps(self, steps: int) -> Tensor:
        """``[B, G]`` the number, from 0, of the last token that each thread may say, of ``steps``."""
        if self._room is None:
            return torch.full_like(self.lengths_bg, steps - 1)
        prompts_b = torch.tensor([len(prompt.ids) for prompt in self.prompts])
        return (self._room - prompts_b[:, None] - self.lengths_bg).clamp(1, steps) - 1

    def _decode(self, chosen: Tensor, rows: SessionRows, layout: SharedLayout, step: int) -> Tensor:
        """States ``[B', G', H]`` behind the tokens ``chosen`` [B', G'], the ``step``-th of what is said."""
        layout.place(rows.kept + step, rows.most + step, rows.least == rows.most)
        positions = (rows.next + step)[..., None]
        if self._room is not None:
            # Threads that have ended may still be in the batch; the model need not know places that far.
            positions = positions.clamp(max=self._room - 1)
        positions = positions.expand(self.forward.family.position_axes, *positions.shape)
        self.forwarded += chosen.numel()
        return self.forward.grow(chosen[..., None], positions, layout)[:, :, 0]

    def append(
        self, pieces: Mapping[SampleIndex, Continuation], score: bool = False
    ) -> dict[SampleIndex, Tensor]:
        """Let threads read; ``Forward.chunk`` tokens go through the model at a time."""
        if not pieces:
            return {}
        places = {self._row(place): place for place in pieces}
        found = self._compute(lambda: self._hear({at: pieces[p] for at, p in places.items()}, score))
        return {places[at]: values for at, values in found.items()}

    def _hear(self, pieces: Mapping[SampleIndex, Continuation], score: bool) -> dict[SampleIndex, Tensor]:
        given = {
            place: [*([self._pending[place]] if place in self._pending else ()), *pieces[place].tokens]
            for place in sorted(pieces)
        }
        widths = {place: (place[0], max(len(tokens), 1)) for place, tokens in given.items()}
        together = batches(widths, self.forward.chunk)
        self._hidden_bgh = self._hidden_bgh.clone()
        found: dict[SampleIndex, Tensor] = {}
        for few in together:
            # A copy of nearly all threads costs more than it saves, unless it bounds memory.
            rows = self._chosen(self._flags(few), 0.8 if len(together) == 1 else 1.0)
            found |= self._hear_together({p: given[p] for p in sorted(few)}, pieces, rows, score)
        return found

    def _hear_together(
        self,
        given: Mapping[SampleIndex, Sequence[int]],
        pieces: Mapping[SampleIndex, Continuation],
        rows: SessionRows,
        score: bool,
    ) -> dict[SampleIndex, Tensor]:
        """`append` in some threads at once.

        Args:
            given: By thread the tokens that no forward pass has seen, those of its piece last.
            pieces: At least theirs.
            rows: At least these threads.
            score: See `append`.
        """
        width = max(1, *(len(tokens) for tokens in given.values()))
        layout = self._view(rows, rows.most + width) or self._take(rows, rows.most, width)
        where = rows.where()
        family, model, device = self.forward.family, self.forward.model, self.forward.device
        ids_bgr = torch.full((*rows.kept.shape, width), self.forward.loaded.tokenizer.pad_token_id)
        positions_abgr = torch.zeros(family.position_axes, *ids_bgr.shape, dtype=torch.long)
        following = dict[SampleIndex, int]()
        for place, tokens in given.items():
            i, j = where[place]
            if tokens:
                row = torch.tensor(tokens)
                ids_bgr[i, j, : len(row)] = row
                own = family.positions(model, row, pieces[place].images) + self._next_bg[place]
                positions_abgr[:, i, j, : len(row)] = own
                following[place] = int(own.max()) + 1  # here, where it keeps no device waiting
        # Features take the places of placeholders row by row.
        images = [i for place in sorted(given, key=lambda p: where[p]) for i in pieces[place].images]
        owners = [self.prompts[i] for i in rows.on_host[0][:, 0].tolist()]
        ids, positions, even = ids_bgr.to(device), positions_abgr.to(device), rows.least == rows.most
        heard = Heard(ids, positions, rows.kept, rows.most, even, images, owners)
        values = {place: [torch.zeros(0)] for place in given}
        last_bgh = self._hidden_bgh[rows.at]
        for start, states_bgrh in append(self.forward, layout, heard):
            end = start + states_bgrh.shape[2]
            for place, tokens in given.items():
                i, j = where[place]
                low, high = max(start, len(tokens) - len(pieces[place].tokens)), min(end, len(tokens))
                if score and low < high:
                    before_rh = torch.cat([last_bgh[i, j, None], states_bgrh[i, j, :-1]])
                    wanted = torch.tensor(tokens[low:high], device=device)
                    states = before_rh[low - start : high - start]
                    head, temperature = self.voice.head, self.voice.sampling.temperature
                    values[place].append(head.logprobs(states, wanted, temperature).cpu())
                if start < len(tokens) <= end:
                    self._hidden_bgh[place] = states_bgrh[i, j, len(tokens) - 1 - start]
            last_bgh = states_bgrh[:, :, -1]
        self._put_back(layout, rows, width, True)
        self.forwarded += heard.ids_bgr.numel()
        for place, tokens in given.items():
            if tokens:
                self._next_bg[place] = following[place]
                self.lengths_bg[place] += len(tokens)
            self._pending.pop(place, None)
        return {place: torch.cat(parts) for place, parts in values.items()} if score else {}

    def mark(self, places: Collection[SampleIndex]) -> Callable[[], None]:
        """Mark where threads stand. After a return later keys are hidden, and written over in time."""
        kept = [
            (
                place, int(self.lengths_bg[place]), int(self._next_bg[place]),
                self._hidden_bgh[place].clone(), self._pending.get(place),
            )
            for place in map(self._row, places)
        ]  # fmt: skip

        def back() -> None:
            self._hidden_bgh = self._hidden_bgh.clone()
            for place, length, following, hidden_h, said in kept:
                self.lengths_bg[place], self._next_bg[place] = length, following
                self._hidden_bgh[place] = hidden_h
                self._pending.pop(place, None)
                if said is not None:
                    self._pending[place] = said

        return back

    def _flags(self, places: Iterable[SampleIndex]) -> Tensor:
        """``[B, G]`` True at ``places``."""
        flags_bg = torch.zeros_like(self.lengths_bg, dtype=torch.bool)
        for place in places:
            flags_bg[place] = True
        return flags_bg

    def _rows(self, on_host: Places) -> SessionRows:
        device, (problems, slots) = self.forward.device, on_host
        at = problems.to(device), slots.to(device)
        kept, following = self.lengths_bg[on_host], self._next_bg[on_host]
        first, end = int(problems[0, 0]), int(problems[-1, 0]) + 1
        whole = slots.shape[1] == self.lengths_bg.shape[1] and bool((slots[:, 1:] > slots[:, :-1]).all())
        neighbours = (first, end) if whole and len(slots) == end - first else None
        least, most = int(kept.min()), int(kept.max())
        return SessionRows(at, on_host, kept.to(device), following.to(device), least, most, neighbours)

    def _chosen(self, wanted_bg: Tensor, most: float = 0.8) -> SessionRows:
        """The threads to work on: some, if they are at most that share of all, else all of them."""
        some, every = packed_rows(wanted_bg), wanted_bg.numel()
        if some[0].numel() < every and some[0].numel() <= most * every:
            return self._rows(some)
        return self._rows(packed_rows(torch.ones_like(wanted_bg)))

    def _view(self, rows: SessionRows, columns: int) -> SharedLayout | None:
        """The layout of ``rows`` as a view with room for ``columns`` own tokens; None where there is none."""
        if rows.neighbours is None or not self._layout.own_keys:
            return None
        return self._layout.part(*rows.neighbours, columns)

    def _take(self, rows: SessionRows, columns: int | None = None, more: int = 0) -> SharedLayout:
        """The layout of ``rows``: a copy of some, see `SharedLayout.select`, or that of all."""
        if rows.kept.numel() == self.lengths_bg.numel():
            return self._layout
        return self._layout.select(rows.at, columns, more)

    def _put_back(self, layout: SharedLayout, rows: SessionRows, count: int, more: bool) -> None:
        """Keep the last ``count`` tokens of a copy, unless no thread will be continued."""
        if layout is not self._layout and not layout.is_part and more and count:
            self._layout.put_back(layout, rows.at, rows.least, rows.most + count)
