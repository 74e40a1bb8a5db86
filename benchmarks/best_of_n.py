"""Best of N on the trained digits policy: how right each strategy is, and what each costs per problem.

    selfverify train adpo-digits
    python benchmarks/best_of_n.py --model runs/adpo-digits/model [--problems 512 --samples 16 --repeats 3]

Accuracy: every strategy at every N, averaged over subsets of the samples of held-out problems. What has to be
decided (which strategy is the default, when adaptive sampling stops) is decided on the validation split and
counted on the test split. Samples are stored under --output and used again.

Latency, at N = 8, is `solve`'s on one problem after the other, strategies taking turns on each:

    majority   a twin that writes no scores: the same weights, stopped behind </answer>
    best       inline scores, highest score
    soft       the same answers, scores read from the model's probabilities, votes weighted by them
    adaptive   soft, and no more samples than the chosen rule wants
    judge      the twin's answers; the same weights are asked about each in a prompt of its own and write up
               to 32 tokens, as a judge does that thinks before it rates; highest score
    judge-read the same, but nothing is written: the rating's probabilities are read at once

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import finish, forget_images, parse, show

from selfverify.core.config import EvaluationConfig
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.trajectory import Group
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.metrics import SampleTable, accuracy
from selfverify.evaluation.samples import read_samples
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.selection.calibration import Calibration, fit_calibration
from selfverify.selection.rules import Candidates
from selfverify.selection.stopping import leader_confidence
from selfverify.selection.strategies import STRATEGIES, expected_correctness
from selfverify.serving.best_of import Choosing
from selfverify.serving.config import DrawsConfig
from selfverify.serving.solve import Solution, solve
from selfverify.verifiers.base import Scores, Verifier
from selfverify.verifiers.policy_verifiers import Inline, PolicyJudge, Repeated, Soft

TASK = "digits-pick"
SIZES = (1, 2, 4, 8, 12, 16)
CHOICES = ("majority", "best", "best-of-majority", "weighted")
DEFAULT = "weighted"
N = 8
MOST_SAMPLES = 0.58
"""Wanted on validation, so that the test split stays at 60 % or less."""
CONFIDENCES = tuple(c / 100 for c in range(70, 100, 2))
NEVER = 2.0
"""No confidence reaches it."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Another verifier's scores as probabilities: what the stopping rule ``posterior`` takes them for.

    ``calibration`` is one of single scores, as `fit_calibration` makes it from all samples, not one of
    chosen answers, as ``selfverify eval --calibrate`` does.
    """

    verifier: Verifier
    calibration: Calibration

    @property
    def name(self) -> str:
        """``calibrated:`` and the other's name."""
        return f"calibrated:{self.verifier.name}"

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `selfverify.verifiers.base.Verifier`."""
        return [
            [None if score is None else float(self.calibration(score)) for score in row]
            for row in self.verifier.score(groups)
        ]


def options() -> argparse.ArgumentParser:
    """This benchmark's own options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a trained policy, such as runs/adpo-digits/model")
    parser.add_argument("--output", type=Path, default=Path("runs/best_of_n"), help="where samples are kept")
    parser.add_argument("--problems", type=int, default=512, help="problems of each split")
    parser.add_argument("--samples", type=int, default=16, help="samples of each problem")
    parser.add_argument("--timed", type=int, default=32, help="problems whose answering is timed")
    parser.add_argument("--repeats", type=int, default=3, help="rounds over the timed problems")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch threads")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(quick=False)
    return parser


def sample(policy: Policy, split: Any, args: argparse.Namespace) -> SampleTable:
    """Stored samples of a split; only missing ones are drawn."""
    store = args.output / f"{split}.jsonl"
    config = EvaluationConfig(problems=args.problems, samples=args.samples, split=split)
    evaluate(policy, make_task(TASK), config, store, describe={"model": args.model}, max_new_tokens=32)
    return SampleTable.from_samples(read_samples(store)[1])


