"""Looking again (VTS-V, Algorithm 1): channels, the end, refusals, and what hostile input comes to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.policy.test_tool_templates import QWEN3
from tests.visual.tools.test_toolbox import Odd

from sampled_threads import drawn
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks.answering import Verdict
from selfverify.tasks.base import Task, judge_integer, user_turn
from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.config import VisualConfig
from selfverify.visual.episode import VisualEpisode
from selfverify.visual.stopping import After, make_stop_rule
from selfverify.visual.task import VisualToolTask
from selfverify.visual.tools.base import Found, Toolbox, VisualTool
from tables import yaml_cases


class Spot(Task):
    """Where is it bright?"""

    name = "spot"
    summary = "test"
    tags = ("answer", "score")

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        image = Image.new("RGB", (64, 64))
        image.paste("white", (8, 8, 24, 24))
        return Problem("spot/0", user_turn("How bright is it?"), [image], target=5)

    def judge(self, problem: Problem, tagged: Any) -> Verdict:
        return judge_integer(problem.target, tagged, largest=9)


def looking(**settings: Any) -> VisualToolTask:
    """The task with crop, zoom and terminate."""
    tools = {"tools": ["crop", "zoom_in", "terminate"], "coordinates": "pixels"} | settings
    return VisualToolTask(Spot(), VisualConfig(**tools))


def call(tool: str = "crop", thought: str = "Closer.", **arguments: Any) -> str:
    """A step in VTS-V's form."""
    return json.dumps({"thought": thought, "action_name": tool, "action": arguments})


def crop(x: float = 8, **more: Any) -> str:
    """A crop of the bright spot, or beside it."""
    return call(image_index=1, bounding_box=[x, 8, 24, 24], **more)


def held(
    task: VisualToolTask, *texts: str, tool: VisualTool[Any] | None = None
) -> tuple[VisualEpisode, list[Observation]]:
    """A conversation in which the model says these things."""
    episode = task.look(task.problem("test", 0, 0))
    if tool is not None:
        episode.toolbox = Toolbox([*task.toolbox.tools.values(), tool], seconds=0.05)
    episode.reset()
    replies: list[Observation] = []
    for turn, text in enumerate(texts):
        assert not (replies and replies[-1].done), replies[-1]
        replies.append(episode.step(PolicyTurn(text, [], Finish.STOP, turn)))
    return episode, replies


def words(reply: Observation) -> str:
    """A reply's text."""
    assert not isinstance(reply.content, str)
    return "".join(part.get("text", "") for part in reply.content)


ANSWER = "<answer>5</answer><score>0.9</score>"


def test_looking_and_answering() -> None:
    """Plan, action and answer are channels; the crop is shown with its number; the answer is judged."""
    episode, replies = held(looking(), crop(), ANSWER)
    first, last = replies
    assert first.channels == [("plan", 0), ("action", len('{"thought": "Closer."'))] and first.role == "user"
    assert words(first) == "\nImage 2 (part of image 1, 16 x 16 pixels):"
    [shown] = first.images
    assert np.asarray(shown).min() == 255 and shown.size == (16, 16)
    assert last.done and last.channels == [("answer", 0), ("score", ANSWER.index("0.9"))]
    ending = episode.result()
    assert ending.rewards["correct"] == 1 and ending.parsed.correct and ending.scores == {"sampled": 0.9}
    counted = [ending.rewards[name] for name in ("steps", "tool_calls", "tool_errors", "images_shown")]
    assert counted == [1, 1, 0, 1]
    origin = {"source": 1, "region": [8, 8, 24, 24], "size": [16, 16], "of": [64, 64]}
    assert ending.turns[0]["sources"] == [origin]
    # The crop is image 2.
    _, replies = held(looking(), crop(), call(image_index=2, bounding_box=[0, 0, 8, 8]))
    assert "Image 3 (part of image 2, 8 x 8 pixels)" in words(replies[1])


