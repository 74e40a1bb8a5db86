"""A conversation in which a model looks again until it is told to answer (VTS-V, Algorithm 1).

`with_tools` tells a model in its question that it may look again with tools, and `asked_anew` asks an
unfinished conversation anew. `VisualStep` is what is kept of each step.
"""

from __future__ import annotations

import copy
import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self

from PIL.Image import Image, Resampling, new

from selfverify.core.episode import (
    PROBE_LOGPROB,
    Episode,
    EpisodeResult,
    Observation,
    PolicyTurn,
    RolloutHook,
)
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged, parse_tagged
from selfverify.core.trajectory import ANSWER, Finish, Trajectory
from selfverify.policy.policy import Policy
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.base import Space, Task
from selfverify.tasks.tool_calls import ToolError
from selfverify.tasks.tool_episode import ACTION, TOOL_CALLS, TOOL_ERRORS, shortened
from selfverify.visual.calls import VisualCall, read_look_call
from selfverify.visual.config import VisualConfig, estimated_tokens_of
from selfverify.visual.stopping import DELTA_R, LOG_RATIO, LOG_RATIO_PLAN, StopRule, Verified
from selfverify.visual.tools.base import Chosen, Terminate, TerminateArguments, Toolbox, ToolFault, plain_name
from selfverify.visual.tools.gallery import CROP_HIT, Gallery, Made, crop_hit
from selfverify.visual.verifier import StoppingVerifier


@dataclass(slots=True)
class StepAnswer:
    """An answer beside the conversation.

    Args:
        answer: The answer as its judge reads it; None where there is none.
        correct: Whether it is right; None where that is not known, as in an outage of the judge.
        tokens: How many tokens the model wrote.
        logprob: Their mean log-probability, nats; None where the sampler does not tell.
    """

    answer: Any
    correct: bool | None
    tokens: int
    logprob: float | None = None


@dataclass(slots=True)
class VisualStep:
    """The record of one step, as evaluations and pages keep it.

    Args:
        step: h, from 1.
        tool: The tool that was called; empty where no call could be read.
        arguments: Its arguments.
        error: Why nothing was found; empty where something was.
        images: The numbers of the images that it made.
        sources: For each of them the image it was made of (``source``), the region in that image's pixels, if
            any, its own width and height (``size``), and those of the image it was made of (``of``).
        duplicate: The step that made the same call; 0 without one.
        stopped: Why looking ended with this step: `rule`, `cap`, `errors` or `visual` (no more tokens); empty
            where it went on.
        delta_r: The verifier's Δr, nats; None where there is no verifier.
        delta_r_plan: The plan's part of it.
        rule: The rule that the verifier was asked by, `absolute` or `signed`; empty where it only measured.
        epsilon: That rule's ε, nats.
        dropped_delta_r: Where the rule has ended looking with the next step, and that was taken back
            (``on_stop: skip``): its Δr.
        asked: The model's answer when it is told to answer after this step (`VisualConfig.answer_each_step`).
        own: With the same setting the answer with which it would have ended looking, if that was refused.
    """

    step: int
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    images: list[int] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    duplicate: int = 0
    stopped: str = ""
    delta_r: float | None = None
    delta_r_plan: float | None = None
    rule: str = ""
    epsilon: float | None = None
    dropped_delta_r: float | None = None
    asked: StepAnswer | None = None
    own: StepAnswer | None = None


def steps_of(trajectory: Trajectory) -> list[Mapping[str, Any]]:
    """Return the steps of a conversation that looked; nothing for conversations of other kinds."""
    return [step for segment in trajectory.segments if (step := step_of(segment.parsed)) is not None]


def step_of(record: Any) -> Mapping[str, Any] | None:
    """Return the record of a turn, where it is a `VisualStep`; older files may lack some of its fields."""
    if not isinstance(record, Mapping) or not _FIRST <= record.keys() <= _NAMES:
        return None
    return record if type(record["step"]) is int and isinstance(record["stopped"], str) else None


