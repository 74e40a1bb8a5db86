"""What a score in the answer costs, against a vote without scores and against a judge (ADPO's Table 7).

    selfverify train adpo-digits
    python benchmarks/best_of_n.py --model runs/adpo-digits/model [--problems 32] [--repeats 3]

`solve` answers one problem of the test split after the other with N = 8, the ways taking turns on each:

    majority   a twin that writes no scores: the same weights, stopped behind </answer>
    best       inline scores, highest score
    soft       the same answers, scores read from the model's probabilities, votes weighted by them
    judge      the twin's answers; the same weights are asked about each in a prompt of its own and write up
               to 32 tokens, as a judge does that thinks before it rates; highest score
    judge-read the same, but nothing is written: the rating's probabilities are read at once

Milliseconds are means over problems of the median over rounds. The last line is one JSON object with them,
the tokens that were written, the share that was answered rightly, and of `best` `latency_vs_majority`,
`tokens_vs_majority`, `latency_vs_judge` and `latency_vs_judge_read`.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from common import arguments, finish, forget_images, parse, show

from selfverify.core.policy_config import PolicyConfig
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.serving.config import ChoosingConfig, DrawsConfig
from selfverify.serving.solve import Solution, solve
from selfverify.verifiers.policy_verifiers import Inline, PolicyJudge, Repeated, Soft

N = 8


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
    policy: Policy, twin: Policy, problems: int, repeats: int, seed: int
) -> dict[str, dict[str, float]]:
    """Milliseconds and written tokens per problem, and the share answered rightly, of each way to answer."""
    task = make_task("digits-pick")
    asked = Repeated(policy, 1, form="ask", max_new_tokens=32)
    majority, best = ChoosingConfig(n=N, strategy="majority"), ChoosingConfig(n=N, strategy="best")
    ways: dict[str, tuple[Policy, Any, ChoosingConfig]] = {
        "majority": (twin, Inline(), majority),
        "best": (policy, Inline(), best),
        "soft": (policy, Soft(policy), ChoosingConfig(n=N)),
        "judge": (twin, asked, best),
        "judge-read": (twin, PolicyJudge(policy, form="ask"), best),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, list[Solution]] = {name: [] for name in ways}
    for run, index in itertools.product(range(repeats + 1), range(problems)):
        if run == 0 and index >= 2:  # the first round warms up
            continue
        problem = task.problem("test", seed, index)
        for name, (writer, verifier, choosing) in ways.items():
            for each in (policy, twin):  # a question that has not been seen before
                forget_images(each)
            start = time.perf_counter()
            drawing = DrawsConfig(top_p=1.0, max_new_tokens=32, seed=run)
            solution = solve(writer, task, problem, verifier, choosing, drawing)
            if run:
                seconds[name].append(time.perf_counter() - start)
                found[name].append(solution)
    return {
        name: {
            "ms": float(1000 * np.median(np.reshape(seconds[name], (repeats, problems)), axis=0).mean()),
            "tokens": float(np.mean([s.tokens for s in found[name]])),
            "accuracy": float(np.mean([bool(s.correct) for s in found[name]])),
        }
        for name in ways
    }


def main() -> None:
    """Measure and print the results."""
    parser = arguments(__doc__)
    parser.add_argument("--model", default="builtin:digits", help="a policy, such as runs/adpo-digits/model")
    parser.add_argument("--problems", type=int, default=32, help="problems that are answered")
    options = parse(parser)
    policy, twin = (kind.load(PolicyConfig(path=options.model, device="cpu")) for kind in (Policy, Silent))
    ways = timed(policy, twin, options.problems, options.repeats, options.seed)
    rows = [[name, w["ms"], w["tokens"], 100 * w["accuracy"]] for name, w in ways.items()]
    show(f"one problem at a time, N = {N}", ["", "ms", "tokens", "accuracy in %"], rows)
    best = ways["best"]
    results = {
        "latency": ways,
        "tokens_vs_majority": best["tokens"] / ways["majority"]["tokens"],
        "latency_vs_majority": best["ms"] / ways["majority"]["ms"],
        "latency_vs_judge": best["ms"] / ways["judge"]["ms"],
        "latency_vs_judge_read": best["ms"] / ways["judge-read"]["ms"],
    }
    finish(results, options)


if __name__ == "__main__":
    main()
