"""Tasks whose questions are answered by looking again with tools, and the tools that settings ask for.

`look` asks the questions of a data file. `marked` asks them about images with numbers on their parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from selfverify.core.config import RolloutLimits
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.tasks.base import Floats, Metric, Space, Task, Verdict
from selfverify.tasks.math import Math, MathConfig, MathRowsConfig, reminder
from selfverify.tasks.row_task import RowSequence
from selfverify.visual.config import ANSWER_NOW, ToolModelsConfig, VisualConfig
from selfverify.visual.episode import STEPS, VisualEpisode, VisualTask, with_tools
from selfverify.visual.tools.base import Terminate, Toolbox, VisualTool, missing_model
from selfverify.visual.tools.crop import Crop, Overlay, ZoomIn, marked
from selfverify.visual.tools.detect import GroundingTool, Similarity, VisualSearch, ZeroShotDetector
from selfverify.visual.tools.gallery import CROP_HIT, space_named
from selfverify.visual.tools.read import Depth, ImageCaptioner, Ocr
from selfverify.visual.tools.segment import GrabCut, ImageSegment, Sam
from selfverify.visual.tools.server import RemoteTool, behind_server
from selfverify.visual.verifier import StoppingVerifier

MODELS = ("detector", "depth_model", "segment_model", "similarity_model", "caption_model")
"""The settings that name models of tools."""


def all_tools(models: ToolModelsConfig, seconds: float = 60.0) -> list[VisualTool[Any]]:
    """The paper's ten tools and `terminate`, also those that are not available here.

    Args:
        models: The models behind them, or the server that has them.
        seconds: How long such a server may take.
    """
    if models.tool_server is not None:
        here = models.model_copy(update={"tool_server": None})
        return behind_server(all_tools(here), models.tool_server, 0.95 * seconds)
    device = models.tool_device
    detector = ZeroShotDetector(models.detector, device=device)
    sam = models.segment_model
    return [
        Crop(),
        ZoomIn(),
        GroundingTool(detector),
        VisualSearch(detector),
        Depth(models.depth_model, device),
        Ocr(),
        ImageSegment(GrabCut() if sam is None else Sam(sam, device)),
        ImageCaptioner(models.caption_model, device),
        Similarity(models.similarity_model, device),
        Overlay(),
        Terminate(),
    ]


def make_toolbox(settings: VisualConfig, known: Sequence[VisualTool[Any]] | None = None) -> Toolbox:
    """The tools that were asked for; all of them where none is named.

    Args:
        settings: Which tools.
        known: The tools to choose from, by default `all_tools`; their models are loaded once.

    Raises:
        ConfigError: There is no tool of a name, one that was named is not available here, a model that was
            named is not there, or the server of tools cannot be asked.
    """
    tools = {
        tool.name: tool for tool in (all_tools(settings, settings.tool_seconds) if known is None else known)
    }
    if unknown := sorted(set(settings.tools) - tools.keys()):
        raise ConfigError(f"there is no tool {unknown[0]!r} for looking; there are {', '.join(tools)}")
    servers = {tool.server for tool in tools.values() if isinstance(tool, RemoteTool)}
    if unreachable := "; ".join(filter(None, (server.unreachable() for server in servers))):
        raise ConfigError(f"{unreachable}; start one with `selfverify visual serve`, or name none")
    for field in MODELS:
        named = getattr(settings, field)
        if named is not None and (why := missing_model(named, field)):
            raise ConfigError(why)
    for name in settings.tools:
        if why := tools[name].missing():
            raise ConfigError(f"the tool {name} is not available here: {why}")
    chosen = [tools[name] for name in settings.tools] or [*tools.values()]
    if settings.terminate == "refuse":
        chosen = [tool for tool in chosen if not isinstance(tool, Terminate)]
    return Toolbox(chosen, settings.tool_seconds)


class VisualToolTask(VisualTask):
    """Another task's problems, judged as that task judges, each a conversation with visual tools.

    Args:
        inner: Makes problems and judges answers.
        settings: How a model looks.

    Raises:
        ConfigError: A tool or a rule that was asked for does not exist or is not available here; or images
            of other problems are to be shown, which are not known here.
    """

    def __init__(self, inner: Task, settings: VisualConfig) -> None:
        super().__init__()
        _check_results(settings)
        self.inner, self.settings = inner, settings
        self.name, self.summary, self.kind = f"looking/{inner.name}", inner.name, inner.kind
        self.tags, self.metrics, self.judges = inner.tags, inner.metrics, inner.judges
        self.limits = RolloutLimits(turns=settings.max_steps + 1)
        self._tools = all_tools(settings, settings.tool_seconds)
        self.toolbox, self.stopping = make_toolbox(settings, self._tools), StoppingVerifier(settings)
        named = settings.coordinates
        self._space = space_named("thousandths" if named == "family" else named)

    def set_coordinate_space(self, space: Space) -> None:
        self.inner.set_coordinate_space(space)
        if self.settings.coordinates == "family":
            self._space = space

    def set_policy(self, policy: object) -> None:
        self.inner.set_policy(policy)
        super().set_policy(policy)

    def looking_by(self, changes: Mapping[str, Any]) -> VisualToolTask:
        changed = super().looking_by(changes)
        _check_results(changed.settings)
        models = set(ToolModelsConfig.model_fields)
        if changed.settings.model_dump(include=models) != self.settings.model_dump(include=models):
            changed._tools = all_tools(changed.settings, changed.settings.tool_seconds)
        changed.toolbox = make_toolbox(changed.settings, changed._tools)
        return changed

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        return self.asked(self.inner.problem(split, seed, index))

    def asked(self, problem: Problem) -> Problem:
        """A problem of the inner task with the tools described.

        Raises:
            ConfigError: It has tools of its own.
        """
        if problem.tools:
            raise ConfigError(f"problem {problem.id} has tools of its own; it cannot be given others")
        return with_tools(problem, self.toolbox, self._space, self.settings.calls)

    def look(self, problem: Problem) -> VisualEpisode:
        """Begin to look at a problem that `asked` has returned."""
        return VisualEpisode(self, problem, self.settings, self._space, self.stopping.rule)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        return self.inner.judge(problem, tagged)

    def prepare(self, answers: Sequence[tuple[Problem, Tagged]]) -> None:
        self.inner.prepare(answers)

    def unreadable(self, problem: Problem) -> Verdict:
        return self.inner.unreadable(problem)

    def answer_parts(self, problem: Problem, answers: Floats) -> dict[str, Floats]:
        return self.inner.answer_parts(problem, answers)

    def check_files(self, split: Split) -> None:
        self.inner.check_files(split)

    def broken(self, split: Split) -> list[str]:
        return self.inner.broken(split)

    def count(self, split: Split) -> int | None:
        return self.inner.count(split)

    def counters(self) -> dict[str, float]:
        return self.inner.counters()


def _check_results(settings: VisualConfig) -> None:
    if settings.results == "swapped":
        raise ConfigError("results: swapped needs a task that makes its problems itself, such as digits-far")


INSTRUCTION = """\
When you are sure, reply with your reasoning inside <think></think> and nothing but your final answer inside \
<answer></answer>."""


class LookQuestionsConfig(MathRowsConfig):
    """Where the rows are, how they are asked, and how a model looks."""

    instruction: str = INSTRUCTION
    """The request for the answer's format, which follows every question."""

    look: VisualConfig = Field(default_factory=VisualConfig)
    """How the model looks, and with which tools."""


