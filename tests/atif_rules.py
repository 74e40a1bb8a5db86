"""The rules of ATIF 1.8, after Harbor's documentation: what a file must hold, and what it must not."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Source(Rule):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    path: str


class Text(Rule):
    type: Literal["text"]
    text: str


class Picture(Rule):
    type: Literal["image"]
    source: Source


Words = str | list[Annotated[Text | Picture, Field(discriminator="type")]]
Extra = dict[str, Any] | None


class Call(Rule):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: Extra = None


class Result(Rule):
    source_call_id: str | None = None
    content: Words | None = None
    extra: Extra = None


class Observation(Rule):
    results: list[Result]


class Metrics(Rule):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: Extra = None


class Step(Rule):
    step_id: int = Field(ge=1)
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: Words
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = Field(None, ge=0)
    extra: Extra = None

    @model_validator(mode="after")
    def _only_agents_act(self) -> Step:
        own = (self.model_name, self.reasoning_effort, self.reasoning_content, self.tool_calls, self.metrics)
        assert self.source == "agent" or not any(value is not None for value in own)
        called = {call.tool_call_id for call in self.tool_calls or ()}
        results = self.observation.results if self.observation else []
        assert all(r.source_call_id is None or r.source_call_id in called for r in results)
        return self


class Agent(Rule):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: Extra = None


class FinalMetrics(Rule):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = Field(None, ge=0)
    extra: Extra = None


class Document(Rule):
    schema_version: Literal["ATIF-v1.8"]
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: Agent
    steps: list[Step] = Field(min_length=1)
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: Extra = None

    @model_validator(mode="after")
    def _steps_are_counted(self) -> Document:
        assert [step.step_id for step in self.steps] == list(range(1, len(self.steps) + 1))
        return self
