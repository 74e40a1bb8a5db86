"""The tokens of prompts that nobody has counted."""

from __future__ import annotations

from typing import Any

import pytest

from selfverify.remote.prompt_size import prompt_tokens


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"model": "a-long-name-of-a-model", "user": "somebody"}, 0),
        ({"prompt": "x" * 400}, 100),
        ({"prompt": ["a", "b", "abcde"]}, 4),
        ({"prompt": "\u6f22" * 4}, 3),  # three bytes each
        ({"prompt": [7, 8, 9]}, 3),
        ({"prompt": [[7, 8], [9.0, True]]}, 4),
        ({"input": [1] * 50}, 50),
        ({"input": {"odd": [1, None, {"deep": 2}]}}, 1 + 1 + 1 + 1),
        ({"prompt": None, "input": 5, "messages": 3, "tools": "x"}, 2),
        ({"messages": [{"role": "user", "content": "7+2?"}]}, 1 + 1 + 2 + 1),
        ({"messages": [{"content": "data:text/plain,abcdefgh"}]}, 2 + 6),  # it is a text
        ({"messages": [{"content": [{"image_url": {"url": "data:image/png;base64,AAAA"}}]}]}, 2 + 3 + 1),
        ({"messages": [{"content": [{"input_audio": {"data": "A" * 999}}]}]}, 2 + 3 + 1),
        ({"messages": [{"seed": 5}]}, 1),
        ({"tools": [{"parameters": {"x" * 40: {}}}]}, 3 + 10),
        ({"suffix": "\ud800" * 8}, 2),
    ],
)  # fmt: skip
def test_an_estimate(body: dict[str, Any], tokens: int) -> None:
    assert prompt_tokens(body) == tokens
