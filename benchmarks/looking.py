"""Looking again with tools: kept keys, and the verifier that hears each step.

8 conversations about a prompt of about 110 tokens (`--problems 2`: 16) of 6 steps and the answer, with the
tiny Qwen2.5-VL. A step has 18 tokens, as the teacher of `digits-far` writes them, and is shown words and an
image; two neighbours of a group see the same one. Once with images of 256 tokens, and once with crops of 16.
Two comparisons in one process:

- the reasoner: `kept` (`SharedKVSession`, as rollouts use them) against two ways to prefill the whole
  conversation in every step: `afresh`, with all its images, and `anew`, where features of images are kept.
  All sample equally many tokens;
- the verifier with an adapter, and its base: `incremental` (`StepVerifier`) against scoring the whole
  conversation with both models after each step, in one batch, prompts shared: `whole afresh`, with all its
  images, and `whole`, where features are kept. The program fails if they do not find the same Δr.

It counts how many images pass through the vision tower, and fails if one does so twice. Time is the process's
CPU time, in rounds of all sides, the order turning; ratios are medians over rounds. The last line is a JSON
object with `kept_faster` (afresh / kept), `kept_faster_features` (anew / kept), `verifier_faster` (whole
afresh / incremental), `verifier_faster_features` (whole / incremental), all four also with `_crops`.

    python benchmarks/looking.py [--problems 2] [--repeats 3] [--threads 1] [--hidden 160] [--layers 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import arguments, finish, forget_images, make_problems, parse, show
from many_turns import Endless, Script, measure
from torch import Tensor

from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, SampleIndex
from selfverify.policy.encoding import Prompt
from selfverify.policy.features import ByteCache
from selfverify.policy.kv_sessions import KVSession
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.policy.recomputing_sessions import RecomputingSession
from selfverify.policy.tiny_models import write_tiny
from selfverify.visual.stopping import LOG_RATIO
from selfverify.visual.verifier import StepVerifier

STEPS, GROUP, ALIKE = 6, 8, 2
STEP = "<think>5</think>crop 1 3 3 6 6"
IMAGES = {"": 256, "_crops": 64}
"""Sides of the images, pixels: 256 and 16 tokens."""
CLOSE = 1e-3
"""Nats by which the two ways to find Δr may differ in float32."""


class Counted(ByteCache[Tensor]):
    """Image features by key, and how often each image has passed through the tower."""

    def __init__(self, limit_mb: float) -> None:
        super().__init__(limit_mb)
        self.made: list[str] = []

    def put(self, key: str, item: Tensor) -> None:
        """See `ByteCache`."""
        self.made.append(key)
        super().put(key, item)


def counted(policy: Policy) -> Counted:
    """Count from now on what passes through the tower, with nothing kept from before."""
    forget_images(policy)
    cache = Counted(policy.config.vision_cache_mb)
    policy.cache = policy.forward.cache = cache
    return cache


def check_once(cache: Counted, distinct: int, what: str) -> None:
    """Refuse an image that passed through the tower twice.

    Raises:
        SystemExit: Saying how many did.
    """
    if len(cache.made) != distinct or len(set(cache.made)) != distinct:
        raise SystemExit(f"{what}: {len(cache.made)} images were encoded, and {distinct} are distinct")


def distinct_images(problems: Sequence[Problem], steps: int) -> int:
    """How many images conversations see: their questions', and those of the steps."""
    asked = {image.tobytes() for problem in problems for image in problem.images}
    return len(asked) + len(problems) * steps * (GROUP // ALIKE)


def sides(
    policy: Policy, prompts: Sequence[Prompt], script: Script, said: int
) -> dict[str, Callable[[], None]]:
    """The reasoner's ways: all steps and the answer, each of ``said`` tokens."""
    seeds, places = [*range(len(prompts))], [(b, g) for b in range(len(prompts)) for g in range(GROUP)]
    sampling = SamplingConfig(group_size=GROUP, max_new_tokens=said)

    def look(threads: KVSession) -> None:
        for step in range(script.turns):
            threads.generate(dict.fromkeys(places, step))
            threads.append({place: script.piece(place, step) for place in places})
        threads.generate(dict.fromkeys(places, script.turns), more=False)

    def kept() -> None:
        look(policy.threads(prompts, sampling, seeds=seeds))

    def anew() -> None:
        look(
            RecomputingSession(
                policy.sample, policy.logprobs, prompts, seeds, sampling, policy.encoder.extended
            )
        )

    def afresh() -> None:
        cache, policy.forward.cache = policy.forward.cache, None
        anew()
        policy.forward.cache = cache

    return {"kept": kept, "anew": anew, "afresh": afresh}


class Heard:
    """Conversations that are given: what is said in each step, and what is shown after it.

    Args:
        policy: The verifier, with an adapter.
        problems: What they are about.
        script: The images.
    """

    def __init__(self, policy: Policy, problems: Sequence[Problem], script: Script) -> None:
        self.policy, self.problems, self.script = policy, problems, script
        self.base = policy.without_adapter()
        self.by_place = {(b, g): problems[b] for b in range(len(problems)) for g in range(GROUP)}
        ids = policy.tokenizer(STEP, add_special_tokens=False)["input_ids"]
        self.tokens = [*ids, policy.tokenizer.eos_token_id]

    def forget(self) -> Counted:
        """Count from now on what passes through the tower, which both models have in common."""
        cache = counted(self.policy)
        self.base.encoder = self.policy.encoder
        self.base.cache = self.base.forward.cache = cache
        return cache

    def said(self, turn: int) -> PolicyTurn:
        """What each conversation says in a turn."""
        return PolicyTurn(STEP, list(self.tokens), Finish.STOP, turn)

    def shown(self, place: SampleIndex, turn: int) -> Observation:
        """What a conversation is shown after a turn."""
        words = [{"type": "text", "text": f"Image {turn + 2}:"}, {"type": "image"}]
        return Observation(words, [self.script.picture(place, turn)])

    def incremental(self) -> list[dict[SampleIndex, float]]:
        """Δr of each turn, as soon as it has been said."""
        verifier = StepVerifier(self.policy, self.base, reasoner=self.policy)
        verifier.begin(self.by_place)
        found = []
        for turn in range(self.script.turns + 1):
            words = {place: self.said(turn) for place in self.by_place}
            verifier.said(words)
            found.append({place: said.values[LOG_RATIO] for place, said in words.items()})
            if turn < self.script.turns:
                verifier.shown({place: self.shown(place, turn) for place in self.by_place})
        return found

    def whole(self) -> list[dict[SampleIndex, float]]:
        """The same from the whole conversation up to each turn, which both models score anew."""
        writer = ReplyEncoder(self.policy.encoder)
        tokens: dict[SampleIndex, list[int]] = {place: [] for place in self.by_place}
        images: dict[SampleIndex, list[Any]] = {place: [] for place in self.by_place}
        found = []
        for turn in range(self.script.turns + 1):
            for place in self.by_place:
                tokens[place] += self.tokens
            found.append(self._last_ratio(tokens, images))
            if turn == self.script.turns:
                break
            for place, problem in self.by_place.items():
                reply = writer.encode(problem, self.shown(place, turn), turn + 1)
                piece = without_written_end(self.tokens, reply)
                tokens[place] += piece.tokens
                images[place] += piece.images
        return found

    def afresh(self) -> list[dict[SampleIndex, float]]:
        """`whole` with all images encoded in every step, by each of the models."""
        models = (self.policy, self.base)
        for model in models:
            model.cache = model.forward.cache = None
        return self.whole()

    def _last_ratio(
        self, tokens: Mapping[SampleIndex, Sequence[int]], images: Mapping[SampleIndex, Sequence[Any]]
    ) -> dict[SampleIndex, float]:
        """Each conversation's log-ratio of what was said last."""
        rows = [
            [Continuation([*tokens[b, g]], [*images[b, g]]) for g in range(GROUP)]
            for b in range(len(self.problems))
        ]
        longest, count = max(map(len, tokens.values())), len(self.tokens)
        needed = torch.zeros(len(rows), GROUP, longest, dtype=torch.bool)
        for (b, g), own in tokens.items():
            needed[b, g, len(own) - count : len(own)] = True
        with torch.no_grad():
            sums = [
                model.logprobs(model.encode(self.problems), rows, needed=needed).double().sum(-1)
                for model in (self.policy, self.base)
            ]
        return {place: float(sums[0][place] - sums[1][place]) for place in self.by_place}


@torch.no_grad()
def adapted(folder: str, seed: int) -> Policy:
    """A verifier whose adapter has learnt something."""
    policy = Policy.load(folder, device="cpu", lora=AdapterConfig(rank=8, alpha=16))
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.model.parameters():
        if parameter.requires_grad:
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return policy


def check_same(one: Sequence[dict[SampleIndex, float]], other: Sequence[dict[SampleIndex, float]]) -> float:
    """The largest difference of two ways to find Δr.

    Raises:
        SystemExit: They differ.
    """
    gaps = [abs(a[place] - b[place]) for a, b in zip(one, other, strict=True) for place in a]
    if max(gaps) > CLOSE or not any(abs(value) > 10 * CLOSE for row in one for value in row.values()):
        raise SystemExit(f"Δr differs by up to {max(gaps):.2g} nats, or is 0 everywhere")
    return max(gaps)


def median_ratio(rounds: Sequence[Mapping[str, float]], slow: str, fast: str) -> float:
    """How many times faster one side is than another, the median over rounds."""
    return statistics.median(row[slow] / row[fast] for row in rounds)


def measure_looks(folder: str, options: argparse.Namespace) -> tuple[dict[str, Any], list[list[Any]]]:
    """What kept keys save the reasoner and the verifier, with images of both sizes."""
    results: dict[str, Any] = {}
    rows: list[list[Any]] = []
    reasoner, verifier = Endless.load(folder, device="cpu"), adapted(folder, options.seed)
    problems = make_problems(reasoner, options.problems, 110)
    said = len(reasoner.tokenizer(STEP, add_special_tokens=False)["input_ids"]) + 1
    distinct = distinct_images(problems, options.steps)
    for name, side in IMAGES.items():
        script = Script(reasoner, True, options.steps, every=1, side=side, alike=ALIKE)
        cache = counted(reasoner)
        runs = sides(reasoner, reasoner.encode(problems), script, said)
        runs["kept"]()
        check_once(cache, distinct, "the reasoner")
        rounds = measure(runs, options.repeats, partial(counted, reasoner))

        heard = Heard(
            verifier, problems, Script(verifier, True, options.steps, every=1, side=side, alike=ALIKE)
        )
        cache = heard.forget()
        one = heard.incremental()
        check_once(cache, distinct, "the verifier and its base")
        results[f"gap{name}"] = check_same(one, heard.whole())
        ways = {"incremental": heard.incremental, "whole": heard.whole, "whole afresh": heard.afresh}
        verified = measure(ways, options.repeats, heard.forget)

        for what, found, (fast, slow) in (
            ("kept_faster", rounds, ("kept", "afresh")),
            ("kept_faster_features", rounds, ("kept", "anew")),
            ("verifier_faster", verified, ("incremental", "whole afresh")),
            ("verifier_faster_features", verified, ("incremental", "whole")),
        ):
            ratio = results[what + name] = median_ratio(found, slow, fast)
            seconds = [statistics.median(row[one] for row in found) for one in (fast, slow)]
            rows.append([f"{slow} / {fast}", (side // 16) ** 2, *seconds, ratio])
    shown = len(problems) * GROUP * (options.steps + 1)
    return results | {"images_encoded": distinct, "images_shown": shown}, rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print one table."""
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each conversation")
    parser.add_argument("--problems", type=int, default=1, help="prompts, each with 8 conversations")
    parser.add_argument("--hidden", type=int, default=160, help="width of the model")
    parser.add_argument("--layers", type=int, default=5, help="depth of the model")
    parser.set_defaults(repeats=1)
    options = parse(parser, argv)
    with tempfile.TemporaryDirectory() as made:
        folder = write_tiny(Path(made) / "policy", options.seed, options.hidden, options.layers)
        results, rows = measure_looks(str(folder), options)
    title = f"{options.problems * GROUP} conversations of {options.steps} steps; CPU seconds"
    show(title, ["", "an image's tokens", "fast", "slow", "ratio"], rows)
    finish(results, options)


if __name__ == "__main__":
    main()
