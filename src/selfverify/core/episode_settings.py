"""How long conversations may get, in turns, tokens and time."""

from __future__ import annotations

from pydantic import Field

from selfverify.core.settings import Config


class RolloutLimits(Config):
    """Limits of one rollout's conversations."""

    turns: int = Field(30, ge=1, description="How often the policy speaks in one conversation, at most.")
    tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens of a conversation, its prompt included, after which it ends as at the end of the "
        "model's context; null is the context.",
    )
    step_threads: int = Field(
        0,
        ge=0,
        description="Threads on which episodes reply. With 0 they reply one after another in the rollout's "
        "own thread, and no reply has a deadline.",
    )
    step_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Seconds that a reply may take on a thread; a conversation whose reply takes longer ends "
        "with an error. Closing an episode may take as long.",
    )
    rollout_timeout_s: float | None = Field(
        None,
        gt=0,
        description="Seconds after which a rollout asks for no more replies; its open conversations end with "
        "an error.",
    )
    concurrent: int | None = Field(
        None,
        ge=1,
        description="Conversations that a process holds at the same time; the others wait until all of these "
        "are over. For environments of which there are few, such as devices. null is no limit.",
    )
    hung_threads: int = Field(
        16,
        ge=1,
        description="Threads that may hang in replies, in one process and over all its rollouts, before "
        "the run ends. Nobody can end a hung thread; one that comes back is not counted.",
    )


class EpisodeConfig(Config):
    """What a recipe changes in the limits of its task's conversations; null leaves a limit as it is."""

    turns: int | None = Field(None, ge=1, description="How often the policy speaks at most.")
    tokens: int | None = Field(
        None, ge=1, description="Tokens of a conversation, its prompt included, after which it ends."
    )
    step_threads: int | None = Field(
        None,
        ge=0,
        description="Threads on which episodes reply; 0 is none, and no reply has a deadline then.",
    )
    step_timeout_s: float | None = Field(None, gt=0, description="Seconds that a reply may take on a thread.")
    rollout_timeout_s: float | None = Field(
        None, gt=0, description="Seconds after which a rollout asks for no more replies."
    )
    concurrent: int | None = Field(
        None, ge=1, description="Conversations that a process holds at the same time."
    )
    hung_threads: int | None = Field(
        None, ge=1, description="Threads of a process that may hang in replies before a run ends."
    )

    def changed(self, limits: RolloutLimits) -> RolloutLimits:
        """``limits`` with what is set here in place of theirs."""
        return limits.model_copy(update=self.model_dump(exclude_none=True))
