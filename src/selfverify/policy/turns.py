"""Conversations of two turns: what the chat template puts between them, and sampling both.

A prompt is prefilled once for both turns of all its samples: after the first turn each sample's own tokens,
and what was put behind them, pass through the model once together, on top of the prompt's keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from selfverify.errors import ConfigError, DataError
from selfverify.policy.config import SamplingConfig
from selfverify.policy.encoding import Prompt, text_only
from selfverify.policy.loading import Loaded
from selfverify.policy.sampling import Decoder, Sample, derived_seed, uniforms
from selfverify.rollouts.types import Problem

if TYPE_CHECKING:
    from selfverify.policy.policy import Policy

SECOND_TURN = (
    "There might be an error in the solution, please evaluate the previous solution and provide a final "
    "answer."
)
"""AdaPO's fixed self-evaluation prompt (its section on implementation details)."""
_ANSWER = "ANSWER"


@dataclass(slots=True)
class Turns:
    """A first turn, the tokens put behind it, and the second turn.

    There is no second turn behind one that was cut off: then ``second`` is None and ``inserted`` empty.
    """

    first: Sample
    inserted: list[int]
    second: Sample | None


def follow_up(loaded: Loaded, problem: Problem, words: str) -> list[int]:
    """What the model's chat template writes between an answer to ``problem`` and the answer to ``words``.

    That is the end of the assistant's message, the user's message, and the assistant's header.

    Raises:
        ConfigError: The template cannot continue a conversation.
        DataError: ``words`` hold an image token, or do not fit into the model's context.
    """
    tokenizer, family, model = loaded.tokenizer, loaded.family, loaded.model
    reads_images = family.placeholder(model) is not None
    _refuse_image_tokens(loaded, problem, words)
    said = [
        {"role": "assistant", "content": [{"type": "text", "text": _ANSWER}]},
        {"role": "user", "content": [{"type": "text", "text": words}]},
    ]
    longer = replace(problem, messages=[*problem.messages, *said])

    def render(asked: Problem) -> str:
        messages = asked.messages if reads_images else text_only(asked)
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text

    try:
        before, whole = render(problem), render(longer)
    except DataError:
        raise
    except Exception as error:
        # Templates raise whatever their authors chose, and jinja its own errors.
        raise ConfigError(
            f"problem {problem.id}: the model's chat template cannot continue a conversation ({error}); a "
            "second turn needs one that takes user, assistant and user messages"
        ) from error
    head, rest = before + _ANSWER, whole.removeprefix(before + _ANSWER)
    if not whole.startswith(head) or words not in rest:
        raise ConfigError(
            f"problem {problem.id}: the model's chat template cannot continue a conversation: with an answer "
            "and another question it writes other text before the answer than the prompt the model answered, "
            "or leaves the question out"
        )
    ids: list[int] = tokenizer(rest, add_special_tokens=False)["input_ids"]
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    scaled = "factor" in str(getattr(model.config.get_text_config(), "rope_parameters", None))
    if limit is not None and not scaled and len(ids) >= limit:
        raise DataError(
            f"problem {problem.id}: the second turn's prompt takes {len(ids)} tokens and the model reads "
            f"{limit}; use fewer words"
        )
    return ids


def _refuse_image_tokens(loaded: Loaded, problem: Problem, words: str) -> None:
    for mark in loaded.family.marks(loaded.model, loaded.tokenizer):
        if mark and mark in words:
            raise DataError(f"problem {problem.id}: the second turn's prompt contains the image token {mark}")


def inserted_tokens(said: Sequence[int], between: Sequence[int]) -> list[int]:
    """``between`` without the end of the assistant's message, where the model has ``said`` that itself."""
    written = said and between and said[-1] == between[0]
    return list(between[1:] if written else between)


def sample_turns(
    decoder: Decoder, prompts: Sequence[Prompt], follow_ups: Sequence[Sequence[int]], seeds: Sequence[int]
) -> list[list[Turns]]:
    """Both turns of G samples for each prompt, which is prefilled once."""
    forward, steps = decoder.forward, decoder.sampling.max_new_tokens
    last, layout = forward.prefill(prompts)
    starts = torch.tensor([prompt.next_position for prompt in prompts], device=forward.device)
    first = decoder.run(last, layout, starts, list(seeds))
    groups = [
        [Turns(s, [] if s.finish == "length" else inserted_tokens(s.tokens, between), None) for s in group]
        for group, between in zip(first, follow_ups, strict=True)
    ]
    wanted = torch.tensor([[t.first.finish != "length" for t in group] for group in groups])
    if not bool(wanted.any()):
        return groups
    # What was cut off stands in the batch by its first token, until it is dropped.
    given = forward.stack_continuations(
        [[t.first.tokens[: None if t.inserted else 1] + t.inserted for t in group] for group in groups]
    )
    hidden, layout = forward.extend(given, starts, layout, steps)
    draws = uniforms([derived_seed(seed, 1) for seed in seeds], decoder.sampling.group_size, steps)
    second = decoder.go_on(hidden, layout, starts[:, None] + given.lengths, draws, wanted.to(forward.device))
    for group, samples in zip(groups, second, strict=True):
        for turns, sample in zip(group, samples, strict=True):
            if turns.first.finish != "length":
                turns.second = sample
    return groups


def sample_turns_apart(
    policy: Policy,
    prompts: Sequence[Prompt],
    follow_ups: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    seeds: Sequence[int],
) -> list[list[Turns]]:
    """The same where no prompt can be shared (an unknown family, vLLM): every second turn has its own."""
    groups = [
        [Turns(s, [] if s.finish != "stop" else inserted_tokens(s.tokens, between), None) for s in group]
        for group, between in zip(policy.sample(prompts, sampling, seeds=seeds), follow_ups, strict=True)
    ]
    goes_on = [
        (
            turns,
            longer_prompt(policy, prompt, turns.first.tokens + turns.inserted),
            derived_seed(seed, 1, place),
        )
        for prompt, group, seed in zip(prompts, groups, seeds, strict=True)
        for place, turns in enumerate(group)
        if turns.inserted
    ]
    # vLLM is called by all processes together, even if one of them has nothing to ask.
    second = policy.sample(
        [prompt for _, prompt, _ in goes_on],
        sampling.model_copy(update={"group_size": 1}),
        seeds=[seed for _, _, seed in goes_on],
    )
    for (turns, _, _), [sample] in zip(goes_on, second, strict=True):
        turns.second = sample
    return groups


def longer_prompt(policy: Policy, prompt: Prompt, tokens: Sequence[int]) -> Prompt:
    """``prompt`` and more text behind it."""
    more = torch.tensor(list(tokens), dtype=torch.long)
    places = prompt.next_position + torch.arange(len(more))
    images = prompt.images
    if not policy.loaded.family.shares_prompts:
        images = [replace(i, tensors=_lengthened(i.tensors, len(prompt.ids), len(more))) for i in images]
    return replace(
        prompt,
        ids=torch.cat([prompt.ids, more]),
        positions=torch.cat([prompt.positions, places.expand(len(prompt.positions), -1)], dim=1),
        images=images,
        next_position=prompt.next_position + len(more),
        unexpanded=[*prompt.unexpanded, *tokens],
    )


def _lengthened(tensors: dict[str, torch.Tensor], length: int, more: int) -> dict[str, torch.Tensor]:
    """Kinds of tokens (``[1, L]``) go on as text."""
    return {
        name: F.pad(tensor, (0, more)) if tensor.shape == (1, length) else tensor
        for name, tensor in tensors.items()
    }