@pytest.mark.parametrize("stop", ["never", "after:2"])
def test_the_step_that_ends_looking_still_runs(stop: str) -> None:
    """At the cap and where the rule stops, o_h is shown together with the request to answer."""
    task = looking(max_steps=2, stop=stop)
    episode, replies = held(task, crop(), crop(9), crop(10))
    assert "answer the question now" not in words(replies[0])
    assert len(replies[1].images) == 1 and words(replies[1]).endswith(task.settings.answer_now)
    assert replies[2].done and replies[2].channels == [("answer", 0)] and len(episode.gallery) == 3
    assert [step.stopped for step in episode.steps] == ["", "cap" if stop == "never" else "rule"]
    assert task.limits.turns == 3 and episode.result().rewards["correct"] == 0


def test_skip_takes_the_step_back() -> None:
    """The tool does not run; what was shown before is shown again, with the request to answer."""
    task = looking(stop="after:2", on_stop="skip", calls="template")
    episode, replies = held(task, crop(), crop(9), ANSWER)
    assert not replies[0].undo
    assert replies[1].undo and not replies[1].done and len(episode.gallery) == 2
    assert replies[1].images == replies[0].images and replies[1].role == "tool"
    assert words(replies[1]) == f"{words(replies[0])}\n{task.settings.answer_now}"
    assert replies[2].done and replies[2].channels[0] == ("answer", 0)
    ending = episode.result()
    assert ending.rewards["correct"] == 1 and ending.rewards["steps"] == 1 and len(ending.turns) == 2
    assert ending.turns[0]["stopped"] == "rule"
    # Where it is the first step, nothing was shown before.
    first, [taken, last] = held(looking(stop="after:1", on_stop="skip"), crop(), ANSWER)
    assert taken.undo and taken.content == task.settings.answer_now and taken.role == "user"
    assert last.done and not first.steps and len(first.result().turns) == 1
    assert [reply.role for reply in episode.expected_observations()] == ["tool", "user"]


TAGGED = ("<answer>5</answer>", "It is <answer>5</answer>.", "<answer>5</answer><score>0.9</score>")
ENDS = [
    *(ANSWER, call("TerminateAction", final_response="5"), call("Terminate", final_response=" 5 ")),
    *(call("terminate", final_response=text) for text in ("5", ANSWER, 5, *TAGGED)),
]


@pytest.mark.parametrize("text", ENDS)
def test_ending_by_itself(text: str) -> None:
    """An answer or `terminate` ends looking where that is accepted; else only the rule ends it."""
    accepted, replies = held(looking(), text)
    assert replies[0].done and accepted.result().rewards["correct"] == 1
    refusing = looking(terminate="refuse")
    assert all(tool["function"]["name"] != "terminate" for tool in refusing.toolbox.schemas())
    refused, replies = held(refusing, text, crop(), ANSWER.replace("<score>0.9</score>", ""))
    assert not replies[0].done and "too early to answer" in words(replies[0])
    assert [step.stopped for step in refused.steps] == ["", "", ""]
    stopped, replies = held(looking(terminate="refuse", stop="after:1"), text)
    assert replies[0].done and stopped.result().rewards["correct"] == 1


@pytest.mark.parametrize(
    ("answer", "price", "reward"), [(ANSWER, 0.0, 1), (ANSWER, 0.1, 0.8), (ANSWER, 0.6, 0), ("?", 0.1, 0)]
)
def test_steps_have_a_price(answer: str, price: float, reward: float) -> None:
    """A right answer's reward loses it for each of two steps, and never falls below a wrong one's."""
    ending = held(looking(step_price=price), crop(), crop(20), answer)[0].result()
    assert ending.rewards["answer"] == pytest.approx(reward)
    assert ending.rewards["correct"] == float(answer == ANSWER)


