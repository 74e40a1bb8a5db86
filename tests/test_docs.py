"""docs/python.md and the README run as written, and docs/adpo.md explains whatever a run writes down."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.policy.test_tool_templates import QWEN3

from selfverify.core.config import RolloutLimits
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_method
from selfverify.methods.adapo import AdaPOADPOConfig, AdaPOConfig
from selfverify.methods.adpo import ADPOConfig
from selfverify.methods.metrics import group_metrics
from selfverify.methods.score import SCoReConfig
from selfverify.methods.sft import TurnsSFTConfig
from selfverify.methods.star import STaRConfig
from selfverify.policy import loading
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import recite

DOCS = Path(__file__).parents[1] / "docs"
PAGE, ADPO_PAGE, ADAPO_PAGE = DOCS / "python.md", DOCS / "adpo.md", DOCS / "adapo.md"
EPISODES_PAGE = DOCS / "episodes.md"


@pytest.fixture
def builtin_digits(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``builtin:digits`` is there: the shipped policy, or else a tiny one of the same kind."""
    if not (loading.BUILTIN / "digits" / "config.json").is_file():
        shutil.copytree(tiny_folder, tmp_path / "builtin" / "digits")
        monkeypatch.setattr(loading, "BUILTIN", tmp_path / "builtin")


