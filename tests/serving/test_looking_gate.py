"""Looking again: the gateway's field `look`, and `selfverify solve --look`, of own models and of servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from aiohttp import web
from PIL import Image
from tests.visual.test_served_verifier import Characters
from tests.visual.test_step_verifier import adapted
from typer.testing import CliRunner

from sampled_threads import drawn, sampled_threads
from selfverify.cli.main import app
from selfverify.core.config import SamplingConfig
from selfverify.core.policy_config import AdapterConfig
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.serving.app import Gateway
from selfverify.serving.config import BestOfConfig, GatewayConfig
from selfverify.serving.local import Local
from selfverify.serving.visual import VisualGate
from selfverify.visual.config import VisualConfig
from serving_servers import CHAT, Body, FakeUpstream, Loop, data_url, png, tagged

CROP = {"image_index": 1, "bounding_box": [0, 0, 500, 500]}
STEP = json.dumps({"thought": "Closer.", "action_name": "crop", "action": CROP})
IMAGE = {"type": "image_url", "image_url": {"url": data_url(png((112, 112)))}}


def looks_once(body: Body, number: int) -> str:
    """A step, then an answer."""
    return STEP if len(body["messages"]) == 1 else tagged("9", "0.7")


def always_looks(body: Body, number: int) -> str:
    """Steps until it is told to answer."""
    return tagged("9", "0.7") if "question now" in json.dumps(body["messages"][-1]) else STEP


def asked(look: Any, **more: Any) -> Body:
    """A request."""
    content = [IMAGE, {"type": "text", "text": "What is there?"}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "best_of": {"n": 2}, **more}
    return body if look is None else body | {"look": look}


def told(address: str, body: Body) -> tuple[int, Body]:
    """Status and JSON."""
    reply = requests.post(f"{address}/{CHAT}", json=body, timeout=60)
    return reply.status_code, reply.json()


def before(servers: Loop, fake: FakeUpstream, **settings: Any) -> str:
    """A gateway before a server, that looks with crops."""
    address, gateway = servers.before(fake)
    gateway.looking = VisualGate(VisualConfig(**{"tools": ["crop"], "max_steps": 3, **settings}))
    return address


def test_a_server_looks_again(servers: Loop) -> None:
    """Each candidate is a conversation; the answer is the last turn, with its steps; crops go back."""
    fake = FakeUpstream(write=looks_once)
    address = before(servers, fake)
    status, reply = told(address, asked({}, seed=5, temperature=0.5))
    assert status == 200, reply
    [choice] = reply["choices"]
    assert choice["message"]["content"] == "<think>.</think><answer>9</answer>"
    assert choice["verification"]["score"] == 0.7 and choice["verification"]["answer"] == "9"
    assert [step["tool"] for step in choice["looks"]] == ["crop"]
    assert reply["best_of"]["samples_used"] == 2
    seeds = {body["seed"] for body in fake.seen}
    assert {5, 6} < seeds and len(seeds) == len(fake.seen) == 4
    assert all("look" not in body and body["temperature"] == 0.5 for body in fake.seen)
    last = max(fake.seen, key=lambda body: len(body["messages"]))
    assert [message["role"] for message in last["messages"]] == ["user", "assistant", "user"]
    assert last["messages"][2]["content"][-1]["type"] == "image_url"
    # Without the field nothing is looked at again.
    status, reply = told(address, asked(None))
    assert status == 200 and "looks" not in reply["choices"][0]


def test_what_a_request_may_say(servers: Loop) -> None:
    """Fewer steps, a rule, a limit of visual tokens, also without selection."""
    fake = FakeUpstream(write=always_looks)
    address = before(servers, fake)
    for look, count, why in (
        ({"max_steps": 2}, 2, "cap"),
        ({"stop": "after:1"}, 1, "rule"),
        ({}, 3, "cap"),
        # The question's image has 16 tokens of 28 x 28 pixels, and a crop of its quarter 4.
        ({"max_visual_tokens": 20}, 3, "cap"),
        ({"max_visual_tokens": 19}, 1, "visual"),
    ):
        status, reply = told(address, asked(look, best_of=False))
        assert status == 200, reply
        [choice] = reply["choices"]
        assert [step["stopped"] for step in choice["looks"]] == [""] * (count - 1) + [why], look
    assert choice["looks"][0]["images"] == [] and "is not shown" in json.dumps(fake.seen[-1]["messages"])


@pytest.mark.parametrize(
    ("look", "more", "param"),
    [
        ({"verifier": "/etc"}, {}, "look.verifier"),
        ({"max_steps": 4}, {}, "look.max_steps"),
        ({"max_steps": 0}, {}, "look.max_steps"),
        ({"max_steps": "3"}, {}, "look.max_steps"),
        ({"epsilon": 1}, {}, "look.epsilon"),
        ({"rule": "signed", "stop": "after:1"}, {}, "look.rule"),
        ({"tools": ["ocr"]}, {}, "look.tools"),
        ({"stop": "soon"}, {}, "look.stop"),
        ({"stop": "verifier"}, {}, "look.stop"),
        ({"max_visual_tokens": 101}, {}, "look.max_visual_tokens"),
        ({}, {"tools": [{"type": "function"}]}, "tools"),
        ({}, {"messages": [{"role": "user", "content": "Hi"}]}, "look"),
        ({}, {"best_of": {"verifier": "judge"}}, "best_of.verifier"),
    ],
)
def test_what_is_refused(servers: Loop, look: Body, more: Body, param: str) -> None:
    """Before the server is asked, with the field."""
    fake = FakeUpstream(write=looks_once)
    address = before(servers, fake, max_visual_tokens=100)
    status, reply = told(address, asked({"max_visual_tokens": 100, **look}, **more))
    assert (status, reply["error"]["param"]) == (400, param) and not fake.seen


def test_no_tools_are_those_of_the_operator(servers: Loop) -> None:
    """And not all that there are."""
    fake = FakeUpstream(write=looks_once)
    address = before(servers, fake)
    assert told(address, asked({"tools": []}, best_of=False))[0] == 200
    described = json.dumps(fake.seen[0]["messages"])
    assert "crop" in described and "zoom_in" not in described


def test_a_failing_server(servers: Loop) -> None:
    """The error is the server's; where some conversations come to an end they are chosen from."""
    fake = FakeUpstream(fault=lambda body: 500)
    status, reply = told(before(servers, fake), asked({}))
    assert status >= 500 and "told to fail" in reply["error"]["message"]
    half = FakeUpstream(write=looks_once, fault=lambda body: 400 if body["seed"] == 1 else None)
    status, reply = told(before(servers, half), asked({}, seed=0))
    assert status == 200 and reply["best_of"]["samples_missing"] == 1, reply


