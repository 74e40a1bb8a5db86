"""The verifier behind servers: prompts' log-probabilities, by hand, from a server that tells characters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from tests.visual.test_step_verifier import question, shown

from selfverify.core.episode import PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Finish
from selfverify.visual.config import VisualConfig
from selfverify.visual.served_verifier import ServedModel, ServedVerifier
from selfverify.visual.stopping import LOG_RATIO, LOG_RATIO_PLAN
from selfverify.visual.verifier import StoppingVerifier
from serving_servers import Loop

STEP = "<think>5</think>crop 1 0 0 3 3"
SCALE = {"tuned": 0.25, "base": 0.5}


class Characters:
    """A server whose tokens are characters; each costs as many nats as `SCALE` says, a digit twice that.

    Args:
        fault: What goes wrong: ``refuses`` the field, tells ``nothing``, writes a ``template`` of its own.
        together: Passed by every turn that is to be measured.
    """

    def __init__(self, fault: str = "", together: asyncio.Barrier | None = None) -> None:
        self.fault, self.together = fault, together
        self.seen: list[dict[str, Any]] = []

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", self.chat)
        return app

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(body)
        if self.together is not None and "prompt_logprobs" in body and body["model"] == "tuned":
            await asyncio.wait_for(self.together.wait(), 20)
        text = "".join(f"<{m['role']}>{_text(m['content'])}" for m in body["messages"])
        text += "" if body.get("continue_final_message") else "<assistant>"
        if self.fault == "refuses" and "prompt_logprobs" in body:
            return web.json_response({"error": {"message": "no prompt_logprobs"}}, status=400)
        if self.fault == "template" and "prompt_logprobs" in body:
            text = text.replace("<assistant>", "<assistant><think>")
        scale = SCALE[body["model"]]
        logprobs = [None] + [
            {str(ord(c)): {"logprob": -scale * (1 + c.isdigit()), "decoded_token": c}, "0": {"logprob": 0.0}}
            for c in text[1:]
        ]
        reply = {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}]}
        more = {} if self.fault == "nothing" else {"prompt_logprobs": logprobs}
        return web.json_response({**reply, **more, "usage": {"prompt_tokens": len(text)}})


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "*") for part in content)


def verifier(servers: Loop, fake: Characters) -> ServedVerifier:
    """Both models behind one server."""
    url = servers.upstream(fake)  # type: ignore[arg-type]
    found = StoppingVerifier(VisualConfig(verifier=f"{url}#tuned", verifier_base=f"{url}#base")).listener(
        None
    )
    assert isinstance(found, ServedVerifier)
    return found


def said(text: str, turn: int = 0) -> PolicyTurn:
    return PolicyTurn(text, [], Finish.STOP, turn)


def test_a_step_by_hand(servers: Loop) -> None:
    """Each character counts .25, each digit .5; the plan is what stands before the call."""
    fake = Characters()
    listener = verifier(servers, fake)
    listener.begin({(0, 0): question(1), (1, 0): question(2)})
    first, other = said(STEP), said("<answer>5</answer>")
    listener.said({(0, 0): first, (1, 0): other})
    plan = len("<think>5</think>")
    assert first.values[LOG_RATIO] == pytest.approx(0.25 * (len(STEP) + 6))
    assert first.values[LOG_RATIO_PLAN] == pytest.approx(0.25 * (plan + 1))
    assert other.values == {LOG_RATIO: pytest.approx(0.25 * 19), LOG_RATIO_PLAN: 0.0}
    listener.shown({(0, 0): shown(1)})
    second = said("<think>5</think>crop 2 0 0 2 2", 1)
    listener.said({(0, 0): second})
    assert second.values[LOG_RATIO] == pytest.approx(0.25 * (len(second.text) + 6))
    whole = [body for body in fake.seen if "prompt_logprobs" in body][-1]
    assert [message["role"] for message in whole["messages"]] == ["user", "assistant", "user", "assistant"]
    assert [part["type"] for part in whole["messages"][2]["content"]] == ["text", "image_url"]
    assert whole["continue_final_message"] and not whole["add_generation_prompt"]


@pytest.mark.parametrize("turn", [0, 1])
def test_a_turn_that_is_taken_back(servers: Loop, turn: int) -> None:
    """It is not among the messages of what is said next."""
    fake = Characters()
    listener = verifier(servers, fake)
    listener.begin({(0, 0): question(1)})
    for before in range(turn):
        listener.said({(0, 0): said(STEP, before)})
        listener.shown({(0, 0): shown(before)})
    listener.said({(0, 0): said("crop 9", turn)})
    taken = shown(turn)
    taken.undo = True
    listener.shown({(0, 0): taken})
    listener.said({(0, 0): said("<answer>5</answer>", turn)})
    messages = [body for body in fake.seen if "prompt_logprobs" in body][-1]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[1]["content"] == (STEP if turn else "") and "crop 9" not in str(messages)


@pytest.mark.parametrize(
    ("fault", "why"), [("refuses", "refuses prompt_logprobs"), ("nothing", "needs vLLM")]
)
def test_a_server_that_cannot(servers: Loop, fault: str, why: str) -> None:
    """Nothing could ever be measured, which is said at once."""
    listener = verifier(servers, Characters(fault))
    listener.begin({(0, 0): question(1)})
    with pytest.raises(ConfigError, match=why):
        listener.said({(0, 0): said(STEP)})


def test_other_words_are_not_scored(servers: Loop, caplog: pytest.LogCaptureFixture) -> None:
    """A template that writes something before the message: noted, and nothing is measured any more."""
    listener = verifier(servers, Characters("template"))
    listener.begin({(0, 0): question(1)})
    words = said(STEP)
    listener.said({(0, 0): words})
    assert not words.values and "look/1" in caplog.text and "<think>" in caplog.text
    listener.shown({(0, 0): shown(1)})
    again = said("b", 1)
    listener.said({(0, 0): again})
    assert not again.values


def test_settings() -> None:
    """Both models behind servers, with names, and an ε."""
    for settings, why in (
        ({"verifier": "http://x#m"}, "needs its base behind one"),
        ({"verifier": "http://x", "verifier_base": "http://x#m"}, "URL#MODEL"),
        ({"verifier": "http://x#a", "verifier_base": "http://x#b", "stop": "verifier"}, "set epsilon"),
    ):
        with pytest.raises(ConfigError, match=why):
            StoppingVerifier(VisualConfig(**settings))
    with pytest.raises(ConfigError, match="URL#MODEL"):
        ServedModel.of("http://x", "verifier")
