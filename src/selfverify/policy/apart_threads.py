"""Conversations that each have a prompt of their own: for vLLM and families that share no prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from selfverify.core.config import SamplingConfig
from selfverify.policy.continuations import Continuation
from selfverify.policy.encoding import Prompt
from selfverify.policy.sampling import Sample, derived_seed
from selfverify.policy.threads import SampleIndex


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

    def generate(
        self, places: Collection[SampleIndex], turn: int, more: bool = True
    ) -> dict[SampleIndex, Sample]:
        """See `KVSession.generate`. vLLM is called by all processes together, also by one with nothing to
        ask."""
        said = {}
        asked = list(places)
        if turn == 0:
            # Whole groups where nothing has been heard, also where some places are not wanted: what the
            # others draw must not change.
            heard = {i for i, _ in self._longer}
            which = sorted({i for i, _ in places} - heard)
            prompts, seeds = [self.prompts[i] for i in which], [self.seeds[i] for i in which]
            groups = dict(zip(which, self._sample(prompts, self.sampling, seeds=seeds), strict=True))
            said = {(i, j): groups[i][j] for i, j in places if i in groups}
            asked = [(i, j) for i, j in places if i in heard]
        prompts = [self._longer.get(place, self.prompts[place[0]]) for place in asked]
        seeds = [derived_seed(self.seeds[i], turn, j) for i, j in asked]
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
        """See `KVSession.append`."""
        found = {}
        if score:
            asked = list(pieces)
            prompts = [self._longer.get(place, self.prompts[place[0]]) for place in asked]
            with torch.no_grad():
                rows = self._logprobs(
                    prompts, [[pieces[place]] for place in asked], temperature=self.sampling.temperature
                )
            found = {
                place: row[0, : len(pieces[place].tokens)] for place, row in zip(asked, rows, strict=True)
            }
        for place, piece in pieces.items():
            self._append(place, piece)
        return found

    def mark(self, places: Collection[SampleIndex]) -> Callable[[], None]:
        """See `KVSession.mark`."""
        kept = {place: self._longer.get(place) for place in places}

        def back() -> None:
            for place, prompt in kept.items():
                self._longer.pop(place, None)
                if prompt is not None:
                    self._longer[place] = prompt

        return back

    def _append(self, place: SampleIndex, piece: Continuation) -> None:
        self._longer[place] = self._extend(self._longer.get(place, self.prompts[place[0]]), piece)