def test_a_verifier_ends_looking_of_a_server(servers: Loop, load_policy: Any, tmp_path: Any) -> None:
    """The operator names the verifier, the request the rule; an ε that is missing names no folder."""
    folder = tmp_path / "verifier"
    load_policy(lora=AdapterConfig(rank=4)).save(folder)
    address = before(servers, FakeUpstream(write=always_looks), verifier=str(folder))
    status, reply = told(address, asked({"stop": "verifier", "rule": "absolute", "epsilon": 0.1}))
    assert status == 200, reply
    [step] = reply["choices"][0]["looks"]
    assert step["stopped"] == "rule" and step["delta_r"] == 0.0
    status, reply = told(address, asked({"stop": "verifier"}))
    assert status == 400 and reply["error"]["param"] == "look.epsilon" and str(tmp_path) not in str(reply)


def test_conversations_with_a_server_are_side_by_side(
    servers: Loop, load_policy: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ask the server at the same time; the verifier reads their question once, and measures the same."""
    folder, readers, most = tmp_path / "verifier", list[Any](), list[int]()
    adapted(load_policy).save(folder)
    threads = Policy.threads

    def counted(policy: Policy, *about: Any, **more: Any) -> Any:
        readers.append(policy)
        return threads(policy, *about, **more)

    monkeypatch.setattr(Policy, "threads", counted)
    fake = FakeUpstream(write=always_looks, delay_s=0.2, fault=lambda body: most.append(fake.open))
    address = before(servers, fake, verifier=str(folder), max_steps=2)
    measured: dict[int, list[tuple[int, float]]] = {}
    for n in (1, 5):
        readers.clear()
        most.clear()
        events = streamed(address, asked({}, stream=True, best_of={"n": n, "progress": "events"}))
        looks = [found["look"] for name, found in events if name == "look"]
        measured[n] = sorted((step["step"], step["delta_r"]) for step in looks)
        assert len(readers) == 2 and max(most) == n and len(looks) == 2 * n
    assert all(abs(delta) > 1e-3 for _, delta in measured[1])
    for number, (step, delta) in enumerate(measured[5]):
        assert (step, delta) == pytest.approx(measured[1][number // 5], abs=1e-4)


@dataclass
class InStep(FakeUpstream):
    """Answers a turn when eight conversations wait for one, and fails where they never do."""

    together: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(8))

    async def _chat(self, request: web.Request, body: Body) -> web.StreamResponse:
        await asyncio.wait_for(self.together.wait(), 20)
        return await super()._chat(request, body)


@pytest.mark.parametrize("served", [False, True])
def test_requests_do_not_wait_for_the_verifier_of_others(
    servers: Loop, load_policy: Any, tmp_path: Any, served: bool
) -> None:
    """Each turn of eight requests is asked for, and measured by a server, while the others' are, too."""
    characters = Characters(together=asyncio.Barrier(8))
    url = servers.upstream(characters)  # type: ignore[arg-type]
    adapted(load_policy).save(tmp_path / "verifier")
    here = {"verifier": str(tmp_path / "verifier")}
    there = {"verifier": f"{url}#tuned", "verifier_base": f"{url}#base"}
    fake = InStep(write=always_looks)
    address = before(servers, fake, max_steps=2, **(there if served else here))

    with ThreadPoolExecutor(8) as clients:
        replies = list(clients.map(lambda _: told(address, asked({}, best_of=False)), range(8)))

    assert [status for status, _ in replies] == [200] * 8, replies
    deltas = [[step["delta_r"] for step in reply["choices"][0]["looks"]] for _, reply in replies]
    assert len(deltas[0]) == 2 and all(abs(delta) > 1e-3 for delta in deltas[0])
    assert all(measured == pytest.approx(deltas[0], abs=1e-4) for measured in deltas)


def writing(policy: Policy, write: Callable[[str], str]) -> None:
    """Let a policy say what ``write`` makes of the conversation so far."""

    def sample(prompts: Sequence[Prompt], sampling: SamplingConfig, *, seeds: Sequence[int]) -> Any:
        said = [write(policy.tokenizer.decode(prompt.ids)) for prompt in prompts]
        return [[drawn(policy, text)] * sampling.group_size for text in said]

    policy.threads = sampled_threads(policy, sample)  # type: ignore[method-assign, assignment]


def own_model(servers: Loop, policy: Policy) -> str:
    """A gateway whose own model crops once, and then answers."""
    writing(policy, lambda text: tagged("7", "0.4") if "part of image 1" in text else STEP)
    settings = GatewayConfig(best_of=BestOfConfig(n=2, verifier="inline"))
    return servers.gateway(
        Gateway(Local(policy, "m"), settings, looking=VisualGate(VisualConfig(tools=["crop"])))
    )


def test_an_own_model_looks_again(servers: Loop, load_policy: Callable[..., Policy]) -> None:
    """The answer of the last turn, its steps and its own score."""
    address = own_model(servers, load_policy())
    status, reply = told(address, asked({"max_steps": 2}, max_tokens=200))
    assert status == 200, reply
    [choice] = reply["choices"]
    assert choice["message"]["content"] == "<think>.</think><answer>7</answer>"
    assert choice["verification"]["score"] == 0.4 and choice["verification"]["answer"] == "7"
    assert [(step["tool"], step["images"]) for step in choice["looks"]] == [("crop", [2])]
    assert reply["usage"]["prompt_tokens"] > 16 and reply["best_of"]["samples_used"] == 2
    # A limit counts the tokens that the model itself makes of images.
    status, reply = told(address, asked({"max_visual_tokens": 1}, max_tokens=200))
    assert status == 200 and reply["choices"][0]["looks"][0]["stopped"] == "visual", reply


def streamed(address: str, body: Body) -> list[tuple[str, Any]]:
    """The named events of a stream, in order."""
    reply, found = requests.post(f"{address}/{CHAT}", json=body, timeout=60), []
    for block in reply.text.split("\n\n"):
        name, _, data = block.partition("\n")
        if name.startswith("event: "):
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_steps_are_told_while_they_are_made(servers: Loop, load_policy: Callable[..., Policy]) -> None:
    """Both conversations tell of their step before their candidate comes, which names them."""
    server = before(servers, FakeUpstream(write=looks_once))
    asking = asked({}, stream=True, max_tokens=200, best_of={"n": 2, "progress": "events"})
    for address in (server, own_model(servers, load_policy())):
        events = streamed(address, asking)
        looks = [found for name, found in events if name == "look"]
        steps = {found["conversation"]: found["look"] for found in looks}
        assert sorted(steps) == [0, 1] and all(found["of"] == 2 for found in looks)
        assert not any("error" in found for found in looks)  # clients would take it for the stream's
        for step in steps.values():
            assert (step["tool"], step["images"], step["step"]) == ("crop", [2], 1)
            assert step["sources"][0]["of"] == [112, 112]
        told = []
        for name, found in events:
            if name == "candidate":
                assert found["conversation"] in told and found["index"] in (0, 1)
                assert (found["answer"], found["score"]) in (("9", 0.7), ("7", 0.4))
            told.append(found["conversation"])
        assert [name for name, _ in events].count("candidate") == 2
    # Comments say nothing of steps.
    assert streamed(server, asked({}, stream=True)) == []


# --- the command --------------------------------------------------------------------------------------------


ALL = (
    "crop", "zoom_in", "grounding", "visual_search", "depth", "ocr", "segment", "caption", "similarity",
    "overlay", "terminate",
)  # fmt: skip


def run(*words: str) -> Any:
    return CliRunner().invoke(app, [*words])


@pytest.fixture
def street(tmp_path: Path) -> str:
    path = tmp_path / "street.png"
    Image.new("RGB", (64, 64), "white").save(path)
    return str(path)


def test_the_command_lets_a_server_look_again(servers: Loop, street: str) -> None:
    """The crop goes back to it as an image behind its own words, and what it did is told."""
    fake = FakeUpstream(write=looks_once, knows_logprobs=False)
    words = ["--look", "--server", servers.upstream(fake), "--image", street, "What?", "-n", "2"]
    shown = run("solve", *words)
    assert shown.exit_code == 0, shown.output
    assert "answer: 9" in shown.output and "step 1: crop image_index 1" in " ".join(shown.output.split())
    first = min(fake.seen, key=lambda body: len(body["messages"]))
    assert "tools" not in first and '"name": "crop"' in first["messages"][0]["content"][-1]["text"]
    assert {0, 1} < {body["seed"] for body in fake.seen} and {body["model"] for body in fake.seen} == {"m"}
    record = json.loads(run("solve", *words, "--json").stdout)
    assert [[step["tool"] for step in steps] for steps in record["looks"]] == [["crop"], ["crop"]]
    assert record["choice"]["answer"] == "9" and record["candidates"][0]["score"] == 0.7


def test_a_model_that_runs_here() -> None:
    """Turns that are cut off are told, and the last one is the answer."""
    words = ["--task", "digits-pick", "--index", "3", "--look", "-n", "2", "--tool", "crop"]
    record = json.loads(run("solve", *words, "--max-new-tokens", "16", "--json").stdout)
    assert len(record["candidates"]) == 2
    for steps in record["looks"]:
        assert ["cut off" in step["error"] for step in steps] == [True] * 3 and steps[-1][
            "stopped"
        ] == "errors"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-steps", "2"], "--max-steps needs --look"),
        (["--look", "--stop-looking", "verifier"], "needs the verifier's folder"),
        (["--look", "--turns", "2"], "take one"),
        (["--look", "--server", "http://127.0.0.1:9", "--verifier", "judge"], "reads the scores"),
        (["--look", "--tool", "rotate"], "no tool 'rotate'"),
        (["--look", "--stop-looking", "delta"], "no rule 'delta'"),
    ],
)
def test_settings_that_do_not_go_together(words: list[str], said: str) -> None:
    """Each is named before anything is asked."""
    shown = run("solve", "--task", "digits-pick", *words)
    assert shown.exit_code == 2 and said in " ".join(shown.output.split())


def test_the_list_of_tools() -> None:
    """Each tool says whether it is available here."""
    shown = run("visual")
    assert shown.exit_code == 0 and all(name in shown.output for name in ALL)
    assert "no model is named" in " ".join(shown.output.split())
    words = ["solve", "--task", "digits-pick", "--look", "--tool", "depth", "--depth-model", "/nowhere"]
    refused = " ".join(run(*words).output.split())
    assert "depth_model: /nowhere is no folder" in refused
