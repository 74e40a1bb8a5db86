"""g14: VTS-V from conversations to ε on ten problems, and what every visual tool shows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from goldens.g1_training import store_run
from goldens.tree import CASES, Tree, words_of

RECIPE = "looking-digits"


def run(tree: Tree) -> None:
    """Collect, branch, pair, export, train the verifier and fit its ε; then call tools."""
    folder = tree.scratch / "looks"
    where = [str(folder), "--json"]
    expert, own = tree.scratch / "expert", ["--own", "--max-tokens", "32"]
    collect = ["--problems", "10", "--json", "--output"]
    told(tree, "collect expert", "looking collect", RECIPE, "--expert", *collect, str(expert))
    told(tree, "collect own", "looking collect", RECIPE, *own, *collect, str(folder), "--samples", "2")
    for way in ("branched", "hurried"):
        branch = [*where, *own, "--way", way, "--most", "4"]
        told(tree, f"branch {way}", "looking branch", RECIPE, *branch)
    told(tree, "sets", "looking sets", *where, "--pairs", "wrong+wasteful", "--any-length")
    for form in ("trl", "llama-factory"):
        output = tree.scratch / form
        done = tree.get("selfverify.experiments.looks.export_looks:export_looks")(folder, output, form)
        # How many traces, pairs and images; the old tree names them.
        tree.row(f"export {form}", printed=[*done] if isinstance(done, tuple) else [*asdict(done).values()])
        store_files(tree, form, output)
    store_files(tree, "own", folder)
    store_files(tree, "expert", expert)
    trained = tree.scratch / "run"
    tree.inline("train", *words_of(CASES["stopping"]), f"output={trained}")
    store_run(tree, "verifier", trained)
    store_files(tree, "verifier", trained)
    verifier, compared = trained / "verifier" / "model", tree.scratch / "compared"
    where = ["--verifier", str(verifier), "--output", str(compared), "--json"]
    small = ["evaluation.problems=6", "evaluation.samples=1"]
    told(tree, "compare", "looking compare", RECIPE, *where, *small)
    store_files(tree, "compare", compared)
    tools(tree)


def told(tree: Tree, row: str, command: str, *words: str) -> None:
    """Run a command, and store the JSON that it prints."""
    tree.row(row, printed=json.loads(tree.inline(command, *words)))


def store_files(tree: Tree, row: str, folder: Path) -> None:
    """Store files of JSON, and the names and digests of images."""
    left_out = {"timing.jsonl", "events.jsonl", "metrics.jsonl", "checkpoints"}
    made = {path: path.relative_to(folder).parts for path in folder.rglob("*.json*")}
    of_runs = [path for path, parts in made.items() if not left_out & {*parts}]
    tree.files(row, folder, [p for p in of_runs if "model" not in made[p][:-1] or p.name == "stopping.json"])
    for path in sorted(folder.rglob("*.png")):
        tree.row(f"{row} {path.relative_to(folder)}", picture=Image.open(path))


def tools(tree: Tree) -> None:
    """Call each tool on a drawn page and a disc."""
    page = Image.new("RGB", (220, 160), "white")
    ImageDraw.Draw(page).text((60, 80), "Total: 1,234", fill="black", font=ImageFont.load_default(size=22))
    disc = Image.new("RGB", (300, 200), (30, 90, 40))
    ImageDraw.Draw(disc).ellipse((100, 50, 199, 149), fill=(220, 60, 50))
    settings = tree.get("selfverify.looking.look_settings:LookSettings")()
    box = tree.get("selfverify.looking.make_toolbox:make_toolbox")(settings)
    tree.row("tools", schemas=box.schemas())
    space = tree.get("selfverify.looking.tools.pictures:space_named")("thousandths")
    for number, (name, arguments) in enumerate(CASES["visual"]):
        seen = tree.get("selfverify.looking.tools.pictures:Gallery")(space=space)
        seen.begin("p", [page, disc])
        np.random.seed(0)
        try:
            found = box.run(box.chosen(name, arguments), seen)
        except Exception as error:
            tree.row(f"tool {number} {name}", refused=str(error))
        else:
            tree.row(f"tool {number} {name}", text=found.text, images=found.images)
