"""Reading boxes: every usual form, and nothing that only looks like one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfverify.tasks.grounding import MAX_CHARS, parse_box
from selfverify.tasks.row_task import clip_box, convert
from selfverify.tasks.tool_calls import read_json

BOX = [10.0, 20.0, 30.5, 40.0]

FORMS = [
    "[10, 20, 30.5, 40]",
    "10 20 30.5 40",
    " 10, 20,30.5 , 40\n",
    '{"bbox_2d": [10, 20, 30.5, 40], "label": "the dog"}',
    '{"bbox": [10, 20, 30.5, 40]}',
    '{"label": "x", "box": [[10, 20], [30.5, 40]]}',
    '[{"bbox_2d": [10, 20, 30.5, 40]}, {"bbox_2d": [1, 2, 3, 4]}]',
    '```json\n[\n\t{"bbox_2d": [10, 20, 30.5, 40], "label": "the dog"}\n]\n```',
    "```\n[10, 20, 30.5, 40]\n```",
    "{'bbox': [10, 20, 30.5, 40], 'points_1': [3, 4]}",
    "[{'bbox_2d': [10, 20, 30.5, 40]}]",
    "(10, 20), (30.5, 40)",
    "(10,20),(30.5,40)",
    "(10,20)(30.5,40)",
    "[(10, 20), (30.5, 40)]",
    "(10, 20, 30.5, 40)",
    "[[10, 20], [30.5, 40]]",
    "[[10, 20, 30.5, 40]]",
    "<box>10 20 30.5 40</box>",
    "<box>[[10, 20, 30.5, 40]]</box>",
    "<box>(10,20),(30.5,40)</box>",
    "<|box_start|>(10,20),(30.5,40)<|box_end|>",
    "<|object_ref_start|>the dog<|object_ref_end|><|box_start|>(10,20),(30.5,40)<|box_end|>",
    '"[10, 20, 30.5, 40]"',
    '"10 20 30.5 40"',
    '{"bbox_2d": "[10, 20, 30.5, 40]"}',
    '[{"bbox_2d": "10, 20, 30.5, 40"}]',
    "The dog (on the left) is at [10, 20, 30.5, 40], I am 90 % sure.",
    '{"bbox_2d": [1e1, 2.0e1, 30.5, 40]}',
]


@pytest.mark.parametrize("text", FORMS)
def test_every_form_is_read(text: str) -> None:
    assert parse_box(text) == BOX


NONE = [
    *("", "nothing", "10 20 30.5", "10 20 30.5 40 50", "10,,20 30.5 40", "10 20 30.5 40 px"),
    *("1e1 20 30.5 40", "１０ 20 30.5 40", "\x1c10 20 30.5 40", "10\u00a020 30.5 40", "[10, 20, 30.5]"),
    *("[]", "[[]]", "[10, 20, 30.5, 40", "[10, 20, 30.5, 40, 50]", "[NaN, 20, 30.5, 40]"),
    *("[10, 20, Infinity, 40]", "[10, 20, 1e999, 40]", "[10, 20, 100001, 40]", "[true, 20, 30.5, 40]"),
    *('["10", "20", "30.5", "40"]', f"[10, 20, {'9' * 400}, 40]", "[[[[[[[[10, 20, 30.5, 40]]]]]]]]"),
    *(
        "(10, 20), (30.5, 40",
        "(10, 20), (30.5)",
        "<box>10 20 30.5 40",
        "<|box_start|>(10,20),(30.5,40)</box>",
    ),
    *("<box>10 20 30.5</box>[10, 20, 30.5, 40]", "[10, 20, 30.5] or rather [10, 20, 30.5, 40]"),
    '{"bbox_2d": [10, 20, 30.5, 40]',
    '{"bbox_2d": [10, 20, 30.5, 40],}',
    '{"bbox_2d": [10, 20, 30.5, 40], "bbox_2d": [10, 20, 30.5, 40]}',
    '{"bbox_2d": [10, 20, 30.5, 40], "bbox": [10, 20, 30.5, 40]}',
    *('{"box_2d": [10, 20, 30.5, 40]}', '{"bbox_2d": null}', '{"bbox_2d": {"x": 10}}'),
    '[{"label": "no box"}, {"bbox_2d": [10, 20, 30.5, 40]}]',
    " " * MAX_CHARS + "[10, 20, 30.5, 40" + " " * MAX_CHARS,
    "[10, 20, 30.5, 40]" + "x" * MAX_CHARS,
    *("[10, 20, 30.5, 40]" * 60_000, "[" * 4000, '{"a":' * 600, "(1, 2" * 200_000, "1 " * 500_000),
    *("<box>" * 200_000, '"' * 1_000_000),
]


@pytest.mark.parametrize("text", NONE, ids=lambda text: text[:40])
def test_what_is_no_box(text: str) -> None:
    assert parse_box(text) is None


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | st.text("[]{}()<>box_2d|start\"',.:0123456789 -+eE\n`", max_size=80))
def test_reading_never_raises(text: str) -> None:
    found = parse_box(text)
    assert found is None or (len(found) == 4 and all(abs(v) <= 100_000 for v in found))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-2000, 9000) | st.floats(-2000, 9000, width=32), min_size=4, max_size=4))
def test_json_is_read_exactly(values: list[float]) -> None:
    assert parse_box(json.dumps({"bbox_2d": values})) == [float(v) for v in values]


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 1}', "[NaN]", "[-Infinity]", "1e400", "1" * 16, "[" * 100_000, "1 2", "", "{'a': 1}"],
)
def test_strict_json_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)


def test_conversion() -> None:
    """Thousandths of 640 x 480; Qwen2.5-VL's 1092 x 2408 pixels of a screen of 1080 x 2400."""
    assert convert([500, 250, 1000, 1000], (1000, 1000), (640, 480)) == [320, 120, 640, 480]
    assert convert([546, 602], (1092, 2408), (1080, 2400)) == [540, 600]
    assert convert(convert([3, 7], (640, 480), (1000, 1000)), (1000, 1000), (640, 480)) == [3, 7]


@pytest.mark.parametrize(
    ("box", "inside"),
    [
        ([10, 10, 20, 20], [10, 10, 20, 20]),
        ([-5, -5, 200, 20], [0, 0, 100, 20]),
        ([90, 40, 110, 60], [90, 40, 100, 50]),
        ([20, 10, 10, 20], None),
        ([10, 10, 10, 20], None),
        ([100, 10, 120, 20], None),
        ([-20, -20, 0, 0], None),
        ([-20, 60, 300, 70], None),
    ],
)
def test_clipping(box: list[float], inside: list[float] | None) -> None:
    """To an image of 100 x 50. What is swapped, flat or outside has no area in it."""
    assert clip_box(box, (100, 50)) == inside