class LookQuestions(VisualToolTask):
    """The questions of task `math`, which reads benchmarks' files, judged as there.

    Beside accuracy, evaluations have the mean number of ``steps`` and, where a file says where the things are
    that it asks about, the ``crop_hit`` rate.

    Args:
        config: The task's options, the data files among them.
        rows: Rows in memory by split, instead of files.
    """

    name = "look"
    summary = "questions of a data file, answered by looking again with visual tools"
    config_class = LookQuestionsConfig
    config: LookQuestionsConfig

    def __init__(
        self, config: LookQuestionsConfig | None = None, rows: Mapping[Split, RowSequence] | None = None
    ) -> None:
        config = config or LookQuestionsConfig()
        asked = {name: value for name, value in config if name != "look"}
        inner = Math(MathConfig(score=False, **asked), rows)
        look = config.look
        if look.answer_now == ANSWER_NOW:  # which alone would lose the form
            look = look.model_copy(update={"answer_now": f"{ANSWER_NOW} {reminder(inner.tags)}"})
        super().__init__(inner, look)
        self.name, self.config = "look", config
        self.metrics = (*inner.metrics, Metric(STEPS, STEPS), Metric(CROP_HIT, CROP_HIT))


MARKED = "The numbers on an image name its parts; you may refer to them. "


class MarkedQuestionsConfig(MathConfig):
    """Where the rows are, and how they are asked."""

    score: bool = False
    """Ask for a score behind the answer."""

    instruction: str | None = MARKED + INSTRUCTION
    """What follows every question: the numbers, and the answer's format."""


class MarkedQuestions(Math):
    """The questions of task `math` with numbers drawn on their images (Set-of-Mark prompting).

    This is a baseline of looking, without tools.

    Args:
        config: The task's options, the data files among them.
        rows: Rows in memory by split, instead of files.
    """

    name = "marked"
    summary = "questions of a data file, with numbers on the parts of images (Set-of-Mark)"
    config_class = MarkedQuestionsConfig
    config: MarkedQuestionsConfig

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        problem = super().problem(split, seed, index)
        return replace(problem, images=[marked(image) for image in problem.images])
