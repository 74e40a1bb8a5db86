"""Short conversations that teach a fresh small policy to copy: a cold start's first stage.

    python -m selfverify_phone.copying copying.jsonl

The task names a few things of several words or numbers; the screen lists these and others, each with an id.
The assistant touches or types one after the other. One in five of the tokens that it says is a copied word,
against one in 58 of an expert's on the phone, where a small policy learns the ways by heart and no copying in
hours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from selfverify.core.episode import Call
from selfverify.core.files import write_text
from selfverify.tasks.tool_calls import written_call
from selfverify_phone.small_policy import corpus

CONVERSATIONS = 30_000
MOST_ASKED, MOST_OTHERS = 4, 5
IDS = [f"r{number}" for number in range(1, 17)]


@cache
def known_words() -> tuple[str, ...]:
    """The words of the phone's screens and tasks that have a space before them, each once."""
    found = {word for text in corpus() for word in text.replace("\n", " ").split(" ")[1:]}
    return tuple(sorted(word for word in found if word.isalpha() or word.replace(":", "").isdigit()))


def conversation(words: Sequence[str], rng: np.random.Generator) -> dict[str, Any]:
    """One conversation, as `tasks.conversations` reads it."""
    asked = int(rng.integers(1, MOST_ASKED + 1))
    listed = asked + int(rng.integers(1, MOST_OTHERS + 1))
    things: list[str] = []
    while len(things) < listed:
        thing = " ".join(words[i] for i in rng.integers(len(words), size=int(rng.integers(1, 3))))
        if thing not in things:
            things.append(thing)
    ids = rng.permutation(IDS)[:listed].tolist()
    rows = "".join(f"\n- {things[i]} {ids[i]}" for i in rng.permutation(listed))
    messages = [
        {"role": "user", "content": f"# Task\nTake {', '.join(things[:asked])}."},
        {"role": "user", "content": f"## Round 0\n- Things{rows}"},
    ]
    for thing, its_id in zip(things[:asked], ids[:asked], strict=True):
        touched, typed = Call("tap", {"id": its_id}), Call("type", {"text_input": thing})
        for call in [[touched], [typed], [touched, typed]][int(rng.integers(3))]:
            messages.append({"role": "assistant", "content": written_call(call, "spaced")})
            messages.append({"role": "tool", "content": f"## Round {len(messages) // 2}"})
    return {"messages": messages[:-1]}


def write_copying(file: Path, conversations: int = CONVERSATIONS, seed: int = 0) -> Path:
    """Write so many conversations to a JSONL file and return it; they depend on the seed alone."""
    words, rng = known_words(), np.random.default_rng(seed)
    lines = [json.dumps(conversation(words, rng)) for _ in range(conversations)]
    write_text(file, "\n".join(lines) + "\n")
    return file


if __name__ == "__main__":
    import sys

    print(write_copying(Path(sys.argv[1])))
