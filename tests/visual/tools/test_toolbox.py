"""Tools: what is refused before anything runs, and what a tool that fails, hangs or is missing says."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
from PIL import Image

from selfverify.core.errors import ConfigError
from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.tools.base import MOST_HUNG, Batched, Found, OnImage, Toolbox, ToolFault, VisualTool
from selfverify.visual.tools.crop import Crop, Overlay, ZoomIn, widened
from selfverify.visual.tools.detect import GroundingTool, ZeroShotDetector
from selfverify.visual.tools.gallery import Gallery
from tables import yaml_cases

BOX = {"x_min": 20, "y_min": 10, "x_max": 60, "y_max": 30}


def gallery(colours: tuple[str, ...] = ("black",)) -> Gallery:
    """Images of 200 x 100 pixels, the first with a white patch at (20, 10) to (60, 30)."""
    images = [Image.new("RGB", (200, 100), colour) for colour in colours]
    images[0].paste("white", (20, 10, 60, 30))
    seen = Gallery()
    seen.begin("p", images)
    return seen


def run(box: Toolbox, name: str, arguments: dict[str, Any], seen: Gallery) -> Found:
    """Call a tool."""
    return box.run(box.chosen(name, arguments), seen)


class Odd(VisualTool[OnImage]):
    """Does odd things."""

    name = "odd"
    arguments = OnImage

    def __init__(self, act: Any, why: str = "") -> None:
        self.act, self.why = act, why

    def missing(self) -> str:
        return self.why

    def run(self, asked: OnImage, gallery: Gallery) -> Found:
        return self.act()


TOOLS = Toolbox([Crop(), ZoomIn(), Overlay()])


def test_names_and_boxes_of_others() -> None:
    """The paper's and the release's names and its boxes by corner ask for the same call."""
    calls = [
        TOOLS.chosen("crop", {"image_index": 1, "bounding_box": [20, 10, 60, 30]}),
        TOOLS.chosen("crop_action", {"image_index": 1, "bounding_box": BOX, "padding": 0}),
        *(TOOLS.chosen(name, {"image_index": 1, "bounding_box": BOX}) for name in ("Crop ", "CROPAction")),
    ]
    assert len({call.key for call in calls}) == 1


def test_zoom_keeps_the_ratio_of_sides() -> None:
    """A tall box stays tall, and is as long as the image."""
    [made] = run(TOOLS, "zoom_in", {"image_index": 1, "bounding_box": [50, 10, 70, 90]}, gallery()).images
    assert made.region == (49, 6, 71, 94)
    assert made.image.size == (50, 200) and made.image.width / made.image.height == 22 / 88


@yaml_cases
def test_widened(region: Any, padding: float, least: float, found: Any) -> None:
    """Padding is cut at the edges; a least size is moved inside."""
    assert [*widened(region, (200, 100), padding, least)] == found


def test_overlay() -> None:
    """The second image is brought to the first one's size and blended."""
    arguments = {"background_image_index": 1, "overlay_image_index": 2, "overlay_proportion": 0.25}
    [made] = run(TOOLS, "overlay", arguments, gallery(("black", "white"))).images
    assert made.image.getpixel((0, 0)) == (63, 63, 63) or made.image.getpixel((0, 0)) == (64, 64, 64)


@yaml_cases
def test_arguments_are_checked_before_anything_runs(arguments: dict[str, Any], said: str) -> None:
    """Nothing is filled in, and what is of another type is refused."""
    with pytest.raises(ToolError, match=said):
        TOOLS.chosen("crop", arguments)


@pytest.mark.parametrize("phrase", [" ", ".", "\t", ""])
def test_a_phrase_to_look_for_says_something(phrase: str) -> None:
    with pytest.raises(ToolError, match=r"'text'\.1: .*(empty|at least 1 char)"):
        GroundingTool(ZeroShotDetector(None)).read({"image_index": 1, "text": ["cup", phrase]})


def test_schema() -> None:
    """The model is shown names, meanings and types, without titles."""
    function = TOOLS.schemas()[1]["function"]
    assert function["name"] == "zoom_in" and "stretches" not in function["description"]
    properties = function["parameters"]["properties"]
    assert properties["image_index"] == {
        "description": "The number of the image, from 1.", "minimum": 1, "type": "integer",
    }  # fmt: skip
    assert properties["bounding_box"]["minItems"] == 4 and "title" not in str(function)
    assert function["parameters"]["required"] == ["image_index", "bounding_box"]