_NAMES = {field.name for field in fields(VisualStep)}
_FIRST = {"step", "tool", "arguments", "error", "images", "sources", "stopped"}


Part = dict[str, Any]
"""A part of a message in the Hugging Face form."""

_FORM = (
    "You may look at the images again with tools before you answer. Each turn is one JSON object and "
    'nothing else: {"thought": what you want to find out, "action_name": the name of a tool, "action": its '
    "arguments}. What the tool finds is shown to you, and you go on. The images have the numbers 1, 2, ... "
    "in the order in which they are shown. "
)


def with_tools(problem: Problem, toolbox: Toolbox, space: Space, calls: str) -> Problem:
    """Return a problem whose prompt says which tools there are.

    Args:
        problem: The question.
        toolbox: The tools; those that are not available here are not named.
        space: How the model writes places.
        calls: ``template``: the chat template shows the tools. ``vts``: the question describes them, and
            VTS-V's form of calls.
    """
    if calls == "template":
        return replace(problem, tools=toolbox.schemas())
    listed = [
        {key: tool["function"][key] for key in ("name", "description", "parameters")}
        for tool in toolbox.schemas()
    ]
    lines = [json.dumps(tool, ensure_ascii=False) for tool in listed]
    places = f"Boxes are [x_min, y_min, x_max, y_max] in {words_for(space)}. The tools are:"
    return replace(problem, messages=_told(problem.messages, "\n\n" + "\n".join([_FORM + places, *lines])))


def words_for(space: Space) -> str:
    """How places are written, in words."""
    sides = space((640, 480))
    if sides == (1, 1):
        return "fractions of an image's width and height, from 0 to 1"
    if sides == (1000, 1000):
        return "thousandths of an image's width and height, from 0 to 1000"
    return "pixels of the image"


def asked_anew(
    problem: Problem, turns: Sequence[tuple[str, Sequence[Part], Sequence[Image]]], role: str, words: str
) -> Problem:
    """Return a problem whose prompt is a conversation up to some step, with ``words`` behind the last
    observation.

    Args:
        problem: The problem.
        turns: The model's words in each step, and the observation behind them: parts and images.
        role: The role of the speaker that showed it.
        words: The words behind the last observation; empty for nothing.
    """
    messages, images = copy.deepcopy(problem.messages), list(problem.images)
    for text, parts, shown in turns:
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": role, "content": [dict(part) for part in parts]})
        images += shown
    return replace(problem, messages=_told(messages, f"\n{words}") if words else messages, images=images)


def _told(messages: Sequence[dict[str, Any]], words: str) -> list[dict[str, Any]]:
    """Messages with ``words`` at the end of the last one."""
    last = dict(messages[-1])
    content = last["content"]
    if isinstance(content, str):
        last["content"] = content + words
    else:
        last["content"] = [*content, {"type": "text", "text": words}]
    return [*messages[:-1], last]


PLAN = "plan"
"""Channel of the paper's t_h: what the model writes before its call."""
STEPS, FAULTS, DUPLICATES, SHOWN = "steps", "tool_faults", "duplicate_calls", "images_shown"
"""Rewards that count a conversation's steps, calls whose tool died or hung, repeated calls, new images."""
TERMINATE = Terminate()
LONGEST_RESULT = 12_000
"""Characters of one observation; the middle of longer ones is left out."""