def accuracies(table: SampleTable, score: str) -> dict[str, dict[int, float]]:
    """Accuracy of every strategy at every N."""
    sizes = [n for n in SIZES if n <= table.correct.shape[1]]
    found: dict[str, dict[int, float]] = {}
    for name in (*CHOICES, "oracle"):
        rows = {n: accuracy(table, name, n, score) for n in sizes}
        found[name] = {n: float(row.mean()) for n, row in rows.items() if row is not None}
    return found


def stopped_early(
    table: SampleTable, calibration: Calibration, budget: int, orders: int, seed: int
) -> dict[float, tuple[float, float]]:
    """By confidence at which to stop: accuracy, and the share of the budget that was drawn.

    Each problem's samples are drawn in ``orders`` random orders. `NEVER` draws the whole budget.
    """
    rng = np.random.default_rng(seed)
    score = calibration(table.scores["soft"])
    count = len(table.problems)
    right, sure = np.zeros((2, budget + 1, orders, count))
    for turn in range(orders):
        order = rng.random(table.correct.shape).argsort(axis=1)[:, :budget]
        keys, scores, correct = (
            np.take_along_axis(array, order, axis=1) for array in (table.keys, score, table.correct)
        )
        for n in range(2, budget + 1):
            seen = Candidates(keys[:, :n], scores[:, :n], None, correct[:, :n])
            right[n, turn] = expected_correctness(STRATEGIES[DEFAULT], seen)
            each = (Candidates(k[:n], s[:n]) for k, s in zip(keys, scores, strict=True))
            sure[n, turn] = [leader_confidence(one, "posterior", DEFAULT) for one in each]
    found = {}
    for confidence in (*CONFIDENCES, NEVER):
        stop = np.full((orders, count), budget)
        for n in range(budget - 1, 1, -1):
            stop[sure[n] >= confidence] = n
        reached = np.take_along_axis(right, stop[None], axis=0)
        found[confidence] = float(reached.mean()), float(stop.mean() / budget)
    return found


def adaptive(
    held_out: SampleTable, test: SampleTable, calibration: Calibration, budget: int, seed: int
) -> dict[str, float]:
    """Choose the confidence on validation, count on test."""
    chosen = stopped_early(held_out, calibration, budget, 4, seed)
    confidence = max((c for c in CONFIDENCES if chosen[c][1] <= MOST_SAMPLES), key=lambda c: chosen[c][0])
    counted = stopped_early(test, calibration, budget, 4, seed)
    rows = [["all" if c == NEVER else c, 100 * a, 100 * s] for c, (a, s) in counted.items()]
    show(f"adaptive, at most {budget} samples, test", ["stop at", "accuracy in %", "samples in %"], rows)
    accuracy, share = counted[confidence]
    return {
        "confidence": confidence,
        "accuracy": accuracy,
        "accuracy_loss": counted[NEVER][0] - accuracy,
        "samples_share": share,
    }


class Silent(Policy):
    """The twin that writes no scores: its answer ends where a score would begin."""

    @property
    def answer_end(self) -> int:
        """``</answer>``, one token of this policy's vocabulary."""
        [token] = self.tokenizer("</answer>", add_special_tokens=False)["input_ids"]
        return int(token)

    @property
    def stop_tokens(self) -> set[int]:
        """``</answer>`` besides the usual ones."""
        return {*super().stop_tokens, self.answer_end}

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """As always; behind ``</answer>``, which has to be read, stands the end token, which is not."""
        groups = super().sample(*args, **kwargs)
        for each in itertools.chain.from_iterable(groups):
            if each.tokens[-1] == self.answer_end:
                each.tokens.append(self.tokenizer.eos_token_id)
                each.logprobs.append(0.0)
        return groups


