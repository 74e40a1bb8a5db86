"""docs/smartsnap.md explains every figure that a run of agents writes down, and its examples are settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import yaml
from tests.agents.lamps import KITCHEN, LOOK, OVEN, PROBLEM, Lamps, submit
from tests.agents.test_agent_episode import Asked
from tests.agents.test_agent_rollout import told
from tests.policy.test_tool_templates import HERMES

from selfverify.agents.evidence import Vote
from selfverify.agents.judges.jury import Jury
from selfverify.agents.reward import METRICS
from selfverify.core.trajectory import Group
from selfverify.experiments.recipe import builtin_recipes, load_recipe
from selfverify.experiments.registry import make_method
from selfverify.policy.policy import Policy
from selfverify_phone.task import PhoneAgentsConfig

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "smartsnap.md").read_text(encoding="utf-8")
ROWS = "\n".join(re.findall(r"^\| ([^|]+) \|", PAGE, re.M))
"""The first columns of all tables."""


def test_figures_are_explained(load_policy: Callable[..., Policy]) -> None:
    policy = load_policy()
    policy.tokenizer.chat_template = HERMES
    quoting = Jury(Asked(Vote(True, True, "", (1,), {"quotations": 2, "altered_quotations": 1})))
    turns = (LOOK, KITCHEN, OVEN, submit(3))
    rows = [told(policy, *turns, panel=quoting), told(policy, *turns, make=lambda: Lamps(pixels=True))]
    rows += [told(policy, KITCHEN, submit(1)), told(policy, KITCHEN, "Done.")]
    logged = make_method("smartsnap").metrics([Group(PROBLEM, rows)])
    figures = {name.removeprefix("agent/") for name in logged if name.startswith("agent/")}
    assert figures == {metric.name for metric in METRICS}
    named = set(re.findall(r"[\w-]+", ROWS))
    assert figures <= named
    common = (DOCS / "adpo.md").read_text(encoding="utf-8")
    others = {name for name in logged if not name.startswith("agent/")}
    assert {n for n in others if f"`{n}`" not in ROWS and f"`{n}`" not in common} <= {
        "conversation/stop", "conversation/length", "format/score",
    }  # fmt: skip


def test_the_example_is_a_task() -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    options = yaml.safe_load(block)["task"]
    assert options.pop("name") == "phone"
    assert PhoneAgentsConfig(**options).judge.kind == "model"


def test_recipes_are_those_of_the_paper() -> None:
    """Section 4.2: batch 8, groups of 8, no KL, a constant rate of 1e-6, 180 steps, 30 turns, 3 votes."""
    names = [name for name in builtin_recipes() if name.startswith("smartsnap-")]
    papers = [name for name in names if name.endswith("b")]
    assert len(papers) == 4 and {"smartsnap-phone", "smartsnap-cold-start"} <= {*names}
    for name in papers:
        recipe = load_recipe(name)
        learner, reward = recipe.learner, recipe.task.options["agent"]["reward"]
        assert (learner.groups_per_step, recipe.sampling.group_size, learner.steps) == (8, 8, 180)
        assert (learner.learning_rate, learner.schedule, learner.ratio) == (1e-6, "constant", "trajectory")
        assert recipe.method.options["kl"] == 0.0 and recipe.task.name == "android"
        assert (recipe.episode.turns, recipe.episode.tokens) == (30, 32768)
        assert (reward["relevant"], reward["success"], reward["format_error"]) == (0.2, 0.8, -1.0)
        assert recipe.task.options["react"] == ("llama" not in name)
        assert (recipe.policy.template_options == {"enable_thinking": False}) == ("qwen3" in name)


def test_the_papers_evaluation_has_a_judge_of_its_own() -> None:
    """Section 4.2: it reads the whole trajectory; all else is as in training."""
    for name in ("smartsnap-qwen3-8b", "smartsnap-llama3.1-8b"):
        recipe = load_recipe(name)
        trained, measured = recipe.task.options, recipe.measured_task.options
        assert (trained["agent"]["evidence"]["judged"], measured["agent"]["evidence"]["judged"]) == (
            None,
            "all",
        )
        del trained["agent"]["evidence"]["judged"], measured["agent"]["evidence"]["judged"]
        assert trained == measured


def test_the_cold_start_is_that_of_the_paper() -> None:
    """Sections 4.1 and 4.2: 100,000 turns, batch 32, 5 epochs, 1e-5 with cosine decay, 32K tokens."""
    recipe = load_recipe("smartsnap-cold-start")
    learner, options = recipe.learner, recipe.task.options
    assert (recipe.task.name, options["learn"], options["sample"]) == ("conversations", "turns", 100_000)
    assert (learner.groups_per_step, learner.learning_rate, learner.schedule) == (32, 1e-5, "cosine")
    assert learner.steps == 5 * 100_000 / 32 and recipe.episode.tokens == 32768
