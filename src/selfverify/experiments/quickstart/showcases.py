"""What `selfverify quickstart` shows of each paper: which recipe, how it is shortened, what qualifies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfverify.evaluation.headline import Stored

Paper = Literal["adpo", "adapo", "smartsnap", "vts-v"]


@dataclass(frozen=True, slots=True)
class Showcase:
    """One paper's effect in a few minutes on two cores.

    Args:
        title: What is trained.
        recipe: The recipe.
        changes: What it changes of the recipe, so that it takes no more than ten minutes.
        fast: What ``--fast`` changes besides, so that it takes about a minute.
        stored: The rows that qualify the effect, where measuring them would take longer than that.
        notes: What has to be known to read the figures.
    """

    title: str
    recipe: str
    changes: tuple[str, ...] = ()
    fast: tuple[str, ...] = ()
    stored: tuple[Stored, ...] = ()
    notes: tuple[str, ...] = ()


_FIXED = (
    "docs/results/adapo.json, five seeds of 150 steps from the same start, 2,048 problems x 2; "
    "`python -m reproduce.grid adapo-digits-check`, then `python -m reproduce.adapo`"
)
_COLLAPSE = (
    "docs/results/adapo-collapse.json, rewards that pay corrections 4 more than kept answers, one seed of "
    "150 steps from the same start, 2,048 problems x 2; `python -m reproduce.grid adapo-digits-collapse`"
)
_IMITATION = (
    "docs/results/smartsnap.json, likelihood of what was judged a success, three seeds of 200 steps from "
    "the same start, 512 other tasks x 2, SR of what was properly handed in; `python -m reproduce.grid "
    "smartsnap-phone`, then `python -m reproduce.smartsnap_gains`"
)

SHOWCASES: dict[Paper, Showcase] = {
    "adpo": Showcase(
        "ADPO: a policy whose scores mean nothing learns to verify its answers",
        "quickstart",
        fast=(
            "learner.steps=8", "learner.warmup_steps=2", "learner.groups_per_step=8",
            "evaluation.problems=48",
        ),
        notes=("The rule on the text: the written sum is the target, and no question mark stands there.",),
    ),
    "adapo": Showcase(
        "AdaPO: a policy learns to answer, and to correct its answer in a second turn",
        "adapo-digits-check",
        ("evaluation.problems=512",),
        (
            "learner.steps=4", "learner.warmup_steps=1", "learner.groups_per_step=8",
            "learner.micro_batch_groups=8", "evaluation.problems=48",
        ),
        (
            Stored("fixed rewards, acc@t1", 0.480322265625, 0.455078125, _FIXED),
            Stored("fixed rewards, acc@t2", 0.64931640625, 0.605712890625, _FIXED),
            Stored("corrections +4, acc@t1", 0.068603515625, 0.455078125, _COLLAPSE),
        ),
    ),
    "smartsnap": Showcase(
        "SmartSnap: an agent on a phone learns to do its task, and to prove it",
        "smartsnap-phone",
        ("learner.steps=80",),
        ("learner.steps=3", "learner.groups_per_step=4", "evaluation.problems=16", "evaluation.samples=2"),
        (
            Stored("self-imitation, SR", 0.5296223958333334, 0.3623046875, _IMITATION),
            Stored("its exhibits", 4.036613165265304, 3.4491837809373354, _IMITATION),
        ),
    ),
    "vts-v": Showcase(
        "VTS-V: a verifier learns when a model has looked often enough",
        "looking-digits",
        ("evaluation.problems=128",),
        (
            "stopping.problems=48", "stopping.samples=2", "learner.steps=4", "learner.warmup_steps=1",
            "learner.groups_per_step=4", "learner.micro_batch_groups=4", "evaluation.problems=32",
        ),
    ),
}  # fmt: skip
"""What is shown of each paper."""
