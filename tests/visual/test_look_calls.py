"""Calls in the forms that models write them: what is read, where the plan ends, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfverify.core.episode import Call, PolicyTurn
from selfverify.core.trajectory import Finish
from selfverify.visual.calls import VisualCall, read_look_call
from tables import yaml_cases


def read(text: str, finish: Finish = Finish.STOP, questions: int = 1) -> VisualCall:
    """What a text asks for."""
    return read_look_call(PolicyTurn(text, [], finish, 0), (), questions)


CROP = Call("crop", {"image_index": 1, "bounding_box": [1, 2, 3, 4]})
BODY = '{"name": "crop", "arguments": {"image_index": 1, "bounding_box": [1, 2, 3, 4]}}'
ACTION = '"action": {"image_index": 1, "bounding_box": [1, 2, 3, 4]}}'
VTS = '{"thought": "The \\"sign\\".", "action_name": "crop", ' + ACTION


def spelled(text: str) -> str:
    return text.replace("VTS", VTS).replace("BODY", BODY)


@yaml_cases
def test_forms(text: str, plan: str) -> None:
    """Each form gives the same call; the plan ends with the thought, or where the call begins."""
    text = spelled(text)
    found = read(text)
    assert found.call == CROP and not found.error and text[: found.action_start] == plan


def test_a_server_s_calls() -> None:
    """OpenAI's tool calls come as a message that is read already."""
    message = {"tool_calls": [{"function": {"name": CROP.name, "arguments": CROP.arguments}}]}
    said = PolicyTurn(f"I look.\n<tool_call>\n{BODY}\n</tool_call>", [], Finish.STOP, 0, message=message)
    found = read_look_call(said)
    assert found.call == CROP and said.text[: found.action_start] == "I look.\n"


@pytest.mark.parametrize(
    ("source", "questions", "index"),
    [("original_image", 1, 1), ("observation_1", 1, 2), ("observation_3", 2, 5)],
)
def test_sources_of_mini_o3(source: str, questions: int, index: int) -> None:
    """Observations are numbered behind the question's images."""
    text = f'<grounding>{{"bbox_2d": [0, 0, 1, 1], "source": "{source}"}}</grounding>'
    call = read(text, questions=questions).call
    assert call.arguments["image_index"] == index


def test_arguments_of_other_models() -> None:
    """DeepEyes' box means the first image, and its label changes nothing; Pixel-Reasoner names its target."""
    deep = '{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [1, 2, 3, 4], "label": "a"}}'
    pixel = '{"name": "crop_image_normalized", "arguments": {"bbox_2d": [1, 2, 3, 4], "target_image": 2}}'
    for text, name, number in ((deep, "image_zoom_in_tool", 1), (pixel, "crop_image_normalized", 2)):
        assert read(text).call == Call(name, {"image_index": number, "bounding_box": [1, 2, 3, 4]})


def test_qwen3_vl_counts_from_0() -> None:
    """It looks into the question's images only; another number says which there are."""
    zoom = (
        '{"name": "image_zoom_in_tool", "arguments": {"label": "a", "bbox_2d": [1, 2, 3, 4], "img_idx": %s}}'
    )
    for questions, number in ((1, "0"), (2, '"0"'), (2, "1"), (2, "1.0")):
        call = read(zoom % number, questions=questions).call
        assert call.arguments == {
            "image_index": int(float(number.strip('"'))) + 1,
            "bounding_box": [1, 2, 3, 4],
        }
    for number in ("2", "-1", "0.5", "true", '"first"', "null"):
        assert "the question's images are 0 to 1" in read(zoom % number, questions=2).error


@yaml_cases
def test_no_call(text: str) -> None:
    """An answer is no call, and neither is what stands in an unfinished thought."""
    assert read(text) == VisualCall()


@yaml_cases
def test_broken_calls(text: str, said: str) -> None:
    """What was meant as a call and is none says why."""
    found = read(spelled(text))
    assert found.call is None and said in found.error


def test_cut_off() -> None:
    """A call at the limit of tokens is not carried out."""
    assert read(VTS, Finish.LENGTH).error == "the call was cut off"


@given(
    st.text(alphabet='{}[]"<>/:,` \n\\thoucalgrndsiebxj_12', max_size=80), st.sampled_from([VTS, BODY, ""])
)
def test_nothing_raises(text: str, rest: str) -> None:
    """Whatever a model writes, there is a call, an error, or neither."""
    for whole in (text + rest, rest + text, rest[:40] + text + rest[40:]):
        found = read(whole)
        assert not (found.call and found.error) and 0 <= found.action_start <= len(whole)
