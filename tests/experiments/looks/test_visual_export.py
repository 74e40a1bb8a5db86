"""LLaMA-Factory's and TRL's files: what is written is what is read again, by us, `datasets` and TRL."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.experiments.looks.looks_files import write_lines, write_looks
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.errors import ConfigError, DataError
from selfverify.data.rows import open_rows
from selfverify.experiments.visual_sets import export_looks, read_pairs


def plain(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Messages with images as their pixels, texts side by side joined."""
    found = []
    for message in messages:
        content = message["content"]
        parts: list[Any] = []
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "image":
                image = part["image"] if isinstance(part["image"], Image.Image) else part["image"].open()
                parts.append(image.convert("L").tobytes())
            elif parts and isinstance(parts[-1], str):
                parts[-1] += part["text"]
            else:
                parts.append(part["text"])
        found.append((message["role"], parts))
    return found


def pairs_in(path: Path, **how: Any) -> list[list[Any]]:
    """Prompt and sides of a file's pairs."""
    return [[plain(row[name]) for name in ("prompt", "chosen", "rejected")] for row in open_rows(path, **how)]


def test_llama_factory_reads_what_we_read(tmp_path: Path) -> None:
    """Its registry names both files; marks and images agree in number; we read the same again."""
    looks = write_looks(tmp_path / "looks")
    words = ["export", str(looks), "--format", "llama-factory", "--output", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, words)
    images = len(list((tmp_path / "out/images").iterdir()))
    assert shown.exit_code == 0 and f"2 traces, 2 pairs, {images} images" in shown.output, shown.output
    registry = json.loads((tmp_path / "out/dataset_info.json").read_text())
    for name, entry in registry.items():
        columns = entry["columns"]
        for row in map(json.loads, (tmp_path / "out" / entry["file_name"]).read_text().splitlines()):
            told = row[columns["messages"]]
            places = sum(message["content"].count("<image>") for message in told)
            assert places == len(row[columns["images"]]) >= 2
            assert all((tmp_path / "out" / image).is_file() for image in row["images"])
            # Turns alternate, as its sharegpt form has to have them.
            said = [entry["tags"]["user_tag"], entry["tags"]["assistant_tag"]] * len(told)
            assert [message[entry["tags"]["role_tag"]] for message in told] == said[: len(told)]
            assert (len(told) % 2 == 1) == entry.get("ranking", False), name
    ours = [plain(row["messages"]) for row in open_rows(looks / "sft.jsonl")]
    assert [plain(row["messages"]) for row in open_rows(tmp_path / "out/looks_sft.jsonl")] == ours
    first = [[prompt, a[:1], b[:1]] for prompt, a, b in pairs_in(looks / "pairs.jsonl")]
    assert pairs_in(tmp_path / "out/looks_pairs.jsonl") == first


def test_ms_swift_has_images_anywhere_and_learns_our_steps(tmp_path: Path) -> None:
    """Both sides are whole conversations with a list of images each; a prompt's turns are not learnt.

    Columns and types are those of ms-swift 4.6 (`swift/dataset/preprocessor/core.py`), which wants each
    message's keys among role, content and loss, and as many images as places.
    """
    looks = write_looks(tmp_path / "looks")
    words = ["export", str(looks), "--format", "ms-swift", "--output", str(tmp_path / "out"), "--json"]
    done = json.loads(CliRunner().invoke(app, words).stdout)
    assert done == {"traces": 2, "pairs": 2, "images": len(list((tmp_path / "out/images").iterdir()))}
    for name, prefixes in (("sft.jsonl", ("",)), ("pairs.jsonl", ("", "rejected_"))):
        rows = [json.loads(line) for line in (tmp_path / "out" / name).read_text().splitlines()]
        assert [set(row) for row in rows] == [
            {f"{p}{k}" for p in prefixes for k in ("messages", "images")}
        ] * 2
        for row, prefix in ((row, prefix) for row in rows for prefix in prefixes):
            told, images = row[f"{prefix}messages"], row[f"{prefix}images"]
            assert sum(message["content"].count("<image>") for message in told) == len(images) >= 2
            assert all((tmp_path / "out" / image).is_file() for image in images)
            assert [m["role"] for m in told] == (["user", "assistant"] * len(told))[: len(told)]
            assert all(set(m) == {"role", "content"} | ({"loss"} if m["role"] == "assistant" else set())
                       for m in told)  # fmt: skip
    for row, pair in zip(rows, read_pairs(looks), strict=True):
        for prefix, side in (("", pair.chosen), ("rejected_", pair.rejected)):
            told = [m for m in row[f"{prefix}messages"] if m["role"] == "assistant"]
            said = [m["content"] for m in side if m["role"] == "assistant"]
            assert [m["content"] for m in told if m["loss"]] == said and len(told) == len(said) + 1
    taught = [json.loads(line) for line in (tmp_path / "out/sft.jsonl").read_text().splitlines()]
    assert all(m["loss"] for row in taught for m in row["messages"] if m["role"] == "assistant")
    (looks / "sft.jsonl").write_text(
        (looks / "sft.jsonl").read_text().replace("What is p0", "What is <bbox> p0")
    )
    with pytest.raises(DataError, match="r0: a text has <bbox> in it"):
        export_looks(looks, tmp_path / "a", "ms-swift")