def test_missing_tools_are_not_offered_and_say_why() -> None:
    """A tool without its model has no schema, and a call of it says what is missing. Names stand once."""
    with pytest.raises(ConfigError, match="two tools are called crop"):
        Toolbox([Crop(), Crop()])
    box = Toolbox([Crop(), Odd(None, "no weights here")])
    assert [schema["function"]["name"] for schema in box.schemas()] == ["crop"]
    with pytest.raises(ToolError, match="odd is not available here: no weights here"):
        box.chosen("odd", {"image_index": 1})


def test_a_tool_that_dies_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The model reads a short reason; the log has the event. What is no finding is a fault, too."""

    def die() -> Found:
        raise OSError("x" * 5000)

    caplog.set_level(logging.WARNING)
    for act, said in ((die, "odd has failed: OSError"), (lambda: None, "returned a NoneType")):
        with pytest.raises(ToolFault, match=said) as caught:
            run(Toolbox([Odd(act)]), "odd", {"image_index": 1}, gallery())
        assert len(str(caught.value)) < 400 and "has failed" in caplog.text


def test_a_tool_that_hangs_is_left_behind() -> None:
    """Each call ends at its deadline; while too many calls of it hang it is not offered."""
    release = threading.Event()
    box = Toolbox([Odd(lambda: (release.wait(), Found())[1])], seconds=0.02)
    try:
        for _ in range(MOST_HUNG):
            with pytest.raises(ToolFault, match=r"odd took longer than 0\.02 s"):
                run(box, "odd", {"image_index": 1}, gallery())
        with pytest.raises(ToolError, match=f"not available here: {MOST_HUNG} calls of it hang"):
            run(box, "odd", {"image_index": 1}, gallery())
        assert box.schemas() == []
    finally:
        release.set()
    # They were only slow: the tool is there again when they have ended.
    while box.missing(box.tools["odd"]):
        time.sleep(0.001)
    assert len(box.schemas()) == 1


def test_models_are_loaded_once_and_asked_together() -> None:
    """Who comes while the model works goes in together with the others."""
    loads, working, go_on = [], threading.Event(), threading.Event()

    def ask(questions: list[int]) -> list[int]:
        working.set()
        go_on.wait(5)
        return [question * 2 for question in questions]

    def load() -> Any:
        loads.append(1)
        return ask

    model: Batched[int, int] = Batched(load)
    answers: dict[int, list[int]] = {}
    threads = [threading.Thread(target=lambda n=n: answers.update({n: model([n])})) for n in range(5)]
    threads[0].start()
    working.wait(5)
    for thread in threads[1:]:
        thread.start()
    while len(model._waiting) < 4:
        pass
    go_on.set()
    for thread in threads:
        thread.join(5)
    assert answers == {n: [2 * n] for n in range(5)} and loads == [1] and model.asked == [1, 4]


def test_one_bad_question_spoils_no_other() -> None:
    """Those that went in with it are asked again, alone."""

    def ask(questions: list[int]) -> list[int]:
        if 3 in questions:
            raise ValueError("three")
        return questions

    model: Batched[int, int] = Batched(lambda: ask)
    own: list[Any] = []
    for questions in ([1, 2], [3]):
        try:
            own.append(model(questions))
        except ValueError as error:
            own.append(str(error))
    assert own == [[1, 2], "three"]
    with pytest.raises(ValueError, match="three"):
        model([1, 3])


@pytest.mark.timeout(20)
def test_models_that_do_not_load_or_answer() -> None:
    """A load is tried once; an answer that does not come is not waited for."""
    loads: list[int] = []

    def load() -> Any:
        loads.append(1)
        raise OSError("no such folder")

    broken: Batched[int, int] = Batched(load)
    silent: Batched[int, int] = Batched(lambda: lambda questions: [])
    for questions in ([1], [1, 2]):
        with pytest.raises(ToolError, match="cannot be loaded: OSError: no such folder"):
            broken(questions)
        with pytest.raises(RuntimeError, match="0 answers to 1 question"):
            silent(questions)
    assert loads == [1]
