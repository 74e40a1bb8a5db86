"""What supervision makes of a policy as the judge of its own answers, which ADPO's scores are held against.

    selfverify train cold-start-digits-boxes method.score_gap=0 method.score_noise=0.45 \\
        method.score_weight=1 name=boxes-blind
    python -m reproduce.supervised_judge runs/boxes-blind judge.json --set 'task.noise=[0.4,0.7]'

The judge is the policy itself, taught on answers of its start whether each is right, at the place where it
writes its score. Beside it, on the same held-out answers: a linear reading of the start's state there, a bag
of the answer's words, and the answer's log-prob.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from reproduce.scripts import Overrides, script
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import write_json
from selfverify.core.problem import Split
from selfverify.evaluation.statistics import within_problem_auc
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import derived_seed
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.scores import score_tree
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import rollout
from selfverify.rollouts.score_reading import answer_logprob, answer_segment, before_score
from selfverify.selection.rules import Floats
from selfverify.tasks.base import Task

GROUPS = 16
"""The number of problems of a step, and of a batch that is read."""


@dataclass
class Answers:
    """Answers to some problems: those with a readable score, which alone have a place to judge at."""

    prompts: list[Prompt]
    prefixes: list[list[list[int]]]
    right: list[bool]
    texts: list[str]
    logprobs: list[float]
    problems: list[int]

    def states(self, policy: Policy) -> Tensor:
        """A policy's states ``[N, H]`` where each score begins."""
        hidden = policy.hidden_states(
            self.prompts, policy.stack([[[*prefix, 0] for prefix in row] for row in self.prefixes])
        )
        places = [(b, g, len(prefix)) for b, row in enumerate(self.prefixes) for g, prefix in enumerate(row)]
        found: Tensor = hidden[torch.tensor(places).unbind(-1)]
        return found


def answered(writer: Policy, task: Task, recipe: Recipe, split: Split, first: int) -> Answers:
    """Sample G answers to each of the next problems of a split.

    Raises:
        DataError: None of them has a readable score.
    """
    problems = [task.problem(split, recipe.seed, first + n) for n in range(GROUPS)]
    seeds = [derived_seed(recipe.seed, first + n) for n in range(GROUPS)]
    made = rollout(PolicySampler(writer, recipe.sampling), task, problems, seeds, recipe.sampling.group_size)
    found = Answers(list(made.prompts), [[] for _ in problems], [], [], [], [])
    for b, group in enumerate(made.groups):
        for trajectory in group.trajectories:
            if (prefix := before_score(trajectory)) is None:
                continue
            found.prefixes[b].append(prefix)
            found.right.append(trajectory.rewards.get("correct", 0.0) > 0)
            found.texts.append(answer_segment(trajectory).text)
            found.logprobs.append(answer_logprob(trajectory) or 0.0)
            found.problems.append(first + b)
    if not found.right:
        raise DataError(
            f"no answer to {problems[0].id} to {problems[-1].id} has a readable score to judge at"
        )
    return found


def log_odds(policy: Policy, states: Tensor) -> Tensor:
    """``[N]`` log-odds of a score that begins with 1 against one that begins with 0.

    Raises:
        ConfigError: The tokenizer writes the beginning of scores otherwise.
    """
    tokens = {
        policy.tokenizer.decode([token]).strip(): token for token in score_tree(policy.tokenizer).children
    }
    if set(tokens) != {"0", "1"}:
        raise ConfigError("this tokenizer does not begin a score with the token 0 or 1")
    logits: Tensor = policy.head.logits(states)
    return (logits[:, tokens["1"]] - logits[:, tokens["0"]]).float()


def judged(
    start: Annotated[str, typer.Argument(help="The policy that answers, and becomes the judge.")],
    output: Annotated[Path, typer.Argument(help="A file for the figures, as JSON.")],
    recipe: Annotated[str, typer.Option(help="The recipe that has the task, if START is no run.")] = "",
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="Steps of supervision, each of 16 problems x G.")] = 600,
    rate: Annotated[float, typer.Option(help="The learning rate, which falls to 0.")] = 5e-4,
    problems: Annotated[int, typer.Option(help="Held-out problems of the test split.")] = 512,
    fitted: Annotated[
        int, typer.Option(help="Validation problems that simple readings are fitted to.")
    ] = 1024,
) -> None:
    """Teach a policy to judge its own answers, and print what its score, and simple readings, are worth."""
    own = Path(start) / "recipe.yaml"
    read = load_recipe(recipe or str(own), [*(overrides or [])])
    task = make_task(read.task.name, **read.task.options)
    torch.manual_seed(read.seed)
    folder = Path(start) / "model" if own.is_file() else start
    judge = Policy.load(folder, device="cpu", dtype=read.policy.dtype)
    writer = judge.frozen_copy()
    trained = [p for p in judge.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for step in range(steps):
        answers = answered(writer, task, read, "train", step * GROUPS)
        right = torch.tensor(answers.right, dtype=torch.float32)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            log_odds(judge, answers.states(judge)), right
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        falling.step()
        if (step + 1) % 50 == 0:
            typer.echo(f"step {step + 1}: loss {loss.item():.3f}, right {right.mean():.3f}")
    readings = readings_of(judge, writer, task, read, problems, fitted)
    write_json(output, {"steps": steps, "rate": rate, "problems": problems, "readings": readings})
    for name, figures in readings.items():
        within, margin = figures["within_problem_auc"], figures["margin"]
        typer.echo(f"{name}: {within:.3f} ± {margin:.3f} within problems, {figures['auc']:.3f} over all")


def readings_of(
    judge: Policy, writer: Policy, task: Task, recipe: Recipe, problems: int, fitted: int
) -> dict[str, dict[str, float]]:
    """What a taught judge and simple readings are worth on held-out answers."""
    wanted: list[tuple[Split, int]] = [("validation", fitted), ("test", problems)]
    pool, test = (
        [answered(writer, task, recipe, split, first) for first in range(0, count, GROUPS)]
        for split, count in wanted
    )
    with torch.no_grad():
        taught = torch.cat([log_odds(judge, batch.states(judge)) for batch in test]).numpy()
        known, new = (torch.cat([batch.states(writer) for batch in of]) for of in (pool, test))
        began = log_odds(writer, new).numpy()
    labels = [right for batch in pool for right in batch.right]
    linear = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000)).fit(
        known.float().numpy(), labels
    )
    words = make_pipeline(
        CountVectorizer(token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2)), LogisticRegression(max_iter=2000)
    ).fit([text for batch in pool for text in batch.texts], labels)
    scores = {
        "supervised judge": taught,
        "the start's own score": began,
        "linear reading of the start": linear.decision_function(new.float().numpy()),
        "bag of words": words.decision_function([text for batch in test for text in batch.texts]),
        "log-prob": np.array([value for batch in test for value in batch.logprobs]),
    }
    rows = np.array([problem for batch in test for problem in batch.problems])
    right = np.array([value for batch in test for value in batch.right])
    return {name: worth(score, right, rows) for name, score in scores.items()}


def worth(score: Floats, right: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> dict[str, float]:
    """A score's AUC within problems, half of its 95 % interval over them, and its AUC over all answers."""
    each = np.concatenate(
        [within_problem_auc(score[rows == row][None], right[rows == row][None]) for row in np.unique(rows)]
    )
    each = each[~np.isnan(each)]
    return {
        "within_problem_auc": float(each.mean()),
        "margin": float(1.96 * each.std(ddof=1) / len(each) ** 0.5),
        "auc": float(roc_auc_score(right, score)),
        "mixed_problems": len(each),
    }


app = script(judged)

if __name__ == "__main__":
    app()
