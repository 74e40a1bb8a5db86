"""Data sets of the hub, asked of a small server on this machine: splits, configs, revisions, and errors.

No real hub has been asked. The program that asks runs in a process of its own, since its libraries read the
hub's address when they are imported.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from data_files import png

NAME = "owner/dots"
OLD, NEW = "0" * 40, "1" * 40
CARD = """\
---
configs:
- config_name: two
  data_files: [{split: test, path: two/*.parquet}]
- config_name: lines
  data_files: [{split: train, path: lines/train.jsonl}, {split: test, path: lines/test.jsonl}]
---
"""
PROGRAM = """\
import json, sys
from selfverify.data.rows import open_rows
for asked in json.loads(sys.argv[1]):
    try:
        rows = open_rows(**asked)
        found = [rows.format, [[r["id"], r["question"], len(r["images"])] for r in rows], len(rows.bad)]
    except Exception as error:
        found = [type(error).__name__, str(error)]
    print(json.dumps(found))
"""


def table(*questions: str) -> bytes:
    rows = [{"question": question, "answer": "1", "image": png(8, 6)} for question in questions]
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def lines(*questions: Any) -> bytes:
    return "".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in questions).encode()


FILES: dict[str, dict[str, bytes]] = {
    OLD: {"README.md": b"# old\n", "data/train-00000-of-00001.parquet": table("old")},
    NEW: {
        "README.md": CARD.encode(),
        "two/test-00000-of-00002.parquet": table("a", "b"),
        "two/test-00001-of-00002.parquet": table("c"),
        "lines/train.jsonl": lines("d", 5, "e"),
        "lines/test.jsonl": lines("f"),
    },
}


class Hub(BaseHTTPRequestHandler):
    """What `huggingface_hub` asks about one repository."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def send(self, body: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        asked = self.rfile.read(length)
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[0] == "api":
            parts = parts[1:]
        if parts[1:3] != NAME.split("/"):
            return self.send(b"{}", 404, X_Error_Code="RepoNotFound")
        kind, commit = (parts[3], parts[4]) if len(parts) > 4 else ("revision", "main")
        path = "/".join(parts[5:])
        commit = {"main": NEW, "v1": OLD}.get(commit, commit)
        if commit not in FILES:
            return self.send(b"{}", 404, X_Error_Code="RevisionNotFound")
        files = FILES[commit]
        if kind == "resolve":
            if path not in files:
                return self.send(b"{}", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            etag = f'"{hashlib.sha1(files[path]).hexdigest()}"'
            return self.send(files[path], ETag=etag, X_Repo_Commit=commit)
        entries = [
            {"type": "file", "path": name, "oid": hashlib.sha1(body).hexdigest(), "size": len(body)}
            for name, body in files.items()
        ]
        folders = sorted({name.rpartition("/")[0] for name in files} - {""})
        entries += [{"type": "directory", "path": name, "oid": "0", "size": 0} for name in folders]
        if kind == "tree":
            inside = [e for e in entries if str(e["path"]).startswith(f"{path}/" if path else "")]
            if "recursive=true" not in self.path.lower():
                inside = [e for e in inside if "/" not in str(e["path"]).removeprefix(f"{path}/")]
            return self.send(json.dumps(inside).encode(), Content_Type="application/json")
        if kind == "paths-info":
            wanted = json.loads(asked)["paths"]
            found = [e for e in entries if e["path"] in wanted]
            return self.send(json.dumps(found).encode(), Content_Type="application/json")
        siblings = [{"rfilename": name} for name in files]
        about = {"id": NAME, "sha": commit, "siblings": siblings, "private": False}
        return self.send(json.dumps(about).encode(), Content_Type="application/json")

    do_GET = do_HEAD = do_POST = answer


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(endpoint: str, folder: Path, *asked: dict[str, Any]) -> list[Any]:
    """What `open_rows` gives for each of these arguments, in a process that knows only this hub."""
    home = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
    # The package is imported from where this process has it.
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked)],
        env={**os.environ, **home, **paths, "HF_DATASETS_CACHE": str(folder / "cache")},
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_splits_configs_and_revisions(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "rows").write_bytes(lines("local"))
    found = ask(
        endpoint,
        tmp_path,
        {"path": NAME, "config": "two"},
        {"path": NAME, "config": "lines", "split": "train", "note_bad": False},
        {"path": NAME, "revision": "v1"},
        {"path": "here/rows"},
        {"path": NAME},
        {"path": NAME, "config": "lines"},
        {"path": NAME, "config": "lines", "split": "dev"},
        {"path": NAME, "revision": "v2"},
        {"path": "owner/nothing"},
        {"path": "owner/gone.jsonl"},
        {"path": "here/rows", "revision": "v1"},
    )
    name = "two/test-0000{}-of-00002/{}"
    assert found[0] == [
        "parquet", [[name.format(0, 0), "a", 1], [name.format(0, 1), "b", 1], [name.format(1, 0), "c", 1]], 0
    ]  # fmt: skip
    assert found[1] == ["jsonl", [["lines/train/0", "d", 0], ["lines/train/2", "e", 0]], 1]
    assert found[2] == ["parquet", [["data/train-00000-of-00001/0", "old", 1]], 0]
    assert found[3] == ["jsonl", [["rows/0", "local", 0]], 0]
    assert {kind for kind, _ in found[4:]} == {"ConfigError"}
    said = [text for _, text in found[4:]]
    assert "two" in said[0] and "lines" in said[0] and "train, test" in said[1] and "train, test" in said[2]
    assert "v2" in said[3] and "there is no file or folder owner/nothing" in said[4]
    assert "there is no file or folder owner/gone.jsonl" in said[5] and "for data sets of the hub" in said[6]
