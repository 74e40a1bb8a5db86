"""Rollouts of agents on the phone: kept keys, prefilling every turn anew, and TRL's tool loop.

Groups of 8 conversations about each task. A turn of the policy has exactly 24 tokens and ends with a call,
which the phone carries out; the screen after it has exactly 150. What is said is given, so that all sides
hold the same conversations: they sample as ever, and then the tokens are replaced. The policy is a fresh text
model (Qwen3's classes, four layers of width 160, float32). Its prompts show tools by their names alone: what
stands in a prompt is forwarded once for a group here and many times by the other sides, so that long
descriptions would favour us.

- `kept`: `rollout` as rollouts use it;
- `anew`: the same, but every turn prefills its whole conversation (`RecomputingSession`);
- `TRL`: ``GRPOTrainer._generate_and_score_completions`` with the phone lent by `TrlEnvironments`: resets,
  sampling, calls of tools, rewards; without a reference model, and no update.

Seconds are CPU time of the process, since others may use the machine; the sides take turns, and ratios are
medians over rounds. The clock counts only where calls wait, there 500 ms each; such conversations have few
turns, since TRL makes their calls one after another.

    python benchmarks/agent_rollouts.py                                 # 16 conversations of 10 turns
    python benchmarks/agent_rollouts.py --turns 10 30 --problems 8 2 --slow-problems 8    # an hour
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from agent_world import Actor, Work, scripted_turns, write_policy
from common import finish, show
from trl_agents import trl_agents

from selfverify.core.config import SamplingConfig
from selfverify.policy.encoding import Prompt
from selfverify.policy.kv_sessions import KVSession
from selfverify.policy.recomputing_sessions import RecomputingSession
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import Rollout, rollout

SAID, SCREEN, GROUP = 24, 150, 8


class Forgetful(Actor):
    """A policy that keeps nothing from turn to turn."""

    def threads(
        self, prompts: Sequence[Prompt], sampling: SamplingConfig | None = None, *, seeds: Sequence[int]
    ) -> KVSession:
        """See `Policy.threads`."""
        sampling = sampling or SamplingConfig()
        return RecomputingSession(self.sample, self.logprobs, prompts, seeds, sampling, self.encoder.extended)


@dataclass(frozen=True)
class Setting:
    """One measurement.

    Args:
        turns: Of each conversation.
        problems: Tasks, each with `GROUP` conversations.
        delay_s: Seconds that a call waits.
    """

    turns: int
    problems: int
    delay_s: float = 0.0

    @property
    def size(self) -> int:
        """The number of conversations."""
        return self.problems * GROUP


def our_side(kind: type[Actor], folder: str, setting: Setting) -> Callable[[], int]:
    """A rollout of ours; it returns the tokens of all conversations, prompts apart.

    Raises:
        SystemExit: A conversation came to another end.
    """
    policy = kind.load(folder, device="cpu")
    policy.turns = scripted_turns(policy.tokenizer, setting.turns, SAID)
    work = Work(policy.tokenizer, SCREEN, setting.delay_s)
    threads = setting.size if setting.delay_s else 0
    work.limits = work.limits.model_copy(update={"turns": setting.turns, "step_threads": threads})
    problems = [work.problem("train", 0, index) for index in range(setting.problems)]
    sampling = SamplingConfig(group_size=GROUP, max_new_tokens=SAID)

    def roll_out() -> int:
        policy.begin()
        made: Rollout = rollout(
            PolicySampler(policy, sampling), work, problems, [*range(len(problems))], sampling.group_size
        )
        whole = [trajectory for group in made.groups for trajectory in group.trajectories]
        for trajectory in whole:
            came = trajectory.written, trajectory.rewards.get("tool_calls")
            if came != (SAID * setting.turns, setting.turns):
                raise SystemExit(f"a conversation has {came[0]} tokens of the policy and {came[1]} calls")
        return sum(len(trajectory.tokens) for trajectory in whole)

    return roll_out


def measure(folder: str, setting: Setting, repeats: int) -> dict[str, Any]:
    """Seconds of each side in ``repeats`` rounds, the order turning, and the tokens of all conversations.

    Returns:
        ``{"kept": [[CPU, clock], ...], "anew": ..., "TRL": ..., "tokens": ...}``.
    """
    kept, anew = our_side(Actor, folder, setting), our_side(Forgetful, folder, setting)
    policy = Actor.load(folder, device="cpu")
    tokenizer = copy.deepcopy(policy.tokenizer)
    turns = scripted_turns(tokenizer, setting.turns, SAID)
    work = Work(tokenizer, SCREEN, setting.delay_s)
    problems = [work.problem("train", 0, index) for index in range(setting.problems)]
    found: dict[str, Any] = {"kept": [], "anew": [], "TRL": []}
    with trl_agents(folder, tokenizer, problems, GROUP, turns, SCREEN, setting.delay_s) as trl:
        sides: dict[str, Callable[[], Any]] = {"kept": kept, "anew": anew, "TRL": trl.roll_out}
        for number in range(repeats):
            for name in [*sides][:: -1 if number % 2 else 1]:
                cpu, clock = time.process_time(), time.perf_counter()
                made = sides[name]()
                found[name].append([time.process_time() - cpu, time.perf_counter() - clock])
                if name == "kept":
                    found["tokens"] = made
    return found


def compare(found: dict[str, Any], clock: int) -> tuple[list[float], float, float]:
    """Median seconds of each side, and how many times faster ``kept`` is than the others.

    Args:
        found: From `measure`.
        clock: 0 for CPU time, 1 for the clock.
    """
    seconds = [statistics.median(row[clock] for row in found[side]) for side in ("kept", "anew", "TRL")]
    kept = [row[clock] for row in found["kept"]]
    anew, trl = (
        statistics.median(row[clock] / own for row, own in zip(found[side], kept, strict=True))
        for side in ("anew", "TRL")
    )
    return seconds, anew, trl


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table of each kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, nargs="+", default=[10], help="turns of each conversation")
    parser.add_argument("--problems", type=int, nargs="+", default=[2], help="tasks, for each of --turns")
    parser.add_argument("--slow-turns", type=int, default=3, help="turns where calls wait; 0 leaves it out")
    parser.add_argument("--slow-problems", type=int, default=2, help="tasks where calls wait")
    parser.add_argument("--delay", type=float, default=0.5, help="seconds that a call waits there")
    parser.add_argument("--hidden", type=int, default=160, help="width of the policy")
    parser.add_argument("--layers", type=int, default=4, help="depth of the policy")
    parser.add_argument("--repeats", type=int, default=1, help="rounds")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if len(options.turns) != len(options.problems):
        raise SystemExit("give --problems for each of --turns")
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    results: dict[str, Any] = {}
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as made:
        context = 2 * (SAID + SCREEN) * (2 + max(*options.turns, options.slow_turns))
        folder = str(write_policy(Path(made), options.seed, options.hidden, options.layers, context))
        measure(folder, Setting(2, 1), 1)  # what is only done once
        for turns, problems in zip(options.turns, options.problems, strict=True):
            setting = Setting(turns, problems)
            found = measure(folder, setting, options.repeats)
            seconds, anew, trl = compare(found, 0)
            rates = setting.size / seconds[0], found["tokens"] / seconds[0]
            rows.append([turns, setting.size, *seconds, *rates, anew, trl])
            results |= {f"faster_than_prefill_{turns}": anew, f"faster_than_trl_{turns}": trl}
            results[f"turns_{turns}"] = {"conversations": setting.size, **found}
        columns = ["turns", "conversations", "kept", "anew", "TRL", "episodes/s", "tokens/s"]
        columns += ["anew / kept", "TRL / kept"]
        title = f"Turns of {SAID} tokens, screens of {SCREEN}; CPU seconds; rates of `kept`"
        show(title, columns, rows)
        if options.slow_turns:
            setting = Setting(options.slow_turns, options.slow_problems, options.delay)
            found = measure(folder, setting, options.repeats)
            seconds, anew, trl = compare(found, 1)
            row = [setting.turns, setting.size, *seconds, setting.size / seconds[0], anew, trl]
            results |= {"slow_faster_than_prefill": anew, "slow_faster_than_trl": trl}
            results["slow"] = {"conversations": setting.size, "delay_s": options.delay, **found}
            columns = [*columns[:6], "anew / kept", "TRL / kept"]
            show(f"Calls of {1000 * options.delay:g} ms; seconds by the clock", columns, [row])
    finish(results, options)


if __name__ == "__main__":
    main()
