"""`builtin:phone`: the policy that `smartsnap-phone` begins from does tasks, and not all of them."""

from __future__ import annotations

from selfverify.core.config import EvaluationConfig
from selfverify.evaluation.evaluate import evaluate
from selfverify.experiments.recipe import load_recipe, recipe_task
from selfverify.policy.policy import Policy


def test_it_does_some_tasks_and_hands_in_more_than_it_needs() -> None:
    recipe = load_recipe("smartsnap-phone")
    config = EvaluationConfig(problems=32, samples=1, temperature=0, split="validation")
    policy = Policy.load(recipe.policy)
    found = evaluate(policy, recipe_task(recipe), config, max_new_tokens=recipe.sampling.max_new_tokens)
    figures = {name: figure["curves"]["pass@1"][-1] for name, figure in found["metrics"].items()}
    # 38 % of 512 samples at T = 1 are done; see docs/results/cold-start.md.
    assert 0.2 <= figures["SR"] <= 0.7
    assert figures["evidence"] > 2.5
    # Nobody asked for a score, so that a proper submission is all of the format.
    assert found["format_rate"] > 0.8
    assert (found["conversations"]["failed_turns"] > 0) == (found["rewards"]["tool_errors"] > 0)
    assert sum(p.numel() for p in policy.model.parameters()) < 2e6