class VisualEpisode(SingleTurn):
    """Carries out the tools that the model calls and shows what they find, until it is told to answer.

    A turn is a step h: plan t_h and action a_h in the channels ``plan`` and ``action``; what is shown is the
    observation o_h. The stopping rule is asked after every step, before its tool runs. With the step at which
    it stops, with the last of ``max_steps``, or after ``errors_in_a_row`` steps that found nothing, the model
    is told to answer. Its next turn is t_{H+1}, in the channel ``answer``; calls in it are not carried out.

    A call that cannot be read or does not fit, a message that is cut off before its answer ends, a tool that
    fails, hangs or is missing: each is an observation that says why, and a step. A call that was made before
    is not made again; the model is told which images show its result. A message without a call is an answer.
    Whether it, or a call of `terminate` that fits, ends looking before the rule does, is a setting; where it
    does not the model is told to look. With ``on_stop: skip``
    the step at which the rule stops is taken back: its tool does not run, it is no step of the conversation,
    and the model answers from what it had seen before.

    Args:
        task: Has the tools and an answer's tags, judges the answer, and knows how many tokens an image takes.
        problem: The problem, with its tools described.
        settings: How the model looks.
        space: How it writes places.
        rule: Says when looking ends.
        originals: The question's images as tools see them, where they are larger than as they are shown.
        form: See `read_look_call`.
    """

    channel = ACTION

    def __init__(
        self,
        task: VisualTask,
        problem: Problem,
        settings: VisualConfig,
        space: Space,
        rule: StopRule,
        originals: Sequence[Image] = (),
        form: str = "",
    ) -> None:
        super().__init__(problem, task.tags, task.verdict)
        self.task, self.toolbox, self.settings, self.rule = task, task.toolbox, settings, rule
        self.originals = originals
        self.gallery = Gallery(space=space, most_shown=settings.most_shown, smallest=settings.smallest)
        self._tokens_shown, self._form = 0, form
        self.steps: list[VisualStep] = []
        self.last_said = ""
        """The model's words in its last step."""
        self._shown: tuple[Sequence[Part], Sequence[Image]] = [], []
        """The last observation: parts of a message, and images."""
        self._made: dict[str, int] = {}
        """By call the step that made it."""
        self._called, self._faults, self._in_a_row = 0, 0, 0
        self._answering = False
        self._ratios: list[float | None] = []
        """For each turn what the verifier has measured."""
        self._beside: list[tuple[VisualStep, Literal["asked", "own"], Tagged, PolicyTurn]] = []
        """Answers beside the conversation: of which step, why, and their tokens."""

    @property
    def role(self) -> str:
        """The role that shows the findings of tools: a chat template that shows tools knows their
        messages."""
        return "tool" if self.settings.calls == "template" else "user"

    def expected_observations(self) -> Sequence[Observation]:
        asked = [self._reply([{"type": "text", "text": self.settings.answer_now}], [])]
        return [*asked, Observation(self.settings.answer_now)] if self.settings.on_stop == "skip" else asked

    def reset(self) -> None:
        """Take the problem's images into the gallery; the policy speaks first.

        Raises:
            DataError: An image cannot be looked at.
        """
        self.gallery.begin(self.problem.id, self.problem.images, self.originals)
        for picture in self.gallery.pictures:
            self._has_room(picture.shown)  # the question's images are shown in any case, and count

    def step(self, said: PolicyTurn) -> Observation:
        read = self._read_call(said)
        self._ratios.append(said.values.get(LOG_RATIO))
        if self._answering:
            return self._answer(said, read)
        step = VisualStep(len(self.steps) + 1)
        ends = not read.error and (read.call is None or self._terminates(read))
        if not ends and self._ratios[-1] is not None:
            # A turn that means to be the answer has no Δr.
            step.delta_r = said.values[DELTA_R] = self._ratios[-1]
            step.delta_r_plan = said.values.get(LOG_RATIO_PLAN)
            if isinstance(self.rule, Verified):
                step.rule, step.epsilon = self.rule.kind, self.rule.epsilon
        stops = self.rule.stops(step.step, said)
        if ends and (stops or self.settings.terminate == "accept"):
            return self._answer(said, read)
        if ends and self.settings.answer_each_step:
            self._beside.append((step, "own", self._tagged(said, read), said))
        if stops and self.settings.on_stop == "skip":
            return self._taken_back(step)
        self.steps.append(step)
        step.stopped = "rule" if stops else "cap" if step.step >= self.settings.max_steps else ""
        words, images = self._carried_out(step, read)
        counts = {TOOL_ERRORS: bool(step.error), DUPLICATES: step.duplicate > 0, SHOWN: len(step.images)}
        said.values |= {name: float(count) for name, count in counts.items() if count}
        if not step.stopped and self._in_a_row >= self.settings.errors_in_a_row:
            step.stopped = "errors"
        self._answering = bool(step.stopped)
        self.last_said = said.text
        self._shown = words, images
        asked = self._reply([*words, _text(f"\n{self.settings.answer_now}")], images, _cuts(read))
        if self._answering:
            return asked
        reply = self._reply(words, images, _cuts(read))
        if self.settings.answer_each_step:
            reply.probe = asked
        return reply

    def _taken_back(self, dropped: VisualStep) -> Observation:
        """Plan and call are taken back, their tool does not run, and the answer is asked for before them."""
        self._ratios.pop()
        self._answering = True
        words, images = self._shown
        if not self.steps:
            # A message of a tool would answer no call.
            return Observation(self.settings.answer_now, undo=True, after_cut=True)
        last = self.steps[-1]
        last.stopped, last.dropped_delta_r = "rule", dropped.delta_r
        last.rule, last.epsilon = dropped.rule, dropped.epsilon
        reply = self._reply([*words, _text(f"\n{self.settings.answer_now}")], [*images])
        reply.undo = True
        return reply

    def probed(self, said: PolicyTurn) -> None:
        """Keep the answer that was asked for after the last step."""
        tagged = self._tagged(said, self._read_call(said))
        self._beside.append((self.steps[-1], "asked", tagged, said))

    def answers(self) -> Sequence[Tagged]:
        return [*self._answers, *(tagged for _, _, tagged, _ in self._beside)]

    def result(self) -> EpisodeResult:
        """Return the verdict on the answer, with counts of steps and looks.

        With a verifier the score ``log_ratio`` is r(τ) of VTS-V §3.3 without η and Q(s_1): over
        all turns, the answer among them.
        """
        made = super().result()
        if made.rewards["answer"] > 0:
            price = self.settings.step_price * len(self.steps)
            made.rewards["answer"] = max(made.rewards["answer"] - price, 0.0)
        errors = sum(bool(step.error) for step in self.steps)
        made.rewards |= {
            TOOL_CALLS: float(self._called),
            TOOL_ERRORS: float(errors),
            FAULTS: float(self._faults),
            DUPLICATES: float(sum(step.duplicate > 0 for step in self.steps)),
            STEPS: float(len(self.steps)),
            SHOWN: float(sum(len(step.images) for step in self.steps)),
        }
        if boxes := self.problem.meta.get("target_boxes"):
            made.rewards[CROP_HIT] = crop_hit(self.gallery.pictures, [tuple(box) for box in boxes])
        measured = [ratio for ratio in self._ratios if ratio is not None]
        if measured and len(measured) == len(self._ratios):
            made.scores[LOG_RATIO] = math.fsum(measured)
        for step, why, tagged, said in self._beside:
            judged = self.verdict(self.problem, tagged)
            correct = None if judged.unjudged else judged.correct
            given = StepAnswer(judged.answer, correct, len(said.tokens), said.values.get(PROBE_LOGPROB))
            step.asked, step.own = (given, step.own) if why == "asked" else (step.asked, given)
        made.turns = [asdict(step) for step in self.steps] + made.turns
        return made

    def _read_call(self, said: PolicyTurn) -> VisualCall:
        """The call in a turn, with an error where it is neither a call that can be made nor an answer."""
        images = len(self.problem.images)
        names = {*self.toolbox.names, TERMINATE.name}  # it ends looking also where it is not offered
        read = read_look_call(said, self.problem.tools, images, names, self._form)
        if said.finish != Finish.STOP and not (self.tags and parse_tagged(said.text, self.tags).answer_ok):
            return replace(read, error="the message was cut off: it is too long. Write less")
        if read.call is not None and self._terminates(read):
            try:
                TERMINATE.read(read.call.arguments)
            except ToolError as error:
                return replace(read, error=str(error))
        return read

    def _terminates(self, read: VisualCall) -> bool:
        return read.call is not None and plain_name(read.call.name) == TERMINATE.name

    def _answer(self, said: PolicyTurn, read: VisualCall) -> Observation:
        """Take a turn as the answer t_{H+1}."""
        if self._terminates(read) and not read.error:
            self._answers.append(self._tagged(said, read))
            return Observation(done=True, channels=[(ANSWER, 0)])
        return Observation(done=True, channels=self._read(said, ANSWER, split=True))

    def _tagged(self, said: PolicyTurn, read: VisualCall) -> Tagged:
        """The answer in a turn, also in a call of `terminate`."""
        if read.error or read.call is None or not self._terminates(read):
            return parse_tagged(said.text, self.tags)
        asked = TERMINATE.read(read.call.arguments)
        assert isinstance(asked, TerminateArguments)
        text = asked.final_response
        for tags in (self.tags, [tag for tag in self.tags if tag != "think"]):
            tagged = parse_tagged(text, tags)
            if tagged.answer_ok:
                return tagged
        return Tagged({"answer": tagged.fields.get("answer") or text}, answer_ok=True)

    def _carried_out(self, step: VisualStep, read: VisualCall) -> tuple[list[Part], list[Image]]:
        """The observation o_h: parts of a message, and images."""
        try:
            if read.call is not None:
                step.tool, step.arguments = read.call.name, {**read.call.arguments}
            if read.error:
                raise ToolError(read.error)
            if read.call is None or self._terminates(read):
                raise ToolError("it is too early to answer; look at the images with a tool first")
            chosen = self.toolbox.chosen(read.call.name, read.call.arguments)
            step.tool = chosen.tool.name
            words, made = self._found(step, chosen)
        except ToolError as error:
            self._faults += isinstance(error, ToolFault)
            self._in_a_row += 1
            step.error = str(error)
            return [_text(f"Error: {shortened(str(error), LONGEST_RESULT)}")], []
        self._in_a_row = self._in_a_row + 1 if step.duplicate else 0
        parts = [_text(shortened(words, LONGEST_RESULT))] if words else []
        images: list[Image] = []
        for number in made:
            picture = self.gallery.picture(number)
            if not self._has_room(picture.shown):
                parts.append(_text(f"\nImage {number} is not shown: too few visual tokens are left."))
                step.images, step.sources = step.images[: len(images)], step.sources[: len(images)]
                step.stopped = step.stopped or "visual"
                break
            parts += [_text(self._about(number)), {"type": "image"}]
            images.append(self._result(picture.shown))
        return parts or [_text("Nothing was found.")], images

    def _has_room(self, image: Image) -> bool:
        """Count an image's visual tokens, where they are limited, and return whether it may be shown."""
        if self.settings.max_visual_tokens is None:
            return True
        self._tokens_shown += self.task.tokens_of(image)
        return self._tokens_shown <= self.settings.max_visual_tokens

    def _result(self, image: Image) -> Image:
        """Return the picture that is shown of an image that a tool has made."""
        if self.settings.results != "blanked":
            return image
        # The question's mean colour, so that nothing about the part is told.
        colour = self.gallery.picture(1).shown.resize((1, 1), Resampling.BOX).getpixel((0, 0))
        return new(image.mode, image.size, colour)

    def _found(self, step: VisualStep, chosen: Chosen) -> tuple[str, list[int]]:
        """Return a call's findings in words, and the numbers of the images that it has made."""
        if (before := self._made.get(chosen.key)) is not None:
            step.duplicate = before
            numbers = ", ".join(map(str, self.steps[before - 1].images))
            where = f": see image {numbers}" if numbers else ""
            return f"The same call was made in step {before}{where}. It is not made again.", []
        found = self.toolbox.run(chosen, self.gallery)
        self._called += 1
        self._made[chosen.key] = step.step
        words = found.text
        for made in found.images:
            try:
                step.images.append(self.gallery.add(made))
            except ToolError as error:
                words += f"\n({made.label} is not shown: {error})"
                continue
            step.sources.append(self._origin(made))
        return words, step.images

    def _origin(self, made: Made) -> dict[str, Any]:
        region = None if made.region is None else list(made.region)
        of = None if made.source is None else list(self.gallery.picture(made.source).full.size)
        return {"source": made.source, "region": region, "size": list(made.image.size), "of": of}

    def _about(self, number: int) -> str:
        """Return the words before an image that a tool has made."""
        if self.settings.announce == "number":
            return f"{number}:"
        picture = self.gallery.picture(number)
        wide, high = picture.shown.size
        return f"\nImage {number} ({picture.label}, {wide} x {high} pixels):"

    def _reply(
        self, parts: list[Part], images: list[Image], cuts: list[tuple[str, int]] | None = None
    ) -> Observation:
        role: Literal["user", "tool"] = "tool" if self.role == "tool" else "user"
        return Observation(parts, images, role, channels=cuts or [], after_cut=True)