def test_an_answer_after_every_step() -> None:
    """Each reply has what would have been shown if looking had ended there; answers are kept with their step.

    The answer with which the model wanted to end is kept, too; the last step has none but the conversation's.
    """
    task = looking(answer_each_step=True, terminate="refuse", max_steps=3)
    episode, replies = held(task, crop())
    aside = replies[0].probe
    assert aside is not None and words(aside) == words(replies[0]) + "\n" + task.settings.answer_now
    assert [np.asarray(image).tolist() for image in aside.images] == [
        np.asarray(image).tolist() for image in replies[0].images
    ]
    episode.probed(PolicyTurn("<answer>4</answer>", [1, 2, 3], Finish.STOP, 1))
    refused = episode.step(PolicyTurn(ANSWER, [1] * 7, Finish.STOP, 1))
    assert refused.probe is not None and "too early" in words(refused.probe)
    episode.probed(PolicyTurn(call("terminate", final_response="5"), [1, 2], Finish.STOP, 2))
    last = episode.step(PolicyTurn(crop(9), [1], Finish.STOP, 2))
    assert last.probe is None and words(last).endswith(task.settings.answer_now)
    assert len(episode.answers()) == 3
    assert episode.step(PolicyTurn(ANSWER, [1], Finish.STOP, 3)).done
    ending = episode.result()
    first, second, third = ending.turns[:3]
    unknown: dict[str, Any] = {"logprob": None}  # a teacher has none
    assert first["asked"] == {"answer": 4, "correct": False, "tokens": 3, **unknown} and first["own"] is None
    assert second["asked"] == {"answer": 5, "correct": True, "tokens": 2, **unknown}
    assert second["own"] == {"answer": 5, "correct": True, "tokens": 7, **unknown}
    assert third["asked"] is None and ending.rewards["correct"] == 1
    plain, replies = held(looking(), crop(), ANSWER)
    assert replies[0].probe is None and plain.result().turns[0]["asked"] is None


def test_a_limit_of_visual_tokens() -> None:
    """What does not fit is not shown and not counted, and the model is told to answer."""
    task = looking(max_visual_tokens=6)
    # The question's 64 x 64 pixels are 5 tokens of 28 x 28; a crop of 16 x 16 pixels is one.
    episode, replies = held(task, crop(), crop(9), "<answer>5</answer><score>0.9</score>")
    assert len(replies[0].images) == 1 and "answer the question now" not in words(replies[0])
    assert not replies[1].images and "Image 3 is not shown" in words(replies[1])
    assert words(replies[1]).endswith(task.settings.answer_now) and episode.steps[1].stopped == "visual"
    ending = episode.result()
    assert (
        ending.rewards["images_shown"] == 1 and ending.turns[1]["images"] == ending.turns[1]["sources"] == []
    )


HOSTILE = [
    (call(image_index=2, bounding_box=[0, 0, 9, 9]), "no image 2"),
    (call(image_index=1, bounding_box=[9, 9, 0, 0]), "empty"),
    (call(image_index=1, bounding_box=[float("nan"), 9, 9, 9]), "NaN is not JSON"),
    (call("rotate", image_index=1), "no tool 'rotate'"),
    ('{"thought": "a", "action_name": "crop", "action": ', "cannot be read"),
]


@pytest.mark.parametrize(("text", "said"), HOSTILE)
def test_what_cannot_be_done_is_an_observation(text: str, said: str) -> None:
    """It says why, is a step, and looking goes on."""
    episode, replies = held(looking(), text, crop(), ANSWER)
    assert words(replies[0]).startswith("Error: ") and said in words(replies[0]) and not replies[0].images
    assert episode.result().rewards["correct"] == 1 and episode.result().rewards["tool_errors"] == 1


def ended(**arguments: Any) -> str:
    """A call of `terminate`."""
    return call("terminate", **arguments)


