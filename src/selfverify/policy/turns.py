"""Conversations of two turns: the text that the chat template puts between them, and sampling both.

A prompt is prefilled once for both turns of all its samples. After the first turn each sample's own tokens
and the text between the turns pass through the model once, on top of the prompt's keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Finish
from selfverify.policy.encoding import Prompt, longest_row, text_only
from selfverify.policy.loading import Loaded
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample, derived_seed, uniforms

SECOND_TURN = (
    "There might be an error in the solution, please evaluate the previous solution and provide a final "
    "answer."
)
"""AdaPO's fixed self-evaluation prompt (its section on implementation details)."""
_ANSWER = "ANSWER"


@dataclass(slots=True)
class Turns:
    """A first turn, the tokens put behind it, and the second turn.

    A first turn that was cut off has no second turn: ``second`` is None and ``inserted`` is empty.
    """

    first: Sample
    inserted: list[int]
    second: Sample | None


def follow_up(loaded: Loaded, problem: Problem, words: str) -> list[int]:
    """Tokens that the chat template writes between an answer to ``problem`` and the answer to ``words``.

    They end the assistant's message, hold the user's message, and begin the next assistant's message.

    Raises:
        ConfigError: The template cannot continue a conversation.
        DataError: ``words`` hold an image token, or do not fit into the model's context.
    """
    tokenizer, family, model = loaded.tokenizer, loaded.family, loaded.model
    reads_images = family.placeholder(model) is not None
    for mark in family.marks(model, tokenizer):
        if mark and mark in words:
            raise DataError(f"problem {problem.id}: the second turn's prompt contains the image token {mark}")
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
    limit = longest_row(model)
    if limit is not None and len(ids) >= limit:
        raise DataError(
            f"problem {problem.id}: the second turn's prompt takes {len(ids)} tokens and the model reads "
            f"{limit}; use fewer words"
        )
    return ids


def inserted_tokens(said: Sequence[int], between: Sequence[int]) -> list[int]:
    """``between`` without the end of the assistant's message, where the model has ``said`` that itself."""
    written = said and between and said[-1] == between[0]
    return list(between[1:] if written else between)


@torch.no_grad()
def sample_turns(
    policy: Policy,
    prompts: Sequence[Prompt],
    follow_ups: Sequence[Sequence[int]],
    sampling: SamplingConfig | None = None,
    *,
    seeds: Sequence[int],
) -> list[list[Turns]]:
    """G conversations of two turns for each prompt.

    Args:
        policy: The model that says both turns.
        prompts: B encoded prompts.
        follow_ups: For each prompt the tokens between the turns (`follow_up`).
        sampling: As in `Policy.sample`; each turn may be as long as the length limit.
        seeds: As in `Policy.sample`. First turns are those that `Policy.sample` draws with the same seeds.
    """
    sampling = sampling or SamplingConfig()
    if sampling.engine == "vllm" or not policy.loaded.family.shares_prompts:
        return sample_turns_apart(policy, prompts, follow_ups, sampling, seeds)
    if not prompts:
        return []
    return policy.infer(lambda: _sample_turns(policy, prompts, follow_ups, sampling, seeds))


def _sample_turns(
    policy: Policy,
    prompts: Sequence[Prompt],
    follow_ups: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    seeds: Sequence[int],
) -> list[list[Turns]]:
    """Both turns where each prompt is prefilled once."""
    forward, decoder, steps = policy.forward, policy.decoder(sampling), sampling.max_new_tokens
    last, layout = forward.prefill(prompts)
    starts = forward.starts(prompts)
    first = decoder.behind(last, layout, starts, seeds)
    groups = [
        [
            Turns(s, [] if s.finish == Finish.LENGTH else inserted_tokens(s.tokens, between), None)
            for s in group
        ]
        for group, between in zip(first, follow_ups, strict=True)
    ]
    wanted = torch.tensor([[t.first.finish != Finish.LENGTH for t in group] for group in groups])
    if not bool(wanted.any()):
        return groups
    # A turn that was cut off stays in the batch with its first token alone, until it is dropped.
    given = policy.stack(
        [[t.first.tokens[: None if t.inserted else 1] + t.inserted for t in group] for group in groups]
    )
    hidden, layout = forward.extend(given, starts, layout, steps)
    draws = uniforms(seeds, sampling.group_size, steps, turn=1)
    starts = starts[:, None] + given.lengths_bg
    second = decoder.go_on(hidden, layout, starts, draws, wanted.to(forward.device))
    for group, samples in zip(groups, second, strict=True):
        for turns, sample in zip(group, samples, strict=True):
            if turns.first.finish != Finish.LENGTH:
                turns.second = sample
    return groups


def sample_turns_apart(
    policy: Policy,
    prompts: Sequence[Prompt],
    follow_ups: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    seeds: Sequence[int],
) -> list[list[Turns]]:
    """`sample_turns` where prompts cannot be shared (unknown families, vLLM): second turns have their own."""
    groups = [
        [Turns(s, [] if s.finish != Finish.STOP else inserted_tokens(s.tokens, between), None) for s in group]
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
    """``prompt`` with more text behind it."""
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
    """Tensors ``[1, length]`` that hold the kinds of tokens go on with ``more`` zeros, which mean text."""
    return {
        name: F.pad(tensor, (0, more)) if tensor.shape == (1, length) else tensor
        for name, tensor in tensors.items()
    }
