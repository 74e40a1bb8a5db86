"""g6: tokens, channels and images of each demonstration: answers, second turns, conversations, pairs."""

from __future__ import annotations

from typing import Any

from goldens.tree import Tree

ANSWERS = ("digits-pick", "digits-sum", "digits-locate", "digits-shown", "digits-mix", "word-sums")
PROBLEMS = 6
PHONE = {"text": "terse", "prompt": "task", "react": False, "calls": "spaced"}
TALKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "phone-terse": ("phone", "builtin:phone", {**PHONE, "held_out": "templates"}),
    "phone-first-screen": ("phone", "builtin:phone", {**PHONE, "agent": {"first_screen": "given"}}),
    "phone-judging": ("phone-judging", "builtin:phone", {}),
    "digits-far": ("digits-far", "builtin:digits", {}),
}
"""Name: task, model, options of the task."""


def run(tree: Tree) -> None:
    """Let the methods that learn demonstrations make their groups."""
    policies: dict[str, Any] = {}

    def policy(path: str) -> Any:
        if path not in policies:
            policies[path] = tree.get("selfverify.policy.policy:Policy.load")(path, device="cpu")
        return policies[path]

    for name in ANSWERS:
        store(tree, f"sft {name}", policy("builtin:digits"), "sft", {"wrong": 1, "score_gap": 0.4}, name, {})
    for source in ("demonstrated", "checked"):
        options = {"source": source, "rehearsal": {}}
        store(tree, f"turns-sft {source}", policy("builtin:digits"), "turns-sft", options, "digits-pick", {})
    for name, (task, path, options) in TALKS.items():
        shown = {"observed": 0.5, "demonstrations": 2} if "terse" in name else {}
        store(tree, name, policy(path), "conversations-sft", shown, task, options)


def store(
    tree: Tree, name: str, policy: Any, method: str, settings: dict[str, Any], task: str, options: Any
) -> None:
    """Store the groups that a method makes of the first problems of a task, and their credits."""
    import torch

    made_method = tree.get("selfverify.experiments.registry:make_method")(
        method, **tree.options("method", settings)
    )
    made_task = tree.get("selfverify.experiments.registry:make_task")(task, **tree.options("task", options))
    sampling = tree.get("selfverify.core.sampling_settings:SamplingConfig")(
        **tree.options("sampling", {"group_size": 2, "max_new_tokens": 40})
    )
    problems = [made_task.problem("train", 0, index) for index in range(PROBLEMS)]
    made = made_method.rollout(policy, made_task, problems, list(range(PROBLEMS)), sampling)
    for prompt, group in zip(tree.attr(made, "prompts"), tree.attr(made, "groups"), strict=True):
        tree.row(f"{name} {group.problem.id}", prompt=prompt.ids.tolist(), messages=group.problem.messages)
        for number, trajectory in enumerate(group.trajectories):
            tree.row(f"{name} {group.problem.id} {number}", trajectory=trajectory)
        valid = torch.ones(len(group.trajectories), dtype=torch.bool)
        tree.row(f"{name} {group.problem.id} credits", credits=made_method.credit(group, valid))