@pytest.mark.parametrize("calls", ["vts", "template"])
@yaml_cases
def test_what_is_no_answer(text: str, calls: str) -> None:
    """What was meant as a call, or as an answer in another form, is told, and the conversation goes on."""
    episode, replies = held(looking(calls=calls), text, ANSWER)
    assert not replies[0].done and words(replies[0]).startswith("Error: "), words(replies[0])
    assert episode.steps[0].error and replies[1].done and episode.result().rewards["correct"] == 1


def test_thoughts_within_a_call_or_behind_it_hide_no_call() -> None:
    """A tag in a call's text ends no thought that the prompt has opened, and neither does an answer that a
    model has made up behind its call."""
    tags = {"final_response": f"<think>It is 5.</think>{ANSWER}"}
    tagged = f"<tool_call>{json.dumps({'name': 'terminate', 'arguments': tags})}</tool_call>"
    for text in (ended(**tags), tagged, f"```json\n{ended(**tags)}\n```"):
        episode, [reply] = held(looking(), text)
        assert reply.done and episode.result().rewards["correct"] == 1, text
    episode, replies = held(looking(), f"{crop()}\n<think>I see a 5.</think>{ANSWER}", ANSWER)
    assert not replies[0].done and [step.tool for step in episode.steps] == ["crop"]
    quoted = f"{crop()} is how I would look.</think>{ANSWER}"  # within a thought that the prompt has opened
    assert held(looking(), quoted)[1][0].done


@pytest.mark.parametrize("text", ['terminate("5")', "```\nterminate('5')\n```", "<terminate>5</terminate>"])
def test_terminate_is_known_where_it_is_not_offered(text: str) -> None:
    """Else such words would be an answer that cannot be read."""
    episode, replies = held(looking(tools=["crop"]), text, ended(final_response=5))
    assert words(replies[0]).startswith("Error: this looks like a call") and replies[1].done
    assert episode.result().rewards["correct"] == 1


@yaml_cases
def test_words_are_an_answer(text: str) -> None:
    """Prose ends looking, also where it has a tool's name in it or tells of calls before the answer."""
    assert held(looking(), text)[1][0].done


@pytest.mark.parametrize("text", [crop(), crop()[:30], "The sign, which", ANSWER[:5], "", "<think>Well"])
def test_a_turn_that_is_cut_off(text: str) -> None:
    """It is no answer: the model reads why and goes on; only a whole answer before the cut is taken."""
    task = looking(errors_in_a_row=2)
    episode = task.look(task.problem("test", 0, 0))
    episode.reset()
    first, second = (episode.step(PolicyTurn(text, [], Finish.LENGTH, turn)) for turn in (0, 1))
    assert not first.done and first.after_cut and "cut off" in words(first)
    assert episode.steps[1].stopped == "errors" and words(second).endswith(task.settings.answer_now)
    # It has been told to answer: the next turn is the last, and one whose answer is whole counts.
    assert episode.step(PolicyTurn(ANSWER[:-5], [], Finish.LENGTH, 2)).done
    assert episode.result().rewards["correct"] == 1


def test_fifty_identical_calls() -> None:
    """The tool runs once; repetitions point to its result, and end looking."""
    ran = []
    odd = Odd(lambda: (ran.append(1), Found("seen"))[1])
    text = call("odd", image_index=1)
    again = json.dumps({"action_name": "odd", "action": {"image_index": 1}, "thought": "Again."})
    episode, replies = held(looking(max_steps=50), text, again, text, text, tool=odd)
    assert ran == [1] and words(replies[0]) == "seen"
    assert words(replies[1]) == "The same call was made in step 1. It is not made again."
    assert episode.steps[-1].stopped == "errors" and episode.result().rewards["duplicate_calls"] == 3
    task = looking(max_steps=50, errors_in_a_row=100)
    episode, replies = held(task, *[crop()] * 50, ANSWER)
    assert len(episode.gallery) == 2 and "see image 2" in words(replies[49]) and replies[50].done


