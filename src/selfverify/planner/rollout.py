"""The rollout of a step without weights: images, conversations at their longest, reading scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from selfverify.planner.measured import MeasuredPass
from selfverify.planner.meter import Meter
from selfverify.policy.chunked import Heard, append, batches, prefill, scores_at_once
from selfverify.policy.families import ImageInput
from selfverify.policy.features import image_features
from selfverify.policy.layout import SharedLayout
from selfverify.policy.policy import Policy
from selfverify.policy.scores import READ_BATCH, score_tree
from selfverify.policy.voice import Voice


def encode_images(policy: Policy, measured: MeasuredPass, meter: Meter) -> None:
    """Encode the largest image with the vision tower; make features of the right size for the others."""
    cache = policy.cache
    images = {image.key: image for prompt in measured.shapes.prompts for image in prompt.images}
    if cache is None or not images:
        return
    before, chunk = dict(meter.live), policy.config.prefill_chunk
    largest = max(images.values(), key=lambda image: image.placeholders)
    with measured.phase(meter, "images") as span:
        features = image_features(policy.loaded, [largest], cache, chunk)[largest.key]
    factor = sum(image.placeholders for image in images.values()) / largest.placeholders
    span.flops = round(span.flops * factor)
    # The tower's memory grows with its patches. It gets as many images at once as have `chunk` features, but
    # on a CPU one by one.
    most = max(chunk / largest.placeholders, 1)
    at_once = min(factor, most) if policy.device.type != "cpu" else 1
    for label, held in span.peak.items():
        span.peak[label] = round(before.get(label, 0) + at_once * (held - before.get(label, 0)))
    for key, image in images.items():
        cache.put(key, features.new_empty(image.placeholders, features.shape[1]))
    meter.relabel((cache.get(key) for key in images), "caches")


def converse(policy: Policy, measured: MeasuredPass, meter: Meter, voice: Voice) -> None:
    """Hold all conversations up to their ends, through those moments alone at which most is held.

    Those are when keys and values get more room, the last reply, and the last token.
    """
    shapes, forward = measured.shapes, policy.forward
    talk, b, g = shapes.conversation, len(shapes.prompts), shapes.group_size
    if policy.device.type == "cpu" and measured.reply_pixels:
        # Preprocessed images are held as far as their cache holds them, at least those of one turn.
        turn = measured.reply_pixels // talk.replies
        cached = policy.config.pixel_cache_mb << 20
        measured.keep(policy, meter, min(measured.reply_pixels, max(cached, turn)))
    total, heard = len(talk.tokens), 1 + len(talk.reply.tokens)  # what was said last is heard, too
    with measured.phase(meter, "sampling") as span:
        with meter.span() as reading:
            last_bh, prefilled = prefill(forward, shapes.prompts)
        meter.relabel((x for pair in prefilled.prompt_keys.values() for x in pair), "caches")
        layout = prefilled.to_grow(g, scores_at_once(forward))
        hidden_bgh = last_bh[:, None].expand(b, g, -1)
        flops, hearing = reading.flops, max(total - talk.said - heard, 0) if talk.replies else -1
        for place in _growing(talk.turns, talk.said, heard, len(talk.reply.tokens) if talk.begins else 0):
            if hearing >= 0 and place > hearing:
                flops += talk.replies * _hear(policy, measured, meter, layout, hearing)
                hearing = -1
            _step(policy, voice, hidden_bgh, layout, place)
            meter.relabel((x for pair in layout.own_keys.values() for x in pair), "caches")
        if hearing >= 0:
            flops += talk.replies * _hear(policy, measured, meter, layout, hearing)
        with meter.span() as one:
            _step(policy, voice, hidden_bgh, layout, total // 2)
        _step(policy, voice, hidden_bgh, layout, max(total - 2, 0))
        # When rows have ended, the caches are copied without them: here without a fifth of the rows.
        layout.select(torch.arange(b), torch.arange(max(g * 4 // 5, 1)).expand(b, -1))
    span.flops = flops
    measured.steps, measured.step_flops = talk.turns * talk.said, one.flops


def _growing(turns: int, said: int, heard: int, first: int = 0) -> Iterator[int]:
    """The own tokens that conversations have where the next token finds no room; see `SharedLayout`.

    Args:
        turns: How often the policy speaks.
        said: The tokens of each of its turns, the last of which is heard or dropped.
        heard: The tokens that are heard between two turns.
        first: Those that are heard before the first one.
    """
    have, kept = 0, first
    if first:
        yield first - 1
        have = max(first, SharedLayout.FIRST_ROOM)
    for turn in range(turns):
        kept += said - 1
        while have < kept:
            yield have
            have = max(have + 1, 2 * have, SharedLayout.FIRST_ROOM)
        kept += heard
        if turn + 1 < turns and have < kept:
            yield kept - 1
            have = max(kept, 2 * have, SharedLayout.FIRST_ROOM)


def _step(policy: Policy, voice: Voice, hidden_bgh: torch.Tensor, layout: SharedLayout, kept: int) -> None:
    """Draw a token in every thread and forward it behind ``kept`` own ones."""
    b, g, _ = hidden_bgh.shape
    voice.choose(hidden_bgh, torch.zeros(b, g))
    tokens = torch.zeros(b, g, 1, dtype=torch.long)
    layout.place(tokens[..., 0], kept, True)
    policy.forward.grow(tokens, tokens.expand(policy.loaded.family.position_axes, b, g, 1), layout)


def _hear(policy: Policy, measured: MeasuredPass, meter: Meter, layout: SharedLayout, kept: int) -> int:
    """Let every thread hear a reply behind ``kept`` own tokens; return the operations of all of them.

    The first batch of threads is forwarded, and the others take as much for each thread.
    """
    shapes, forward = measured.shapes, policy.forward
    b, g, talk = len(shapes.prompts), shapes.group_size, shapes.conversation
    width = 1 + len(talk.reply.tokens)
    together = batches({(i, j): (i, width) for i in range(b) for j in range(g)}, forward.chunk)
    few = together[0]
    problems = sorted({i for i, _ in few})
    slots = torch.arange(len(few) // len(problems)).expand(len(problems), -1)
    part = layout
    with meter.span() as span:
        if len(together) > 1:
            part = layout.select(torch.tensor(problems), slots, kept, width)
        pieces = [talk.heard(f"{i}/{j}/planned") for i, j in sorted(few)]
        ids = torch.tensor([[0, *piece.tokens] for piece in pieces]).view(*slots.shape, width)
        positions = torch.arange(width).expand(policy.loaded.family.position_axes, *slots.shape, -1)
        images = [image for piece in pieces for image in piece.images]
        kept_bg = torch.full(slots.shape, kept)
        owners = [shapes.prompts[i] for i in problems]
        for _ in append(forward, part, Heard(ids, positions, kept_bg, kept, True, images, owners)):
            pass
    _keep_images(policy, measured, meter, images)
    return round(span.flops * b * g / len(few))


def _keep_images(policy: Policy, measured: MeasuredPass, meter: Meter, heard: Sequence[ImageInput]) -> None:
    """Keep the features of the images in all replies, some of which have been ``heard``, in the cache."""
    if not heard:
        return
    shapes, talk = measured.shapes, measured.shapes.conversation
    threads = [f"{i}/{j}" for i in range(len(shapes.prompts)) for j in range(shapes.group_size)]
    features = policy.cache.get(heard[0].key) if policy.cache is not None else None
    if policy.cache is not None and features is not None:
        for image in (image for name in threads for image in talk.images(name)):
            policy.cache.put(image.key, features.new_empty(image.placeholders, features.shape[1]))
            meter.relabel([policy.cache.get(image.key)], "caches")


def read_scores(policy: Policy, measured: MeasuredPass, meter: Meter) -> None:
    """Read the scores of all answers, as methods do whose verifier is read and not sampled."""
    shapes = measured.shapes
    prompts, tree = shapes.prompts[:READ_BATCH], score_tree(policy.tokenizer)
    paths = tree.paths()
    length = shapes.response_tokens + max(len(path) for path in paths) + 1
    rows = [[[0] * length] * (shapes.group_size * len(paths)) for _ in prompts]
    with measured.phase(meter, "scores") as span:
        policy.hidden_states(prompts, policy.stack(rows))
    span.flops = round(span.flops * len(shapes.prompts) / len(prompts))
