"""A small text policy with fresh weights, with which the cold start of agents on the phone begins.

The recipes `cold-start-phone-1-copy`, `cold-start-phone-2-work` and `cold-start-phone` train it; what
comes out is `builtin:phone`.

Its tokenizer knows the words of the phone's screens, tasks and calls as one token each. Calls are plain JSON;
the fixed part of each is one token, so that a call costs three to eight.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from selfverify_phone.contents import words
from selfverify_phone.expert import carry_out
from selfverify_phone.fresh_model import text_tokenizer, write_tiny_text
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.rendering.writing import terse
from selfverify_phone.templates import TEMPLATES
from selfverify_phone.tools import schemas

SEEDS = 6
"""Tasks of each template whose words are learnt; other words fall apart into shorter pieces."""
WIDTH, LAYERS = 128, 4
WORDS = r"\d\d:\d\d|[a-z]\d+(?!\p{L})|\d{1,2}|\p{L}+|[^\s\p{L}\d]+"
"""A time of day, an id such as ``r3``, up to two digits, a word, or a run of signs."""
SPOKEN = (
    "# Task",
    " " + " ".join(map(str, range(31))),
    "tap swipe type back home enter wait launch submit",
    "Error: there is no on the screen; it is disabled; nothing has the focus; needs",
    "Done. None True False yes no",
)
"""Words around screens."""


def corpus() -> Iterator[str]:
    """Texts with all words of the phone: of tasks, screens, and what is typed."""
    yield from SPOKEN
    for listed in vars(words).values():
        if isinstance(listed, tuple):
            yield from (f"{word} {word} {word.casefold()}" for word in listed)
    for name, template in TEMPLATES.items():
        yield from template.wordings
        for seed in range(SEEDS):
            task = make_task(name, seed)
            yield task.instruction
            yield f" {task.message}"
            phone = task.phone()
            for step in (*task.solve, *task.prove):
                yield terse(phone.look())
                for call in carry_out(phone, [step]):
                    yield from (f" {value}" for value in call.arguments.values())
            yield terse(phone.look())


def phrases() -> list[str]:
    """The fixed parts of all calls, as `json.dumps` writes them."""
    found: list[str] = []
    for schema in schemas("ids", []):
        named = schema["function"]["name"]
        found += [named] * ("_" in named)
        takes = schema["function"]["parameters"]["properties"]
        # A text stands between quotes, a number does not.
        slots = [f'"{key}": ' + ('"@"' if of["type"] == "string" else "@") for key, of in takes.items()]
        found += f'{{"name": "{named}", "arguments": {{{", ".join(slots)}}}}}'.split("@")
    found += ['{"name": "submit", "arguments": {"message": "', '", "evidences": [', "]}}", "## Round", "\n-"]
    return list(dict.fromkeys(found))


def write_small_policy(folder: Path, seed: int = 0) -> Path:
    """Write the fresh policy to ``folder`` and return it; its weights depend on the seed alone."""
    return write_tiny_text(
        folder, text_tokenizer(corpus(), phrases(), WORDS), seed, hidden=WIDTH, layers=LAYERS
    )


if __name__ == "__main__":
    import sys

    print(write_small_policy(Path(sys.argv[1])))
