"""Messages and the chat template: what it takes, what it must not leave out, and how it ends a turn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.policy.conftest import noise_image

from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.methods.sft import SFT
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import encode_demonstration
from selfverify.tasks.base import DemonstratedTurn, user_turn
from selfverify.tasks.word_sums import WordSums
from tables import read_tables, yaml_cases

LoadPolicy = Callable[..., Policy]

TEMPLATES: dict[str, str] = read_tables(Path(__file__).with_suffix(".yaml"))["templates"]
LOOPS, STRINGS = TEMPLATES["loops"], TEMPLATES["strings"]
CONTENT = "m.content | trim if m.content is string else ''"


@pytest.fixture(scope="module")
def with_template(load_policy: Any) -> LoadPolicy:
    """``with_template(template, kind="llama")``: a policy with this chat template, the same for each kind."""
    policies = {kind: load_policy(kind) for kind in ("tiny", "llama")}

    def make(template: Any, kind: str = "llama") -> Policy:
        policies[kind].tokenizer.chat_template = template
        return policies[kind]

    return make


def asked(*messages: tuple[str, Any], id: str = "p") -> Problem:
    return Problem(id, [{"role": role, "content": content} for role, content in messages])


def text_of(policy: Policy, problem: Problem) -> str:
    [prompt] = policy.encode([problem])
    return str(policy.tokenizer.decode(prompt.ids))


# --- words that a template leaves out -------------------------------------------------------------------


@pytest.mark.parametrize("words", ["Which colour is it?", "a", "User"])
def test_a_string_is_shown_where_the_template_loops_over_parts(with_template: Any, words: str) -> None:
    policy = with_template(LOOPS, "tiny")
    string, parts = asked(("user", words)), asked(("user", [{"type": "text", "text": words}]))
    assert text_of(policy, string) == text_of(policy, parts) == f"User: {words}<|im_end|>\nAssistant:"


def test_parts_are_shown_where_the_template_takes_strings(with_template: Any) -> None:
    """Also in a model that reads images, whose messages without any are strings then, not Python's."""
    for kind in ("tiny", "llama"):
        policy = with_template(STRINGS, kind)
        [prompt] = policy.encode([Problem("p", user_turn("Which colour is it?", images=0))])
        assert "user\nWhich colour is it?<|im_end|>" in policy.tokenizer.decode(prompt.ids)
    with pytest.raises(DataError, match=r"problem p: .*user says 'Which colour"):
        with_template(STRINGS, "tiny").encode(
            [Problem("p", user_turn("Which colour is it?"), [noise_image(1)])]
        )
    policy = with_template(STRINGS.replace(CONTENT, "m.content"), "tiny")
    assert "user\nRed?<|im_end|>" in text_of(policy, asked(("user", [{"type": "text", "text": "Red?"}])))


VIDEO = {"type": "video"}


@yaml_cases
def test_words_that_a_template_leaves_out_are_missed(
    with_template: Any, template: str, old: str, new: str, messages: list[Any], role: str
) -> None:
    with pytest.raises(DataError, match=rf"problem p: .*the {role} says '"):
        with_template(TEMPLATES[template].replace(old, new)).encode([asked(*messages)])


@yaml_cases
def test_what_templates_do_to_words_is_no_fault(with_template: Any, change: str, messages: list[Any]) -> None:
    """They trim, drop earlier thoughts, and write results of tools as JSON."""
    template = STRINGS.replace(CONTENT, change)
    assert len(with_template(template).encode([asked(*messages)])) == 1


@pytest.mark.parametrize(
    "content",
    [5, {"text": "?"}, ["?"], [{"text": "?"}], [{"type": "text"}], [{"type": "text", "text": 5}], [VIDEO]],
)
@pytest.mark.parametrize("kind", ["tiny", "llama"])
def test_contents_of_no_known_form_are_refused(with_template: Any, kind: str, content: Any) -> None:
    with pytest.raises(DataError, match=r"problem p: a message"):
        with_template(LOOPS, kind).encode([asked(("user", content))])


def test_half_characters_become_question_marks(policy: Policy) -> None:
    """JSON can hold them, so that a file of data may; no tokenizer takes them."""
    assert "a?b" in text_of(policy, asked(("user", "a\ud800b")))


# --- errors of templates --------------------------------------------------------------------------------


@yaml_cases
def test_whatever_a_template_raises_names_the_problem(with_template: Any, template: str, reason: str) -> None:
    with pytest.raises(DataError, match=rf"problem p: .*{reason}"):
        with_template(TEMPLATES.get(template, template)).encode(
            [asked(("system", "Be brief."), ("user", "Which?"))]
        )