def _cuts(read: VisualCall) -> list[tuple[str, int]]:
    return [(PLAN, 0), (ACTION, read.action_start)] if read.action_start else [(ACTION, 0)]


def _text(words: str) -> Part:
    return {"type": "text", "text": words}


class VisualTask(Task):
    """A task whose conversations are `VisualEpisode`s, with a verifier listening where one is named.

    Attributes:
        settings: How a model looks.
        toolbox: The tools.
        stopping: The rule that ends looking.
    """

    settings: VisualConfig
    toolbox: Toolbox
    stopping: StoppingVerifier
    reasoner: Policy | None = None
    """The model that looks, where it runs here."""

    @abstractmethod
    def look(self, problem: Problem) -> VisualEpisode:
        """The conversation about a problem of this task."""

    def set_policy(self, policy: object) -> None:
        if isinstance(policy, Policy):
            self.reasoner = policy

    def tokens_of(self, image: Image) -> int:
        """How many visual tokens an image takes."""
        if self.reasoner is None:
            return estimated_tokens_of(image)
        return self.reasoner.encoder.image(image, "an image that is shown", several=True).placeholders

    def hook(self) -> RolloutHook | None:
        """Return the verifier that follows the conversations, where one is named."""
        return self.stopping.listener(self.reasoner)

    def open(self, problem: Problem, seed: int) -> Episode:
        return self.look(problem)

    def looking_by(self, changes: Mapping[str, Any]) -> Self:
        """Return the task with other settings of looking.

        Raises:
            ConfigError: See `StoppingVerifier`.
            ValidationError: They are none.
        """
        changed = copy.copy(self)
        changed.settings = VisualConfig(**{**self.settings.model_dump(), **changes})
        changed.stopping = self.stopping.changed(changed.settings)
        changed.limits = self.limits.model_copy(update={"turns": changed.settings.max_steps + 1})
        return changed

    def seen(self, problem: Problem, steps: Sequence[Mapping[str, Any]]) -> Sequence[float] | None:
        """Return after each step the share of the image parts that the answer needs and that have been shown,
        from 0 to 1.

        Args:
            problem: The problem.
            steps: The conversation's `VisualStep`s, as its trajectory keeps them.

        Returns:
            None where the task does not know.
        """
        return None

    def enough(self, problem: Problem, steps: Sequence[Mapping[str, Any]]) -> int | None:
        """After which step everything has been shown that the answer needs; 0 where it never has.

        Args:
            problem: See `seen`.
            steps: See `seen`.

        Returns:
            None where the task does not know.
        """
        shares = self.seen(problem, steps)
        if shares is None:
            return None
        return next((h for h, share in enumerate(shares, start=1) if share >= 1), 0)
