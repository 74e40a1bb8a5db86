"""Programs of the docs and the README run as written, and files and commands that pages name exist."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from tests.policy.test_tool_templates import QWEN3
from typer.core import TyperGroup

from sampled_threads import drawn
from selfverify.cli.main import app
from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import load_recipe
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "python.md"
EPISODES_PAGE = DOCS / "episodes.md"


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
    places = (root, root / "src", root / "src" / "selfverify")
    missing = {name for name in named_files(page) if not any(any(place.glob(name)) for place in places)}
    assert not missing


def test_named_files_are_found(tmp_path: Path) -> None:
    """So that the test above can fail."""
    page = tmp_path / "page.md"
    page.write_text(
        "`docs/no.md`, `python tests/gone.py -x`, `core/lost.py`, `runs/docs/x`\n"
        "```sh\ncat recipes/a.yaml\n```"
    )
    assert named_files(page) == {"docs/no.md", "tests/gone.py", "core/lost.py", "recipes/a.yaml"}


def test_python_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks together are one program."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(program))
    assert names["figures"]["problems"] == 4
    for run in ("by-hand", "recipe"):
        assert (tmp_path / "runs" / run / "metrics.jsonl").is_file()


def test_episodes_page(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """Its environments run as written: a shop in which mistakes are told, and a remote one."""
    blocks = re.findall(r"```python\n(.*?)```", EPISODES_PAGE.read_text("utf-8"), re.DOTALL)
    shop, remote = (tmp_path / name for name in ("shop.py", "remote.py"))
    for program, block in zip((shop, remote), blocks, strict=True):
        program.write_text(block, encoding="utf-8")
    task = runpy.run_path(str(shop))["Shopping"]()
    problem, policy = task.problem("train", 0, 0), load_policy()
    policy.tokenizer.chat_template = QWEN3
    calls = (("price", '{"fruit": "fig"}'), ("pay", "{}"), ("pay", '{"crowns": 13}'))
    turns = [
        drawn(policy, f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>')
        for name, arguments in calls
    ]
    made = recite(policy, problem, task.open(problem, 0), turns)
    assert "there are only apple, pear" in made.text and "'crowns': Field required" in made.text
    assert made.rewards["correct"] == 1.0 and made.rewards["tool_errors"] == 2.0
    found = runpy.run_path(str(remote))
    made = recite(policy, problem, found["Remote"](), turns)
    assert "You said" in made.segments[1].text and len(made.segments) == 5


def test_readme_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def commands(pattern: str) -> list[str]:
    """The lines of shell blocks in the README and the docs that begin like this."""
    pages = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
    blocks = [
        block
        for page in pages
        for block in re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    lines = [
        re.sub(r"^(?:[A-Z_]+=\S+ )+", "", line)  # variables of the environment
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if re.match(pattern, line)]


NOT_RUN = ("#", "adb ", "curl ", "vllm ", "torchrun ")
"""Other programs' commands, and requests to servers that run."""


def test_other_commands_exist() -> None:
    """Modules, targets of make, extras and folders; what is left belongs to other programs."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for line in commands(rf"(?!selfverify |{'|'.join(NOT_RUN)})\S"):
        match shlex.split(line.partition("  #")[0].split("&&")[-1]):
            case ["python", "-m", module, *_]:
                assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), line
            case ["python", program, *_]:
                assert (ROOT / program).is_file(), line
            case ["make", target]:
                assert target in targets, line
            case ["pip", "install", wanted] if "[" in wanted:
                assert set(wanted.partition("[")[2].rstrip("]").split(",")) <= extras.keys(), line
            case ["pip", "install", folder]:
                assert (ROOT / folder / "pyproject.toml").is_file(), line
            case _:
                pytest.fail(line)


@pytest.mark.parametrize("line", commands(r"selfverify |python -m reproduce\.(?!convert)"))
def test_the_command_takes_these_options(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is parsed; files that another command makes may be missing."""
    monkeypatch.chdir(tmp_path)
    program, words = app, shlex.split(line, comments=True)[1:]
    if words[0] == "-m":
        program, words = importlib.import_module(words[1]).app, words[2:]
    command = typer.main.get_command(program)
    while isinstance(command, TyperGroup) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context("selfverify", words)
    except typer.BadParameter as error:
        if "does not exist" not in error.message:
            raise


@pytest.mark.parametrize("line", commands(r"selfverify (train|eval) [a-z]"))
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


@pytest.mark.slow
def test_the_site_has_no_broken_link(tmp_path: Path) -> None:
    """In its strict mode `mkdocs build` fails at a link, an anchor or a page that leads nowhere."""
    pytest.importorskip("mkdocs", reason="`make docs` installs mkdocs-material")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / "site" / f"{page.stem}.html").is_file(), f"{page.name} is not in mkdocs.yml"


def test_the_reference_is_generated() -> None:
    """Its pages say what configs, registry and commands say now."""
    for name, text in runpy.run_path(str(DOCS / "make_reference.py"))["pages"]().items():
        page = (DOCS / "reference" / f"{name}.md").read_text("utf-8")
        assert page == text, "run python docs/make_reference.py"
