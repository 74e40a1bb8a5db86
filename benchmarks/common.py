"""Shared by the benchmarks: the model, the problems, interleaved timing, and how results are printed."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

from selfverify.core.files import write_json
from selfverify.core.problem import Problem
from selfverify.experiments.registry import make_task
from selfverify.policy.encoding import Encoder
from selfverify.policy.features import ByteCache
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import write_tiny
from selfverify.tasks.base import Task

RESPONSE_TOKENS = 24
PROMPT_TOKENS = 110
GROUP_SIZE = 8
PROBLEMS = 8
FILLER = " Answer with care."
IMAGE_SIDE = 512
IMAGE_PROBLEMS = 2
"""Instead of `PROBLEMS` where prompts are mostly image."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each side, after one warm-up")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch threads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", type=int, nargs="+", default=[GROUP_SIZE], help="values of G")
    parser.add_argument("--prompts", type=int, nargs="+", default=[PROMPT_TOKENS], help="prompt tokens")
    parser.add_argument("--record", type=Path, help="a JSON file whose list gets the results, too")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options and apply those that concern the whole process."""
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return options


@contextmanager
def model_folder(seed: int) -> Any:
    """A folder with the built-in architecture at its default size, random weights."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(write_tiny(Path(folder), seed))


def make_problems(policy: Policy, count: int, prompt_tokens: int) -> list[Problem]:
    """`digits-pick` problems with their question padded by filler words to about ``prompt_tokens``."""
    task = make_task("digits-pick")
    step = len(policy.tokenizer(FILLER, add_special_tokens=False)["input_ids"])
    found = []
    for index in range(count):
        problem = task.problem("train", 0, index)
        missing = prompt_tokens - len(policy.encoder.prompt(problem).ids)
        [message] = problem.messages
        *images, text = message["content"]
        padded = {**text, "text": text["text"] + FILLER * max(0, round(missing / step))}
        found.append(replace(problem, messages=[{**message, "content": [*images, padded]}]))
    return found


def make_image_problems(policy: Policy, count: int) -> list[Problem]:
    """`digits-pick` problems whose image is drawn so large that it takes 1,024 tokens."""
    task = make_task("digits-pick")
    found = []
    for index in range(count):
        problem = task.problem("train", 0, index)
        drawn = replace(problem, images=[image.resize((IMAGE_SIDE,) * 2) for image in problem.images])
        [image] = policy.encoder.prompt(drawn).images
        if image.placeholders < 1000:
            raise SystemExit(f"an image of {IMAGE_SIDE} pixels takes {image.placeholders} tokens only")
        found.append(drawn)
    return found


def forget_images(policy: Policy) -> None:
    """Drop encoded and prepared images, so that the next problems are as if not seen before."""
    policy.encoder = Encoder(policy.loaded, policy.config.pixel_cache_mb)
    if policy.cache is not None:
        policy.cache = policy.forward.cache = ByteCache(policy.config.vision_cache_mb)


class PreparedTask(Task):
    """A task whose training problems were made beforehand, so that making them is not timed."""

    name = "prepared"

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__()
        self.problems = problems
        self.inner = make_task("digits-pick")

    def problem(self, split: str, seed: int, index: int) -> Problem:
        """Problem ``index``, beginning again at the end."""
        return self.problems[index % len(self.problems)]

    def judge(self, problem: Problem, tagged: Any) -> Any:
        """As `digits-pick` does."""
        return self.inner.judge(problem, tagged)


def interleaved(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each side, run A B A B ... after one warm-up of each."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for run in range(repeats + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            if run:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; numbers with three digits."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row])
    Console().print(table)


def finish(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the results as the last line, one JSON object, with what they were measured on.

    With ``--record`` they are also put, with all options, behind what the list in that file holds.
    """
    about = {
        "machine": platform.machine(),
        "threads": options.threads,
        "repeats": options.repeats,
        "seed": options.seed,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps({**results, "about": about}), flush=True)
    given = dict(vars(options))
    record: Path | None = given.pop("record", None)
    if record is not None:
        before = json.loads(record.read_text(encoding="utf-8")) if record.exists() else []
        write_json(record, [*before, {**results, "about": about | {"options": given}}])