def test_datasets_and_trl_load_it(tmp_path: Path) -> None:
    """`datasets` decodes the images; TRL puts each into its place, and its template renders the pair."""
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl.data_utils", exc_type=ImportError)
    looks = write_looks(tmp_path / "looks")
    export_looks(looks, tmp_path / "out", "trl")
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "out/pairs.parquet"), split="train", cache_dir=cache
    )
    ours = pairs_in(looks / "pairs.jsonl")
    assert len(loaded) == len(ours) and isinstance(loaded[0]["images"][0], Image.Image)
    for row, (prompt, chosen, rejected) in zip(loaded, ours, strict=True):
        assert trl.is_conversational(row)
        filled = trl.prepare_multimodal_messages(row["prompt"], images=row["images"])
        assert plain(filled) == prompt
        for side, told in (("chosen", chosen), ("rejected", rejected)):
            assert plain(trl.prepare_multimodal_messages(row[side])) == told[:1]
    taught = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "out/sft.parquet"), split="train", cache_dir=cache
    )
    for row, told in zip(taught, open_rows(looks / "sft.jsonl"), strict=True):
        filled = trl.prepare_multimodal_messages(row["messages"], images=row["images"])
        assert plain(filled) == plain(told["messages"])


def test_other_forms_of_preferences(tmp_path: Path) -> None:
    """TRL's implicit prompts, and LLaMA-Factory's `conversations`."""
    user, yes, no = (
        {"role": "user", "content": "Is it?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "assistant", "content": "No."},
    )
    lines = [
        {"chosen": [user, yes], "rejected": [user, no]},
        {
            "conversations": [{"from": "human", "value": "Is it?"}],
            "chosen": {"from": "gpt", "value": "Yes."},
            "rejected": {"from": "gpt", "value": "No."},
        },
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    one, other = pairs_in(path)
    assert one == other == [[("user", ["Is it?"])], [("assistant", ["Yes."])], [("assistant", ["No."])]]
    told = {"conversations": [{"from": "human", "value": "<image>Is it?"}, {"from": "gpt", "value": "Yes."}]}
    buffer = io.BytesIO()
    Image.new("L", (4, 4)).save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    (tmp_path / "talk.json").write_text(json.dumps([told | {"images": ["a.png"]}]))
    [row] = open_rows(tmp_path / "talk.json", format="sharegpt")
    assert plain(row["messages"])[0] == ("user", [bytes(16), "Is it?"])


USER = {"role": "user", "content": "Is it?"}
SAY = {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": [USER], "chosen": [USER], "rejected": [SAY]}, "its chosen messages do not begin and end"),
        ({"prompt": [USER, SAY], "chosen": [SAY], "rejected": [SAY]}, "to end before the assistant speaks"),
        ({"prompt": "Is it?", "chosen": [SAY], "rejected": [SAY]}, "its prompt is 'Is it\\?', not a list"),
        ({"chosen": [USER, SAY], "rejected": [USER]}, "nothing is left of one of its sides"),
        (
            {"prompt": [USER], "chosen": [SAY], "rejected": [SAY], "images": ["a"]},
            "1 of its 1 images have no",
        ),
        ({"prompt": [USER], "chosen": [SAY], "rejected": [SAY], "chosen_cuts": [[["a", 3]]]}, "chosen_cuts"),
        ({"prompt": [USER], "chosen": [SAY, SAY], "rejected": [SAY]}, "message 3: before it the assistant"),
    ],
)
def test_damaged_pairs(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    """The file and the line are named."""
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        json.dumps({"prompt": [USER], "chosen": [SAY], "rejected": [SAY]}) + f"\n{json.dumps(row)}\n"
    )
    with pytest.raises(DataError, match=rf"pairs\.jsonl, line 2: .*{reason}"):
        open_rows(path, on_bad="refuse")


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    """Nor what stands in a set twice, as after two files were put together."""
    looks = write_looks(tmp_path / "looks")
    for path in (looks / "sft.jsonl", looks / "pairs.jsonl"):
        text = path.read_text()
        path.write_text(text * 2)
        twice = rf"{path.name}, line 3: .* stands in line 1, too; take one of them out"
        with pytest.raises(DataError, match=twice):
            export_looks(looks, tmp_path / "out", "trl")
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"there is no file .*sft\.jsonl"):
        export_looks(tmp_path, tmp_path / "a", "trl")
    text = (looks / "sft.jsonl").read_text()
    for mark in ("<image>", "<video>"):
        (looks / "sft.jsonl").write_text(text.replace("What is p0", f"What is {mark} p0"))
        with pytest.raises(DataError, match=f"r0: a text has {mark} in it"):
            export_looks(looks, tmp_path / "a", "llama-factory")
    (looks / "sft.jsonl").write_text(text.replace('"images/', '"images/../images/', 1))
    with pytest.raises(DataError, match="is no name of an image"):
        export_looks(looks, tmp_path / "a", "trl")
    (looks / "sft.jsonl").write_text(text)
    image = next((looks / "images").iterdir())
    for content in (b"", image.read_bytes()[:-20]):
        image.write_bytes(content)
        with pytest.raises(DataError, match=rf"the image .*{image.name} is damaged"):
            export_looks(looks, tmp_path / "b", "trl")
    image.unlink()
    with pytest.raises(DataError, match=rf"the image .*{image.name} is missing"):
        export_looks(looks, tmp_path / "b", "trl")


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("sft.jsonl", {"messages": [None]}, "message 0: a role is unknown"),
        ("sft.jsonl", {"messages": []}, "it has no messages"),
        ("sft.jsonl", {"messages": [USER | {"content": 5}]}, "message 0: a part is empty"),
        ("sft.jsonl", {"messages": [USER | {"content": [5]}]}, "message 0: a part is neither"),
        ("sft.jsonl", {"messages": [{"role": "user", "content": [{"type": "image", "image": 7}]}]}, "empty"),
        ("sft.jsonl", {"id": 7}, "it is no trace"),
        ("pairs.jsonl", {"prompt": []}, "prompt: it has no messages"),
        ("pairs.jsonl", {"chosen": []}, "chosen: it has no messages"),
        ("pairs.jsonl", {"chosen": [{"role": "assistant"}]}, "chosen: message 0: a part is empty"),
        ("pairs.jsonl", {"rejected": [SAY | {"content": [{"type": "text", "text": "x"}]}]}, "no text"),
        ("pairs.jsonl", {"rejected": [USER, SAY]}, "rejected: it begins and ends with a turn"),
    ],
)
def test_damaged_sets_name_their_line(tmp_path: Path, file: str, change: dict[str, Any], said: str) -> None:
    """Neither an export nor the leak test ends otherwise, and the export writes nothing of the set."""
    looks = write_looks(tmp_path / "looks")
    first, second = (json.loads(line) for line in (looks / file).read_text().splitlines())
    write_lines(looks / file, [first, second | change])
    for target in ("trl", "ms-swift", "llama-factory"):
        with pytest.raises(DataError, match=rf"{file}, line 2: .*{said}"):
            export_looks(looks, tmp_path / target, target)  # type: ignore[arg-type]
        assert not (tmp_path / target).exists()
    if file == "pairs.jsonl":
        with pytest.raises(DataError, match=rf"{file}, line 2: .*{said}"):
            [*read_pairs(looks)]
