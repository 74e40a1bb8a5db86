"""The composite reward of a self-verifying agent (SmartSnap Eq. 3)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from selfverify.core.config import Config


class RewardConfig(Config):
    """The sizes of the reward's components."""

    relevant: float = Field(
        0.2, ge=0, description="R_validity of evidence that has to do with the task (§4.2; §3.4 says 0.5)."
    )
    invalid: float = Field(
        0.0,
        le=0,
        description="R_validity of evidence that has not. §4.2 has 0, §3.4 names a penalty, the authors' "
        "release takes -1.",
    )
    success: float = Field(0.8, ge=0, description="R_complete of a task that is proven to be done (§4.2).")
    format_error: float = Field(
        -1.0, le=0, description="R_format where no proper submission was made; nothing is added to it (§4.2)."
    )
    conciseness: float = Field(
        0.05,
        ge=0,
        description="Lambda: what each chosen exhibit costs (§3.4 gives no number; the release charges 0.1 "
        "beyond three).",
    )
    free_evidence: int = Field(0, ge=0, description="Exhibits that cost nothing (the release: 3).")


@dataclass(frozen=True, slots=True)
class Components:
    """The four terms of Eq. 3.

    Args:
        format: R_format: 0, or the penalty for a conversation without a proper submission.
        validity: R_validity: whether the evidence has to do with the task.
        complete: R_complete: whether it proves that the task is done.
        concise: R_concise: the price of the exhibits that were chosen, 0 or less.
    """

    format: float = 0.0
    validity: float = 0.0
    complete: float = 0.0
    concise: float = 0.0

    @property
    def total(self) -> float:
        """R, their sum."""
        return self.format + self.validity + self.complete + self.concise


def format_error(config: RewardConfig) -> Components:
    """The reward without a proper submission; no judge is asked, and evidence costs nothing."""
    return Components(format=config.format_error)


def composite(valid: bool, success: bool, evidence: int, config: RewardConfig) -> Components:
    """The reward of a proper submission (Eq. 3 with §4.2's numbers): R_validity + R_complete + R_concise.

    R_concise is -conciseness * max(|E| - free_evidence, 0). With ``free_evidence=0`` that is the paper's
    -lambda * |E|, for whose lambda it gives no number; with 0.1 and 3 it is the release's.

    Args:
        valid: Whether the judges found the evidence relevant, also where it proves a failure.
        success: Whether they found that it proves the task done.
        evidence: |E|, the number of exhibits that the agent has chosen.
        config: The sizes.

    Raises:
        ValueError: Evidence that is not relevant cannot prove success.
    """
    if success and not valid:
        raise ValueError("evidence that is not relevant cannot prove success")
    charged = max(evidence - config.free_evidence, 0)
    return Components(
        validity=config.relevant if valid else config.invalid,
        complete=config.success if success else 0.0,
        concise=-config.conciseness * charged if charged else 0.0,
    )
