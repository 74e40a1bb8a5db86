"""Conversations of many turns with kept keys, against one long turn, and against prefilling each turn anew.

8 conversations of 24 turns about a prompt of about 110 tokens, with the tiny Qwen2.5-VL. In every turn the
policy says exactly 40 tokens (ends are suppressed), then each conversation hears 16 tokens; with images also
one of 256 tokens in every third turn. The sides:

- `kept`: `SharedKVSession`, as rollouts use them;
- `one go`: one turn as long as all of them, then one pass over all that was heard;
- `halves`: half of it is heard before that turn, so that what is said follows as many tokens as in `kept`;
- `anew`: `RecomputingSession`, where every turn prefills the whole conversation, and each prompt 8 times.

Time is the process's CPU time, in rounds of all sides, the order turning; ratios are medians over rounds.
The last line is a JSON object: `over_one_go` (kept / one go), `over_halves` (kept / halves) and
`faster_than_prefill` (anew / kept), and the same with `_images`.

    python benchmarks/many_turns.py [--turns 30] [--problems 8] [--repeats 1] [--threads 1] [--record FILE]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from common import arguments, finish, forget_images, make_problems, model_folder, parse, show
from PIL import Image

from selfverify.core.config import SamplingConfig
from selfverify.core.trajectory import SampleIndex
from selfverify.policy.decoding import TokenSampler
from selfverify.policy.encoding import Prompt
from selfverify.policy.kv_sessions import KVSession
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.policy.recomputing_sessions import RecomputingSession

TURNS, SAID, HEARD = 24, 40, 16
IMAGE_EVERY, IMAGE_SIDE, PIXELS_PER_TOKEN = 3, 256, 16 * 16


class Endless(Policy):
    """A policy that never ends what it says."""

    def voice(self, sampling: SamplingConfig) -> TokenSampler:
        """See `Policy.voice`."""
        made = super().voice(sampling)
        made.suppressed = torch.cat([made.suppressed, made.stop])
        return made


class Script:
    """Its messages in each turn: the same words everywhere, and images that differ by prompt and turn.

    Args:
        policy: Encodes it.
        images: Whether there are images.
        turns: How many turns there are.
        every: In every how many turns there is an image.
        side: Its sides, pixels; a token stands for 16 x 16 of them.
        alike: How many neighbours of a group see the same image; None is all.
    """

    def __init__(
        self,
        policy: Policy,
        images: bool,
        turns: int,
        every: int = IMAGE_EVERY,
        side: int = IMAGE_SIDE,
        alike: int | None = None,
    ) -> None:
        self.policy, self.images, self.turns = policy, images, turns
        self.every, self.side, self.alike = every, side, alike

    def picture(self, place: SampleIndex, turn: int) -> Image.Image:
        """The image that a conversation sees after a turn."""
        pair = 0 if self.alike is None else place[1] // self.alike
        noise = torch.Generator().manual_seed(10_000 * pair + 100 * place[0] + turn)
        pixels = torch.randint(256, (self.side, self.side, 3), generator=noise, dtype=torch.uint8)
        return Image.fromarray(pixels.numpy())

    def piece(self, place: SampleIndex, turn: int) -> Continuation:
        """The message that a conversation gets after a turn."""
        words = [70 + (turn + place[1]) % 20] * HEARD
        if not self.images or turn % self.every:
            return Continuation(words)
        image = self.policy.encoder.image(self.picture(place, turn), "noise", several=True)
        if image.placeholders != self.side**2 // PIXELS_PER_TOKEN:
            raise SystemExit(f"an image takes {image.placeholders} tokens")
        shown = self.policy.tokenizer(image.text, add_special_tokens=False)["input_ids"]
        return Continuation([*words, *shown], [image])

    def all_of(self, place: SampleIndex, turns: range) -> Continuation:
        """The messages of some turns, in one piece."""
        pieces = [self.piece(place, turn) for turn in turns]
        return Continuation([t for p in pieces for t in p.tokens], [i for p in pieces for i in p.images])


def talk(threads: KVSession, places: Sequence[SampleIndex], script: Script) -> None:
    """All turns, one after the other."""
    for turn in range(script.turns):
        threads.generate(dict.fromkeys(places, turn))
        threads.append({place: script.piece(place, turn) for place in places})


def sides(
    policy: Policy, prompts: Sequence[Prompt], group: int, script: Script
) -> dict[str, Callable[[], None]]:
    """The ways that are measured, by name."""
    seeds = list(range(len(prompts)))
    places = [(b, g) for b in range(len(prompts)) for g in range(group)]
    short = SamplingConfig(group_size=group, max_new_tokens=SAID)
    long = SamplingConfig(group_size=group, max_new_tokens=SAID * script.turns)

    def kept() -> None:
        talk(policy.threads(prompts, short, seeds=seeds), places, script)

    def one_turn(before: int) -> None:
        threads = policy.threads(prompts, long, seeds=seeds)
        if before:
            threads.append({place: script.all_of(place, range(before)) for place in places})
        threads.generate(dict.fromkeys(places, 0))
        threads.append({place: script.all_of(place, range(before, script.turns)) for place in places})

    def anew() -> None:
        apart = RecomputingSession(
            policy.sample, policy.logprobs, prompts, seeds, short, policy.encoder.extended
        )
        talk(apart, places, script)

    halves = partial(one_turn, script.turns // 2)
    return {"kept": kept, "one go": partial(one_turn, 0), "halves": halves, "anew": anew}


def measure(
    runs: Mapping[str, Callable[[], object]], repeats: int, before: Callable[[], object] = dict
) -> list[dict[str, float]]:
    """CPU seconds of each side in ``repeats`` rounds, the order turning; ``before`` is called untimed."""
    rounds = []
    for number in range(repeats):
        order = list(runs) if number % 2 else [*runs][::-1]
        seconds = {}
        for name in order:
            before()
            start = time.process_time()
            runs[name]()
            seconds[name] = time.process_time() - start
        rounds.append(seconds)
    return rounds


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a row for text and one for images."""
    parser = arguments(__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help="turns of each conversation")
    parser.add_argument("--problems", type=int, default=1, help="prompts, each with 8 conversations")
    parser.set_defaults(repeats=1)
    options = parse(parser, argv)
    rows: list[list[Any]] = []
    results: dict[str, float] = {}
    with model_folder(options.seed) as folder:
        policy = Endless.load(folder, device="cpu")
        problems = make_problems(policy, options.problems, 110)
        prompts = policy.encode(problems)
        for images in (False, True):
            runs = sides(policy, prompts, 8, Script(policy, images, options.turns))
            rounds = measure(runs, options.repeats, partial(forget_images, policy))
            name = "_images" if images else ""
            over = [statistics.median(r["kept"] / r[side] for r in rounds) for side in ("one go", "halves")]
            faster = statistics.median(r["anew"] / r["kept"] for r in rounds)
            results |= {f"over_one_go{name}": over[0], f"over_halves{name}": over[1]}
            results[f"faster_than_prefill{name}"] = faster
            seconds = [statistics.median(r[side] for r in rounds) for side in runs]
            rows.append(["images" if images else "text", *seconds, *over, faster])
    title = f"{options.turns} turns of {SAID} tokens, {options.problems * 8} conversations; CPU seconds"
    ratios = ["kept / one go", "kept / halves", "anew / kept"]
    show(title, ["", "kept", "one go", "halves", "anew", *ratios], rows)
    finish(results, options)


if __name__ == "__main__":
    main()