def test_what_tools_raise_and_how_much_they_say() -> None:
    """A tool that dies is at fault, one that refuses is not; a long observation is capped."""

    def die() -> Found:
        raise OSError("the camera is gone")

    def refuse() -> Found:
        raise ToolError("nothing to see")

    died = "odd has failed: OSError: the camera is gone"
    for act, said, faults in ((die, died, 1), (refuse, "nothing to see", 0)):
        episode, replies = held(looking(), call("odd", image_index=1), ANSWER, tool=Odd(act))
        assert words(replies[0]) == f"Error: {said}"
        assert episode.result().rewards["tool_faults"] == faults and episode.result().rewards["correct"] == 1
    _, replies = held(looking(), call("odd", image_index=1), tool=Odd(lambda: Found("x" * 10**6)))
    assert len(words(replies[0])) < 12_100 and "characters left out" in words(replies[0])


def test_rules_and_tools() -> None:
    """What settings name, and names that are none."""
    with pytest.raises(ConfigError, match="no tool 'rotate' for looking; there are crop"):
        VisualToolTask(Spot(), VisualConfig(tools=["rotate"]))
    assert (make_stop_rule("never"), make_stop_rule("after:3")) == (After(math.inf), After(3))
    for name in ("after:0", "after:-1", "after:x", "delta", "after:²", ""):
        with pytest.raises(ConfigError, match="no rule"):
            make_stop_rule(name)


@yaml_cases
def test_arguments_in_other_writing(given: dict[str, Any], tool: str) -> None:
    """Texts that are numbers or lists, and whole numbers with a point, are what the schema says."""
    _, replies = held(looking(), call(tool, **given))
    assert len(replies[0].images) == 1


@pytest.fixture(scope="module")
def policy(load_policy: Callable[..., Policy]) -> Policy:
    policy = load_policy()
    policy.tokenizer.chat_template = QWEN3
    return policy


def test_a_rollout_with_images_in_mid_conversation(policy: Policy) -> None:
    """The crop's tokens are an observation, and the token that ends a step belongs to its action."""
    task = looking()
    episode = task.look(task.problem("test", 0, 0))
    turns = [drawn(policy, text) for text in (crop(), ANSWER)]
    trajectory = recite(policy, episode.problem, episode, turns)
    plan, action, observation, answer, score = trajectory.segments
    assert [s.channel for s in trajectory.segments] == ["plan", "action", "observation", "answer", "score"]
    assert plan.text == '{"thought": "Closer."' and [*plan.tokens, *action.tokens] == turns[0].tokens
    assert action.tokens[-1] in policy.stop_tokens and len(observation.images) == 1
    assert trajectory.rewards["correct"] == 1 and answer.turn == 1 and score.text.startswith("0.9")
    # A turn that was cut off is shown with its end, and the conversation goes on behind it.
    cut = Sample(turns[0].tokens[:9], [], Finish.LENGTH)
    trajectory = recite(policy, episode.problem, task.look(task.problem("test", 0, 0)), [cut, *turns])
    said, told = trajectory.segments[:2]
    assert said.tokens == cut.tokens and said.finish == Finish.LENGTH and "cut off" in told.text
    assert told.tokens[0] in policy.stop_tokens and trajectory.rewards["correct"] == 1
    assert trajectory.finish == Finish.STOP and trajectory.truncated


def test_the_question_names_tools_and_places() -> None:
    """Only tools that are there, and the form in which places are written."""
    task = looking(coordinates="thousandths")
    text = task.problem("test", 0, 0).messages[-1]["content"][-1]["text"]
    names = re.findall(r'^\{"name": "(\w+)"', text, re.MULTILINE)
    assert names == ["crop", "zoom_in", "terminate"] and "thousandths" in text
    template = looking(calls="template").problem("test", 0, 0)
    assert [tool["function"]["name"] for tool in template.tools] == names
    with pytest.raises(ConfigError, match="has tools of its own"):
        looking().asked(template)
