"""A synthetic run folder with plausible figures, for tests of the report."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from samples import sample, write_samples
from selfverify.evaluation.metrics import summarise


def _samples(entries, accuracy, separation, seed):
    """Answers to pick-the-digits problems: right ones scored ``separation`` higher on average."""
    rng = np.random.default_rng(seed)
    for entry in entries:
        chance = np.clip(rng.beta(4 * accuracy, 4 * (1 - accuracy)), 0.02, 0.98)
        lure = f"{rng.integers(9)} {rng.integers(9)}"  # a wrong answer with many votes
        for k in range(8):
            correct, malformed = bool(rng.random() < chance), rng.random() < 0.02
            other = lure if rng.random() < 0.4 else f"{rng.integers(9)} {rng.integers(9)} wrong"
            answer = None if malformed else entry["picks"] if correct else other
            soft = float(np.clip(rng.normal(0.45 + separation * (correct - 0.5), 0.17), 0.01, 0.99))
            sampled = float(np.clip(round(soft + rng.normal(0, 0.2), 1), 0, 1))
            scores = {"sampled": sampled, "greedy": round(soft, 1), "soft": soft}
            yield sample(
                entry["id"], k, correct and not malformed, None, answer=answer, key=answer,
                text=f"<think>2+3=5</think><answer>{answer}</answer><score>{sampled}</score>",
                rewards={"answer": float(correct and not malformed), "format": float(not malformed)},
                scores=dict.fromkeys(scores) if malformed else scores,
                logprob=float(rng.normal(-0.3 + 0.1 * correct, 0.1)),
            )  # fmt: skip


def _problems(count, gallery):
    rng = np.random.default_rng(7)
    gallery.mkdir(parents=True)
    for number in range(count):
        if number < 40:
            pixels = rng.integers(0, 255, (16, 24), dtype=np.uint8)
            Image.fromarray(pixels).resize((192, 128)).save(gallery / f"{number}.png")
        question = f"Pick 3 of the digits shown that add up to {number}."
        yield {
            "id": f"digits-pick/test/0/{number}", "question": question, "target": number,
            "image": f"{number}.png", "picks": f"{number} 0 0",
        }  # fmt: skip


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory) -> Path:
    """A synthetic run in which training moves the scores apart. Shared: copy it before changing anything."""
    folder = tmp_path_factory.mktemp("runs") / "adpo-digits-pick"
    entries = list(_problems(120, folder / "gallery"))
    shown = [{key: entry[key] for key in ("id", "question", "target", "image")} for entry in entries[:40]]
    (folder / "gallery" / "problems.json").write_text(json.dumps(shown))
    task = {"name": "digits-pick", "count": 6}
    settings = {"model": "tiny", "task": task, "temperature": 1.0, "seed": 0}
    summaries = {}
    for stage, accuracy, separation in (("before", 0.52, 0.08), ("after", 0.58, 0.38)):
        samples = list(_samples(entries, accuracy, separation, 1))
        write_samples(folder / f"samples-{stage}.jsonl", settings, samples)
        summaries[stage] = summarise(samples)
    (folder / "metrics.json").write_text(json.dumps(summaries | {"settings": settings}))
    rng = np.random.default_rng(0)
    with (folder / "metrics.jsonl").open("w") as log:
        for step in range(1, 121):
            done = 1 - np.exp(-3 * step / 120)
            row = {
                "reward/answer": 0.55 + 0.08 * done, "accuracy": 0.52 + 0.06 * done,
                "verification/auc": 0.58 + 0.3 * done, "verification/score_mean": 0.5 + 0.05 * done,
                "verification/correct_given_reward1": 0.72 - 0.1 * done,
                "verification/score_is_1": 0.08 + 0.05 * done, "tokens_per_s": 900 + 30 * done,
            }  # fmt: skip
            noisy = {name: value * (1 + rng.normal(0, 0.05)) for name, value in row.items()}
            log.write(json.dumps({"step": step, **noisy}) + "\n")
    return folder