def timed(
    policy: Policy, twin: Policy, adaptive: Choosing, calibration: Calibration, args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Milliseconds and written tokens per problem, and the share answered rightly, of each way to answer."""
    task = make_task(TASK)
    asked = Repeated(policy, 1, form="ask", max_new_tokens=32)
    majority, best = Choosing(n=N, strategy="majority"), Choosing(n=N, strategy="best")
    ways: dict[str, tuple[Policy, Any, Choosing]] = {
        "majority": (twin, Inline(), majority),
        "best": (policy, Inline(), best),
        "soft": (policy, Soft(policy), Choosing(n=N)),
        "adaptive": (policy, Calibrated(Soft(policy), calibration), adaptive),
        "judge": (twin, asked, best),
        "judge-read": (twin, PolicyJudge(policy, form="ask"), best),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, list[Solution]] = {name: [] for name in ways}
    for run, index in itertools.product(range(args.repeats + 1), range(args.timed)):
        if run == 0 and index >= 2:  # the first round warms up
            continue
        problem = task.problem("test", args.seed, index)
        for name, (writer, verifier, choosing) in ways.items():
            for each in (policy, twin):  # a question that has not been seen before
                forget_images(each)
            start = time.perf_counter()
            drawing = DrawsConfig(top_p=1.0, max_new_tokens=32, seed=run)
            solution = solve(writer, task, problem, verifier, choosing, drawing)
            if run:
                seconds[name].append(time.perf_counter() - start)
                found[name].append(solution)
    milliseconds = {
        name: 1000 * np.median(np.reshape(times, (args.repeats, args.timed)), axis=0).mean()
        for name, times in seconds.items()
    }
    return {
        name: {
            "ms": float(milliseconds[name]),
            "tokens": float(np.mean([s.tokens for s in found[name]])),
            "samples": float(np.mean([len(s.candidates) for s in found[name]])),
            "accuracy": float(np.mean([bool(s.correct) for s in found[name]])),
        }
        for name in ways
    }


def worst_gap(found: dict[str, dict[int, float]], name: str) -> float:
    """How far ``name`` is below the better of majority and best, at the N where it is farthest."""
    return max(
        max(found["majority"][n], found["best"][n]) - value for n, value in found[name].items() if n > 1
    )


def main() -> None:
    """Sample, choose on validation, count on test, time."""
    args = parse(options())
    policy = Policy.load(PolicyConfig(path=args.model, device="cpu"))
    held_out, test = sample(policy, "validation", args), sample(policy, "test", args)

    results: dict[str, Any] = {}
    for score in ("soft", "sampled"):
        results[f"accuracy_{score}"] = found = accuracies(test, score)
        rows = [[name, *(100 * value for value in by_n.values())] for name, by_n in found.items()]
        show(f"accuracy in %, scores: {score}", ["strategy", *map(str, found["majority"])], rows)
    on_validation = accuracies(held_out, "soft")
    results["default_on_validation"] = max(CHOICES, key=lambda name: sum(on_validation[name].values()))
    results["default_worst_gap"] = {
        "validation": worst_gap(on_validation, DEFAULT),
        "test": worst_gap(results["accuracy_soft"], DEFAULT),
    }

    calibration = fit_calibration(held_out.scores["soft"], held_out.correct)
    results["adaptive"] = {n: adaptive(held_out, test, calibration, n, args.seed) for n in (N, args.samples)}
    widest = results["adaptive"][args.samples]
    results |= {f"adaptive_{name}": widest[name] for name in ("accuracy_loss", "samples_share")}

    confidence = results["adaptive"][N]["confidence"]
    stopping = Choosing(n=N, stop="posterior", confidence=confidence)
    twin = Silent.load(PolicyConfig(path=args.model, device="cpu"))
    ways = timed(policy, twin, stopping, calibration, args)
    show(
        f"one problem at a time, N = {N}",
        ["", "ms", "tokens", "samples", "accuracy in %"],
        [[name, w["ms"], w["tokens"], w["samples"], 100 * w["accuracy"]] for name, w in ways.items()],
    )
    results |= {
        "latency": ways,
        "tokens_vs_majority": ways["best"]["tokens"] / ways["majority"]["tokens"],
        "latency_vs_majority": ways["best"]["ms"] / ways["majority"]["ms"],
        "latency_vs_judge": ways["best"]["ms"] / ways["judge"]["ms"],
        "latency_vs_judge_read": ways["best"]["ms"] / ways["judge-read"]["ms"],
    }
    finish(results, args)


if __name__ == "__main__":
    main()
