"""The tokenizer of the phone's small policy: calls and screens in few tokens."""

from __future__ import annotations

from selfverify.policy.tiny_models import text_tokenizer
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.rendering.writing import terse
from selfverify_phone.small_policy import WORDS, corpus, phrases
from selfverify_phone.templates import TEMPLATES


def test_calls_and_screens_cost_few_tokens() -> None:
    tokenizer = text_tokenizer(corpus(), phrases(), WORDS)

    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]]

    assert pieces('{"name": "tap", "arguments": {"id": "r3"}}') == [
        '{"name": "tap", "arguments": {"id": "',
        "r3",
        '"}}',
    ]
    assert pieces('{"name": "back", "arguments": {}}') == ['{"name": "back", "arguments": {}}']
    swipe = '{"name": "swipe", "arguments": {"direction": "up", "dist": "long"}}'
    assert len(pieces(swipe)) == 5
    submit = '{"name": "submit", "arguments": {"message": "Done.", "evidences": [3, 12]}}'
    assert len(pieces(submit)) == 8
    screens = [terse(make_task(name, 1000).phone().look()) for name in TEMPLATES]
    assert max(len(pieces(screen)) for screen in screens) <= 60
