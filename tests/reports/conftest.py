"""A synthetic run folder with plausible figures, for tests of the report."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from samples import write_samples
from selfverify.evaluation.metrics import summarise
from selfverify.evaluation.samples import StoredSample


def _samples(problems, accuracy, separation, seed):
    """Answers to pick-the-digits problems: right ones scored ``separation`` higher on average."""
    rng = np.random.default_rng(seed)
    for entry in problems:
        chance = np.clip(rng.beta(4 * accuracy, 4 * (1 - accuracy)), 0.02, 0.98)
        lure = " ".join(map(str, np.sort(rng.choice(entry["digits"], 3))))  # a wrong answer with many votes
        group = []
        for k in range(8):
            correct = bool(rng.random() < chance)
            picks = entry["picks"] if correct else rng.choice(entry["digits"], 3)
            answer = " ".join(map(str, np.sort(picks))) if correct or rng.random() < 0.6 else lure
            correct = answer == " ".join(map(str, sorted(entry["picks"])))
            soft = float(
                np.clip(rng.normal(0.45 + separation * (1 if correct else -1) / 2, 0.17), 0.01, 0.99)
            )
            malformed = rng.random() < 0.02
            greedy = round(soft, 1)
            sampled = float(np.clip(round(soft + rng.normal(0, 0.2), 1), 0, 1))
            sums = f"{'+'.join(answer.split())}={sum(map(int, answer.split()))}"
            group.append(
                StoredSample(
                    problem=entry["id"], sample=k, answer=None if malformed else answer,
                    text=f"<think>{sums}</think><answer>{answer}</answer><score>{sampled}</score>",
                    key=None if malformed else answer, correct=correct and not malformed,
                    rewards={"answer": float(correct and not malformed), "format": float(not malformed)},
                    scores=dict.fromkeys(("sampled", "greedy", "soft"))
                    if malformed else {"sampled": sampled, "greedy": greedy, "soft": soft},
                    tokens=24, logprob=float(rng.normal(-0.3 + 0.1 * correct, 0.1)), finish="stop", seed=seed,
                )
            )  # fmt: skip
        yield group


def _problems(count, gallery):
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(7)
    gallery.mkdir(parents=True)
    for number in range(count):
        chosen = rng.integers(0, len(labels), 6)
        digits = [int(label) for label in labels[chosen]]
        picks = [digits[i] for i in rng.choice(6, 3, replace=False)]
        entry = {"id": f"digits-pick/test/0/{number}", "target": sum(picks), "image": f"{number}.png"}
        entry["question"] = f"Pick 3 of the digits shown that add up to {sum(picks)}."
        tiles = images[chosen].reshape(2, 3, 8, 8).transpose(0, 2, 1, 3).reshape(16, 24)
        if number < 40:
            pixels = (255 - tiles * 15 + rng.normal(0, 12, tiles.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((192, 128), Image.Resampling.NEAREST).save(
                gallery / entry["image"]
            )
        yield entry | {"digits": digits, "picks": picks}


def build_run(folder: Path, seed=0, gain=0.3, problems=120, steps=120) -> Path:
    """Write a whole run folder; ``gain`` is how far apart training moves the scores."""
    entries = list(_problems(problems, folder / "gallery"))
    shown = [{key: entry[key] for key in ("id", "question", "target", "image")} for entry in entries[:40]]
    (folder / "gallery" / "problems.json").write_text(json.dumps(shown))
    settings = {
        "model": "tiny",
        "task": {"name": "digits-pick", "count": 6},
        "temperature": 1.0,
        "seed": seed,
    }
    summaries = {}
    for stage, accuracy, separation in (("before", 0.52, 0.08), ("after", 0.58, 0.08 + gain)):
        samples = [s for group in _samples(entries, accuracy, separation, seed + 1) for s in group]
        write_samples(folder / f"samples-{stage}.jsonl", settings, samples)
        summaries[stage] = summarise(samples)
    (folder / "metrics.json").write_text(json.dumps(summaries | {"settings": settings}))
    rng = np.random.default_rng(seed)
    with (folder / "metrics.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            done = 1 - np.exp(-3 * step / steps)
            row = {
                "reward/answer": 0.55 + 0.08 * done, "accuracy": 0.52 + 0.06 * done,
                "verification/auc": 0.58 + gain * done, "verification/score_mean": 0.5 + 0.05 * done,
                "verification/correct_given_reward1": 0.72 - 0.1 * done,
                "verification/score_is_1": 0.08 + 0.05 * done, "tokens_per_s": 900 + 30 * done,
            }  # fmt: skip
            noisy = {name: value * (1 + rng.normal(0, 0.05)) for name, value in row.items()}
            log.write(json.dumps({"step": step, **noisy}) + "\n")
    return folder


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """A whole synthetic run. Shared: copy it before changing anything."""
    return build_run(tmp_path_factory.mktemp("runs") / "adpo-digits-pick")
