"""Settings of a recipe that fit each by themselves and cannot work together, or change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from selfverify.core.config import EpisodeConfig, SamplingConfig
from selfverify.core.errors import FileError
from selfverify.core.files import naming
from selfverify.core.policy_config import PolicyConfig, is_saved_model, is_served

if TYPE_CHECKING:
    from selfverify.methods.base import Method
    from selfverify.tasks.base import Task


def contradictions(sampling: SamplingConfig, policy: PolicyConfig) -> list[str]:
    """Return a line for every combination of settings that cannot work with any method, with the reason."""
    unknown = _model_path_faults(policy.path)
    return _vllm_faults(policy) if sampling.engine == "vllm" and not unknown else unknown


def episode_faults(episode: EpisodeConfig, method: Method, task: type[Task]) -> list[str]:
    """Return a line for every limit of conversations that would change nothing, with the reason."""
    given = list(episode.model_dump(exclude_none=True))
    names = ", ".join(f"episode.{name}" for name in given)
    if given and method.limits is not None:
        return [f"{names}: conversations of method {method.name} are as long as it says itself"]
    if given and task.limits.turns == 1:
        return [f"{names}: a conversation of task {task.name} is over after the first answer"]
    timed = [f"episode.{name}" for name in ("step_timeout_s", "hung_threads") if name in given]
    if timed and not episode.changed(task.limits).step_threads:
        return [f"{', '.join(timed)}: without threads no reply has a deadline; set episode.step_threads"]
    return []


def score_faults(method: Method, reading: str, asked: bool) -> list[str]:
    """Return a line where scores are taught, or read in a way of their own, that the task does not ask for.

    Args:
        method: May teach scores.
        reading: How evaluations read scores (`EvaluationConfig.score`).
        asked: Whether the task asks for scores (``task.score``).
    """
    if asked:
        return []
    faults = []
    if method.teaches_scores:
        faults.append(f"task.score=false: method {method.name} teaches scores; grpo and adapo go without")
    if reading != "soft":
        faults.append(
            f"evaluation.score={reading}: with task.score=false there are no scores to read; set soft"
        )
    return faults


def _vllm_faults(policy: PolicyConfig) -> list[str]:
    """Return a line for every setting that vLLM, which reads the model's folder itself, would not heed."""
    from selfverify.policy.loading import packed_file

    faults = []
    if packed_file(policy.path):
        faults.append(
            f"sampling.engine=vllm starts from a folder, and policy.path={policy.path} from a GGUF file; "
            f"`selfverify merge {policy.path} FOLDER` unpacks it, and then policy.path=FOLDER"
        )
    for name, value in (("min_pixels", policy.min_pixels), ("max_pixels", policy.max_pixels)):
        if value is not None:
            faults.append(
                f"policy.{name} does not reach vLLM (sampling.engine=vllm); write it into the "
                "preprocessor_config.json of the model's folder (or its processor_config.json, where that "
                "holds the image processor's settings)"
            )
    return faults


def _model_path_faults(path: str) -> list[str]:
    if path.startswith("builtin:") or is_served(path):
        return []
    try:
        with naming(path):
            return _path_faults(path, Path(path).expanduser())
    except FileError as error:
        return [f"policy.path={error}"]


def _path_faults(path: str, folder: Path) -> list[str]:
    if folder.is_file() and folder.suffix == ".gguf":
        return []
    if folder.is_dir():
        if is_saved_model(folder):
            return []
        return [f"policy.path={path}: this folder holds no config.json, so it is not a saved model"]
    # `org/name` may be a model of the Hub; anything that cannot be one has to be a folder.
    if path.startswith((".", "/", "~")) or "\\" in path or path.count("/") > 1:
        return [f"policy.path={path}: there is no such model folder"]
    return []
