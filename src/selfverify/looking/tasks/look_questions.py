"""`look`: questions of a data file, answered by looking again with tools."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from selfverify.core.problem import Split
from selfverify.looking.crop_hits import CROP_HIT
from selfverify.looking.look_episode import STEPS
from selfverify.looking.look_settings import VisualConfig
from selfverify.looking.looking_task import VisualToolTask
from selfverify.tasks.base import Metric
from selfverify.tasks.math import Math, MathConfig, MathRowsConfig
from selfverify.tasks.row_task import RowSequence

INSTRUCTION = """\
When you are sure, reply with your reasoning inside <think></think> and nothing but your final answer inside \
<answer></answer>."""


class LookQuestionsConfig(MathRowsConfig):
    """Where the rows are, how they are asked, and how a model looks."""

    instruction: str = Field(
        INSTRUCTION, description="The request for the answer's format, which follows every question."
    )
    look: VisualConfig = Field(
        default_factory=VisualConfig, description="How the model looks, and with which tools."
    )


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
        super().__init__(inner, config.look)
        self.name, self.config = "look", config
        self.metrics = (*inner.metrics, Metric(STEPS, STEPS), Metric(CROP_HIT, CROP_HIT))

    def check_files(self, split: Split) -> None:
        """See `Task`."""
        self.inner.check_files(split)

    def broken(self, split: Split) -> list[str]:
        """See `Task`."""
        return self.inner.broken(split)