def explained(page: Path = ADPO_PAGE) -> set[str]:
    """What stands in code marks in the first column of a table of a page."""
    rows = re.findall(r"^\|(.*?)\|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def last_row(path: Path) -> dict[str, Any]:
    """The last line of a metrics file."""
    row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    return row


def test_adpo_options_are_explained() -> None:
    """Every option has a row with the default it really has."""
    page = ADPO_PAGE.read_text(encoding="utf-8")
    for name, field in ADPOConfig.model_fields.items():
        default = str(field.default).lower()
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` |")), None)
        assert row is not None, f"docs/adpo.md has no row for {name}"
        assert row.split("|")[2].strip().strip("`") == default, f"{name} is {default} by default: {row}"


def test_adapo_options_are_explained() -> None:
    """Every option has a row; AdaPO's own (the page's first table of options) with its default."""
    page = ADAPO_PAGE.read_text(encoding="utf-8")
    for config in (AdaPOConfig, SCoReConfig, STaRConfig, TurnsSFTConfig):
        assert not config.model_fields.keys() - explained(ADAPO_PAGE)
    assert not AdaPOADPOConfig.model_fields.keys() - explained() - explained(ADAPO_PAGE)
    for name, field in AdaPOConfig.model_fields.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        if name != "second_turn":  # a whole sentence
            assert row.split("|")[2].strip().strip("`") == str(field.default).lower(), row


def test_adapo_metrics_are_explained() -> None:
    """Those of a step in which every kind of trajectory occurs."""
    rewards = {"answer": 1.0, "answer_format": 1.0, "score_format": 1.0}
    rows = [
        Trajectory(
            [Segment("turn_1", [1], finish="stop"), Segment("turn_2", [1], finish="stop")],
            rewards=rewards | {"correct_1": first, "correct": second},
        )
        for first in (0.0, 1.0)
        for second in (0.0, 1.0)
    ]
    group, method = Group(Problem("p", []), rows), make_method("adapo")
    method.credit(group, torch.ones(4, dtype=torch.bool))
    logged = method.metrics([group])
    assert {"turns/corrected", "turns/spoiled", "reward/trajectory"} <= logged.keys()
    assert not logged.keys() - explained() - explained(ADAPO_PAGE)
    others = make_method("score").metrics([group]).keys() | make_method("star").metrics([group]).keys()
    assert not others - explained() - explained(ADAPO_PAGE)


def test_method_metrics_are_explained() -> None:
    """Also those that a run logs only when there is something to measure."""
    rewards = {"answer": 1.0, "correct": 1.0, "answer_format": 1.0, "score_format": 1.0, "verification": 1.0}
    good = Trajectory([Segment("answer", [1], finish="stop")], {"sampled": 1.0}, rewards)
    bad = Trajectory([Segment("answer", [1], finish="stop")], {"sampled": 0.0}, rewards | {"correct": 0.0})
    logged = group_metrics([Group(Problem("p", []), [good, bad])])
    assert {"verification/auc", "verification/correct_given_reward1"} <= logged.keys()
    assert not logged.keys() - explained()


def named_files(page: Path) -> set[str]:
    """Paths in a page's code marks and blocks: below a folder of ours, or modules below the package."""
    text = page.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
    top = r"(?:recipes|docs|src|environments|benchmarks|reproduce|examples|tests|selfverify)/[\w.*/-]*\w"
    layers = [folder.name for folder in (DOCS.parent / "src" / "selfverify").iterdir() if folder.is_dir()]
    return set(re.findall(rf"(?<![\w./<-])(?:{top}|(?:{'|'.join(layers)})/[\w/]*\.py)\b", code))


PAGES = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """As seen from the repository's top, from ``src``, or from the package."""
    root = DOCS.parent
    to_be_written = (
        {"tasks/digits_count.py", "methods/rloo.py", "tasks/guess.py"}
        if page.name == "CONTRIBUTING.md"
        else set()
    )
    places = (root, root / "src", root / "src" / "selfverify")
    missing = {name for name in named_files(page) if not any(any(place.glob(name)) for place in places)}
    assert missing == to_be_written


def test_named_files_are_found(tmp_path: Path) -> None:
    """So that the test above can fail."""
    page = tmp_path / "page.md"
    page.write_text(
        "`docs/no.md`, `python tests/gone.py -x`, `core/lost.py`, `runs/docs/x`\n"
        "```sh\ncat recipes/a.yaml\n```"
    )
    assert named_files(page) == {"docs/no.md", "tests/gone.py", "core/lost.py", "recipes/a.yaml"}


@pytest.mark.usefixtures("builtin_digits")
def test_python_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks together are one program, whose run folders hold nothing that is not explained."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(program))
    assert names["figures"]["problems"] == 4
    for run in ("by-hand", "near-sum", "recipe"):
        assert (tmp_path / "runs" / run / "metrics.jsonl").is_file()
    recipe = tmp_path / "runs" / "recipe"
    logged = last_row(recipe / "metrics.jsonl").keys() | last_row(recipe / "timing.jsonl").keys()
    summary = json.loads((recipe / "metrics.json").read_text(encoding="utf-8"))["after"]
    written = logged - {"step"} | {name.replace("@4", "@N") for name in summary}
    assert not written - explained()


def test_episodes_page(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """Its environments run as written: a shop in which mistakes are told, and a remote one."""
    blocks = re.findall(r"```python\n(.*?)```", EPISODES_PAGE.read_text("utf-8"), re.DOTALL)
    shop, remote = (tmp_path / name for name in ("shop.py", "remote.py"))
    for program, block in zip((shop, remote), blocks, strict=True):
        program.write_text(block, encoding="utf-8")
    task = runpy.run_path(str(shop))["Shopping"]()
    problem, policy = task.problem("train", 0, 0), load_policy()
    policy.tokenizer.chat_template = QWEN3
    turns = []
    for name, arguments in (("price", '{"fruit": "fig"}'), ("pay", "{}"), ("pay", '{"crowns": 13}')):
        call = f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call><|im_end|>'
        ids = policy.tokenizer(call, add_special_tokens=False)["input_ids"]
        turns.append(Sample(ids, [0.0] * len(ids), Finish.STOP))
    made = recite(policy, problem, task.open(problem, 0), turns)
    assert "there are only apple, pear" in made.text and "'crowns': Field required" in made.text
    assert made.rewards["correct"] == 1.0 and made.rewards["tool_errors"] == 2.0
    found = runpy.run_path(str(remote))
    made = recite(policy, problem, found["Remote"](), turns)
    found["LOOP"].close()
    assert "You said" in made.segments[1].text and len(made.segments) == 5


def test_limits_of_episodes_are_explained() -> None:
    """Each with its default."""
    for name, field in RolloutLimits.model_fields.items():
        row = next(line for line in EPISODES_PAGE.read_text("utf-8").splitlines() if f"| `{name}` |" in line)
        default = "none" if field.default is None else f"{field.default:g}"
        assert row.split("|")[2].strip() == default, row


def test_readme_example_runs(builtin_digits: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is written, but for fewer steps and problems."""
    [example] = re.findall(r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text("utf-8"), re.DOTALL)
    for long, short in (("steps=50", "steps=1"), ("per_step=8", "per_step=2"), ("problems=64", "problems=4")):
        assert long in example
        example = example.replace(long, short)
    script = tmp_path / "readme.py"
    script.write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(script))
    assert found["figures"]["problems"] == 4
    assert (tmp_path / "my-model" / "model.safetensors").is_file()


def commands() -> list[str]:
    """Every ``selfverify train`` and ``selfverify eval`` of a built-in recipe in the README and the docs."""
    pages = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
    blocks = [
        block
        for page in pages
        for block in re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if re.match(r"selfverify (train|eval) [a-z]", line)]


@pytest.mark.parametrize("line", commands())
def test_commands_are_accepted(line: str) -> None:
    """Every recipe and override exists; only a model that another command makes may be missing."""
    words = [word for word in shlex.split(line, comments=True)[2:] if not word.startswith("--")]
    if words[0].startswith("runs/"):
        return
    recipe, overrides = words[0], [word for word in words[1:] if "=" in word]
    faults: list[str] = []
    try:
        load_recipe(recipe, overrides)
    except ConfigError as error:
        faults = [line for line in str(error).splitlines() if "there is no such model folder" not in line]
    assert not faults
