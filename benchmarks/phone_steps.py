"""How many steps a second the phone takes on one core.

    python benchmarks/phone_steps.py

An agent that taps, types, scrolls and goes back at random acts in `PhoneEnvironment`, once for each form of
observation; a step carries a call out and makes the observation with its facts. Tasks are drawn apart.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from selfverify.core.episode import Call
from selfverify_phone.environment import PhoneConfig, PhoneEnvironment
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.templates import TEMPLATES

FORMS: dict[str, dict[str, Any]] = {
    "xml": {},
    "terse": {"text": "terse"},
    "png": {"show": "png", "address": "bounds"},
}
EPISODE = 12
"""Steps after which another task begins."""


def ways(environment: PhoneEnvironment, rng: Random, bounds: bool) -> Call:
    """A call that can be carried out now."""
    phone = environment.phone
    assert phone is not None
    look = phone.look()
    if look.focus:
        return Call("type", {"text_input": "12"})
    open_to = [(widget.id, box) for widget, box in look.placed if widget.id and widget.enabled]
    if rng.random() < 0.2 or not open_to:
        return Call("back")
    if rng.random() < 0.2 and not bounds:
        return Call("swipe", {"direction": "up"})
    id, (x1, y1, x2, y2) = rng.choice(open_to)
    return Call("tap", {"x1": x1, "y1": y1, "x2": x2, "y2": y2} if bounds else {"id": id})


async def measure(form: str, seconds: float, seed: int) -> float:
    """Steps a second, tasks' drawing left out."""
    rng, environment = Random(seed), PhoneEnvironment(PhoneConfig(**FORMS[form]))
    names, steps, spent = list(TEMPLATES), 0, 0.0
    while spent < seconds:
        await environment.reset({"template": rng.choice(names)}, rng.randrange(1000))
        start = time.process_time()
        for _ in range(EPISODE):
            await environment.step(ways(environment, rng, form == "png"))
        spent += time.process_time() - start
        steps += EPISODE
    return steps / spent


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="processor time for each form")
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the best counts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table = Table("observation", "steps/s of processor time")
    for form in FORMS:
        runs = [asyncio.run(measure(form, options.seconds, options.seed + i)) for i in range(options.repeats)]
        table.add_row(form, f"{max(runs):,.0f}")
    start = time.process_time()
    for seed in range(3):
        for name in TEMPLATES:
            make_task(name, 10_000 + options.seed + seed)
    table.add_row("drawing tasks", f"{3 * len(TEMPLATES) / (time.process_time() - start):,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
