"""What has to be the same in all processes of a run, and in a run and the checkpoint it goes on from."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

from selfverify.core import ranks
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.files import differences
from selfverify.learner.checkpoint_files import read_checkpoint
from selfverify.learner.source import RolloutSource
from selfverify.methods.base import Training

logger = logging.getLogger(__name__)


def check_processes(training: Training, source: RolloutSource, step: int) -> None:
    """Check that all processes train the same weights on the same problems with the same settings.

    Raises:
        SelfVerifyError: They do not.
    """
    if ranks.count() == 1:
        return
    try:
        problem = source.problem(0)
        pixels = hashlib.sha256(b"".join(image.tobytes() for image in problem.images)).hexdigest()[:16]
        first: Any = (problem.id, problem.messages, problem.target, pixels)
    except DataError as error:  # all processes will skip this problem
        first = str(error)
    ranks.agree(
        "the processes do not train the same",
        {
            "learner": training.learner.model_dump(),
            "sampling": training.sampling.model_dump(),
            "method": (training.method.name, str(training.method.config)),
            "seed": training.seed,
            "weights": training.policy.whole(training.policy.fingerprint),
            "first problem": first,
            "step": step,
        },
    )


def check_moments(checkpoint: Path, channels: str, masters: bool) -> None:
    """Check that a run steps its weights as the one did that wrote the checkpoint.

    Args:
        checkpoint: Where the run goes on from.
        channels: The run's ``learner.channels``.
        masters: Whether its optimizer keeps float32 masters of the weights.

    Raises:
        ConfigError: It does not, so that moments or masters would be lost.
    """
    progress = read_checkpoint(checkpoint, only="rng")[0]["progress"]
    before = progress.get("channels", "joint")  # older checkpoints have neither entry
    if before != channels:
        raise ConfigError(
            f"{checkpoint}: was written with learner.channels={before}, whose moments do not go with "
            f"learner.channels={channels}; keep it, or start the run anew"
        )
    if progress.get("masters", False) and not masters:
        raise ConfigError(
            f"{checkpoint}: holds float32 masters, which this run would lose; keep policy.dtype, "
            "policy.master_weights and the launcher's wrapper, or start the run anew"
        )


def note_settings(before: dict[str, Any] | None, now: dict[str, Any]) -> None:
    """Say which settings are others than before, of those that decide samples or weights.

    Args:
        before: Those that the checkpoint holds (`rollout_log.settings_of`); None where it is older than they.
        now: The same of the run that goes on from it.
    """
    changed = differences(before, now) if before is not None else []
    if changed:
        message = f"settings are others from here on: {'; '.join(changed)}"
        note(logger, "settings_changed", message, changed=changed)


def note_image_backend(before: str | None, now: str) -> None:
    """Say that images are prepared by another class than before, which changes log-probabilities.

    Args:
        before: The class that prepared them when the checkpoint was written; None where it does not say.
        now: The class that prepares them from here on.
    """
    if before in (None, now):
        return
    message = (
        f"images were prepared by {before} until now, and are by {now} from here on, which changes "
        "log-probabilities (by up to 1.1 nats, as measured). Installing or removing torchvision does "
        "this; put it back to go on as before"
    )
    note(logger, "image_backend_changed", message, before=before, now=now)
