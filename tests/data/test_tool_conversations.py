"""Conversations with tools, as verl's files hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from selfverify.core.errors import ConfigError, DataError
from selfverify.data.conversations import write_conversations
from selfverify.data.rows import open_rows


def called(number: str, name: str, **arguments: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def taking(name: str, parameter: str) -> dict[str, Any]:
    known = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    function = {"name": name, "description": f"Calls {name}.", "parameters": known}
    return {"type": "function", "function": function}


TOOLS = [taking("tap", "id"), taking("type", "text_input")]
SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "You operate a phone."},
    {"role": "user", "content": "Write it down."},
    {"role": "assistant", "content": "I tap the field.", "tool_calls": [called("0", "tap", id="f")]},
    {"role": "tool", "content": "## Round 1\nA field."},
    {"role": "assistant", "content": None, "tool_calls": [called("1", "type", text_input="it")]},
    {"role": "user", "content": "Thank you."},
]
TAP, TYPE = {"name": "tap", "arguments": {"id": "f"}}, {"name": "type", "arguments": {"text_input": "it"}}
TAPPED = {"role": "assistant", "content": "I tap the field.", "calls": [TAP]}
READ = [*SAID[:2], TAPPED, SAID[3], {"role": "assistant", "content": "", "calls": [TYPE]}, SAID[5]]


def test_parquet_with_nested_columns(tmp_path: Path) -> None:
    """As verl's own files: every struct has the fields of all, null where it has none."""
    path = tmp_path / "sft.parquet"
    parquet.write_table(pa.Table.from_pylist([{"messages": SAID, "tools": TOOLS}] * 3), path)
    stored = parquet.read_table(path).to_pylist()[0]
    assert stored["messages"][2]["tool_calls"][0]["function"]["arguments"] == {"id": "f", "text_input": None}
    rows = open_rows(path)
    assert len(rows) == 3 and not rows.bad and rows[2]["id"] == "sft/2"
    assert rows[0]["messages"] == READ and rows[0]["tools"] == TOOLS and rows[0]["taught"] == "all"


def test_columns_as_json(tmp_path: Path) -> None:
    said = json.loads(json.dumps(SAID))
    for message in said:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    row = {"messages": json.dumps(said), "tools": json.dumps(TOOLS)}
    row |= {"id": "a", "app": "notes", "taught": "last"}
    (tmp_path / "sft.jsonl").write_text(json.dumps(row) + "\n")
    [found] = open_rows(tmp_path / "sft.jsonl")
    assert found["messages"] == READ and found["tools"] == TOOLS
    assert (found["id"], found["category"], found["taught"]) == ("sft/a", "notes", "last")


def test_text_in_parts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "c"}]}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    [found] = open_rows(tmp_path / "x.jsonl")
    assert found["messages"][0]["content"] == "ab" and found["tools"] == []


def bad(**changes: Any) -> dict[str, Any]:
    return {"messages": SAID, "tools": TOOLS, **changes}


