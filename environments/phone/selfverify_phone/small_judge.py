"""A small judge with fresh weights, which reads cases in few words (`selfverify_phone.short_form`).

The recipe `judge-phone` trains it. What it came to ships as `builtin:phone-judge`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from selfverify_phone import small_policy
from selfverify_phone.fresh_model import text_tokenizer, write_tiny_text
from selfverify_phone.judging import PhoneJudging
from selfverify_phone.short_form import QUESTION

PROBLEMS = 1000
"""Cases whose words are learnt, beside those of the phone."""
WIDTH, LAYERS = 128, 4
CONTEXT = 4096


def corpus() -> Iterator[str]:
    """Texts with the words of the phone, of cases and of verdicts."""
    yield QUESTION
    for text in small_policy.corpus():
        yield "".join(f" {word}" for word in text.casefold().split())
    task = PhoneJudging()
    for index in range(PROBLEMS):
        target = task.problem("train", 0, index).target
        yield target["case"]
        yield target["verdict"]


def write_small_judge(folder: Path, seed: int = 0) -> Path:
    """Write the fresh judge to ``folder`` and return it; its weights depend on the seed alone."""
    tokenizer = text_tokenizer(corpus(), (), small_policy.WORDS)
    return write_tiny_text(folder, tokenizer, seed, hidden=WIDTH, layers=LAYERS, context=CONTEXT)


if __name__ == "__main__":
    import sys

    print(write_small_judge(Path(sys.argv[1])))