@pytest.fixture
def write_templates(text_folders: dict[str, Path], tmp_path: Path) -> Callable[..., str]:
    """A copy of a text model's folder with this chat template in ``tokenizer_config.json``."""

    def write(template: Any) -> str:
        folder = tmp_path / "model"
        shutil.copytree(text_folders["llama"], folder)
        (folder / "chat_template.jinja").unlink()
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text()) | ({} if template is None else {"chat_template": template})
        file.write_text(json.dumps(settings))
        return str(folder)

    return write


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "no chat template"),
        ("", "it is empty"),
        ("{{ messages | no_such_filter }}", "no_such_filter"),
        ([{"name": "rag", "template": STRINGS}], "no default specified.*rag"),
        ([{"name": "default", "template": STRINGS}, {"name": "tool_use", "template": "{% if"}], "cannot be"),
    ],
)  # fmt: skip
def test_models_without_a_readable_template_are_refused_at_once(
    write_templates: Callable[..., str], template: Any, reason: str
) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.path: .*{reason}.*chat_template\.jinja"):
        Policy.load(write_templates(template), device="cpu")


def test_of_several_templates_the_default_is_taken_and_for_tools_theirs(
    write_templates: Callable[..., str],
) -> None:
    tools = [{"type": "function", "function": {"name": "zoom", "parameters": {}}}]
    named = [
        {"name": "default", "template": STRINGS},
        {"name": "tool_use", "template": "{{ tools | tojson }}" + STRINGS},
    ]
    policy = Policy.load(write_templates(named), device="cpu")
    plain = asked(("user", "Which?"))
    assert "zoom" not in text_of(policy, plain)
    assert '"name": "zoom"' in text_of(policy, replace(plain, tools=tools))


@pytest.mark.parametrize("content", ["{", "[]", '{"chat_template": [{"name": "x"}]}'])
def test_a_broken_file_of_a_template(tiny_folder: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    (tmp_path / "model" / "chat_template.json").write_text(content)
    with pytest.raises(ConfigError, match=r"chat_template\.json holds no chat template"):
        Policy.load(str(tmp_path / "model"), device="cpu")


# --- the end of a turn ----------------------------------------------------------------------------------


class Asking(Episode):
    """Asks once more."""

    def step(self, said: PolicyTurn) -> Observation:
        return Observation("Sure?", done=said.turn > 0)

    def result(self) -> EpisodeResult:
        return EpisodeResult({"answer": 1.0})


def ending_policy(load_policy: Any, template: str, stops: list[str], eos: str = "<eos>") -> Policy:
    """A policy with these stop tokens, of which ``eos`` is the tokenizer's own."""
    policy = load_policy("llama")
    tokenizer = policy.tokenizer
    tokenizer.add_special_tokens({"eos_token": eos})
    fresh = [token for token in stops if token not in tokenizer.get_vocab()]
    tokenizer.add_special_tokens({"additional_special_tokens": fresh}, replace_extra_special_tokens=False)
    policy.model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(token) for token in stops]
    tokenizer.chat_template = template
    return policy


@yaml_cases
def test_a_demonstration_ends_as_the_template_ends_a_turn(
    load_policy: Any, template: str, stops: list[str], end: str, talks: bool
) -> None:
    """If it ``talks``, prompt, turns and replies are the text that it writes, up to the last turn's end."""
    template = TEMPLATES[template]
    policy = ending_policy(load_policy, template, stops)
    task = WordSums()
    problem = task.problem("train", 0, 0)
    rollout = SFT().rollout(policy, task, [problem], [0], SamplingConfig())
    wanted = policy.tokenizer.convert_tokens_to_ids(end)
    for trajectory in rollout.groups[0].trajectories:
        assert trajectory.tokens[-1] == wanted and trajectory.tokens.count(wanted) == 1
    if not talks:
        return
    problem = asked(("user", "Which?"))
    told = encode_demonstration(policy, problem, Asking, [*map(DemonstratedTurn, ("First.", "Second."))])
    [prompt] = policy.encode([problem])
    found = policy.tokenizer.decode([*prompt.ids.tolist(), *told.tokens])
    turns = asked(("user", "Which?"), ("assistant", "First."), ("user", "Sure?"), ("assistant", "Second."))
    whole = policy.tokenizer.apply_chat_template(turns.messages, tokenize=False)
    assert found == whole[: whole.index("Second.") + len("Second.")] + end


def test_a_model_at_which_nothing_ends_is_refused(load_policy: Any) -> None:
    policy = load_policy("llama")
    policy.tokenizer.chat_template = TEMPLATES["nothing"]
    policy.tokenizer.eos_token = None
    policy.model.generation_config.eos_token_id = None
    with pytest.raises(ConfigError, match="eos_token"):
        SFT().rollout(policy, WordSums(), [WordSums().problem("train", 0, 0)], [0], SamplingConfig())


@pytest.mark.parametrize("given", ["5", [[5]], True, [2, 2.0], -1])
def test_stop_tokens_that_are_no_tokens_are_refused(load_policy: Any, given: Any) -> None:
    policy = load_policy("llama")
    policy.model.generation_config.eos_token_id = given
    with pytest.raises(ConfigError, match="in eos_token_id; write the id"):
        policy.stop_tokens  # noqa: B018 (reading it is what is tested)