USER, HELLO = {"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}


def calling(call: dict[str, Any]) -> dict[str, Any]:
    return bad(messages=[USER, {**HELLO, "tool_calls": [call]}])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (bad(messages=[USER]), "its messages have none of an assistant"),
        (bad(messages=[]), "its messages is empty"),
        (bad(messages="[{"), "its messages is .*, not a list"),
        (bad(messages=[HELLO, USER]), "message 1: its role is assistant: a user has to ask first"),
        (bad(messages=[USER, {"role": "bot", "content": "x"}]), "message 2: its role is 'bot'"),
        (bad(messages=[USER, "x"]), "message 2 is 'x', not an object"),
        (bad(messages=[USER, {"role": "assistant", "content": ""}]), "message 2: it is empty"),
        (bad(messages=[USER, {"role": "assistant", "content": 3}]), "message 2: its content is 3"),
        (bad(messages=[{"role": "user", "content": [{"type": "image"}]}, HELLO]), "message 1: .*0 images"),
        (calling({"function": {"arguments": {}}}), "message 2, call 1 is .* name of a function"),
        (calling({"name": "tap", "arguments": "{"}), "message 2, call 1: arguments is .*not an object"),
        (bad(messages=[{**USER, "tool_calls": [{"name": "tap"}]}, HELLO]), "role user calls tools"),
        (bad(messages=[USER, HELLO, HELLO]), "message 3: before it the assistant has spoken, then nobody"),
        (bad(messages=[USER, HELLO, USER, {"role": "tool", "content": "x"}, HELLO]), "message 5: before it"),
        (bad(tools=[{"name": "tap"}]), "tool 1 is .* it needs a function with a name"),
        (bad(taught="some"), "its taught is 'some', neither all nor last"),
        (bad(images=["a.png"]), "1 of its 1 images have no place"),
        (bad(image="a.png"), "1 of its 1 images have no place"),  # LLaVA's column
        (bad(messages=[{**USER, "content": "<image>"}, HELLO]), "message 1: it has a place <image>"),
        (bad(images=["a"], messages=[{**USER, "content": "<image> <image>"}, HELLO]), "its 1 images"),
        (bad(messages=[{**USER, "content": [{"type": "video"}]}, HELLO]), "neither text nor an image"),
        (bad(messages=[USER, {**HELLO, "content": [{"type": "image", "image": "a"}]}]), "shows images"),
        (bad(cuts=[[["plan", 0]]]), "its cuts are of 1 turns, and the assistant speaks 2 times"),
        (bad(cuts=[[["a", 0]], [["a", 1]]]), "its cuts of turn 2 are .*, which do not divide it"),
        (bad(cuts=[[["a", 0], ["b", 9999]], []]), "its cuts of turn 1 are .*, which do not divide it"),
    ],
)
def test_damage_names_file_and_row(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    path = tmp_path / "sft.jsonl"
    path.write_text(json.dumps(bad()) + "\n" + json.dumps(row) + "\n")
    rows = open_rows(path, note_bad=False)
    assert len(rows) == 1
    [broken] = rows.bad
    assert str(broken).startswith(f"{path}, line 2: ")
    with pytest.raises(DataError, match=rf"sft\.jsonl, line 2: .*{reason}"):
        open_rows(path, on_bad="refuse")


def test_questions_stay_questions(tmp_path: Path) -> None:
    row = {"question": "7+2?", "answer": "9", "messages": [USER, HELLO]}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    assert open_rows(tmp_path / "q.jsonl")[0]["question"] == "7+2?"


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_what_is_written_reads_back(tmp_path: Path, suffix: str) -> None:
    """Also in several row groups, with half characters, and as plain structs of role and content."""
    messages = [USER, {"role": "assistant", "content": "x <tool_call>\n{}\n</tool_call> \ud800é"}]
    rows = [
        {"messages": messages, "tools": TOOLS, "id": str(n), "reward": n / 2, "correct": n > 3}
        for n in range(600)
    ]
    path = tmp_path / "out" / f"made{suffix}"
    assert write_conversations(path, iter(rows)) == 600
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    found = open_rows(path)
    assert len(found) == 600 and found[599]["id"] == "made/599" and found[7]["tools"] == TOOLS
    assert found[7]["messages"][1]["content"] == "x <tool_call>\n{}\n</tool_call> ?é"
    if suffix == ".parquet":
        schema = parquet.read_schema(path)
        assert schema.field("messages").type == pa.list_(
            pa.struct([("role", pa.string()), ("content", pa.string())])
        )
        assert parquet.ParquetFile(path).num_row_groups > 1


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.csv: conversations are written as \.parquet or \.jsonl"):
        write_conversations(tmp_path / "x.csv", [])
    with pytest.raises(DataError, match="there are no conversations to write"):
        write_conversations(tmp_path / "x.parquet", [])
    with pytest.raises(DataError, match="its rows have different columns"):
        write_conversations(tmp_path / "x.parquet", [{"messages": [USER]}] * 300 + [{"messages": 3}])
    assert not [*tmp_path.iterdir()]
