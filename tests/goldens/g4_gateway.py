"""g4: chat requests with seeds to the gateway: plain, best-of, streamed, look and verify, byte for byte."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests

from goldens.tree import CASES, Tree

Body = dict[str, Any]
CHANGING = re.compile(r'"(id|created|request_id|system_fingerprint)": ?("[^"]*"|\d+)')
TOKENS = 32


def shown(tree: Tree, task: str) -> tuple[Any, str]:
    """Return the image of a task's first test problem as requests carry it, and the problem's text."""
    problem = tree.get("selfverify.experiments.registry:make_task")(task).problem("test", 0, 0)
    buffer = io.BytesIO()
    problem.images[0].save(buffer, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    text = next(part["text"] for part in problem.messages[-1]["content"] if part["type"] == "text")
    return {"type": "image_url", "image_url": {"url": url}}, text


def asked(model: str, text: str, *images: Any, **more: Any) -> Body:
    """Return a request."""
    content = [*images, {"type": "text", "text": text}]
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": TOKENS, **more}


def requests_of(model: str, image: Any, pick: str) -> list[Body]:
    """Return the requests of every way of answering."""
    bodies = [asked(model, pick, image, best_of=False, **more) for more in CASES["plain"]]
    for number, more in enumerate(CASES["best_of"]):
        bodies.append(asked(model, pick, image, seed=7 + number, best_of={"n": 4, **more}))
    for progress in ("comments", "events"):
        chosen_of = {"n": 3, "progress": progress}
        bodies.append(asked(model, pick, image, seed=30, stream=True, best_of=chosen_of))
    bodies += [
        asked(f"{model}@bo3,strategy=best", "Say 7.", seed=31),
        asked(f"{model}@plain", "Say 7.", seed=32),
        asked(model, pick, image, seed=33, max_tokens=3, best_of={"n": 2}),
    ]
    return bodies


def run(tree: Tree) -> None:
    """Ask an own model, one that looks again, and the fake server behind a gateway."""
    image, pick = shown(tree, "digits-pick")
    with served(tree, "--model", "builtin:digits", "-n", "4") as url:
        name = requests.get(f"{url}/models", timeout=60).json()["data"][0]["id"]
        for number, body in enumerate(requests_of(name, image, pick)):
            ask(tree, f"own {number}", url, "chat/completions", body)
        for number, verifier in enumerate((None, "soft", "judge")):
            answers = ["<think>.</think><answer>1 2 3</answer>", "<think>.</think><answer>4 5 6</answer>"]
            question = asked(name, pick, image)
            body = {"model": name, "messages": question["messages"], "answer": answers}
            body |= {} if verifier is None else {"verifier": verifier}
            ask(tree, f"verify {number}", url, "verify", body)
    looking = ["--look", "--tool", "crop", "--max-steps", "3"]
    with served(tree, "--model", "builtin:looking", *looking, "-n", "2") as url:
        name = requests.get(f"{url}/models", timeout=60).json()["data"][0]["id"]
        image, pick = shown(tree, "digits-far")
        for number, look in enumerate(({}, {"max_steps": 1}, {"stop": "after:1"}, {"max_visual_tokens": 80})):
            for best_of in (False, {"n": 2, "samples": True}):
                body = asked(name, pick, image, seed=40, look=look, best_of=best_of)
                ask(tree, f"look {number} {best_of is not False}", url, "chat/completions", body)
    behind_a_server(tree, image)


def behind_a_server(tree: Tree, image: Any) -> None:
    """Put the gateway before the fake server of the tests, and store what that is asked, too."""
    servers = tree.get("serving_servers")
    loop, fake = servers.Loop(), servers.FakeUpstream()
    try:
        with served(tree, "--upstream", loop.upstream(fake), "-n", "4") as url:
            for number, more in enumerate(CASES["before_a_server"]):
                fake.seen.clear()
                body = asked("m", "7+2?", *([] if number else [image]), **more)
                ask(tree, f"before a server {number}", url, "chat/completions", body)
                tree.row(f"asked of the server {number}", bodies=sorted(map(canonical, fake.seen)))
    finally:
        loop.close()


def canonical(body: Body) -> str:
    """Return a request as text with its keys in order."""
    return json.dumps(body, sort_keys=True)


def ask(tree: Tree, row: str, url: str, path: str, body: Body) -> None:
    """Send a request, and store the answer's status, type and bytes without what is drawn anew each time."""
    reply = requests.post(f"{url}/{path}", json=body, timeout=120)
    text = CHANGING.sub(lambda found: f'"{found[1]}": 0', reply.text)
    kind = reply.headers["Content-Type"]
    tree.row(row, status=reply.status_code, type=kind, lines=text.split("\n"))


@contextmanager
def served(tree: Tree, *options: str) -> Iterator[str]:
    """Run a gateway; yields its address."""
    words = tree.words("serve", *options, "--port", "0", "--grace", "5")
    process = subprocess.Popen([sys.executable, *words], cwd=tree.root, stderr=subprocess.PIPE, text=True)
    try:
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"http://\S+/v1", line):
                break
        else:
            raise RuntimeError(f"the gateway has not begun: {said[-2000:]}")
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
