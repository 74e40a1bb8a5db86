"""The report page: complete, safe, self-contained, and tolerant of missing parts."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import samples as made
from samples import write_samples
from selfverify.core.errors import DataError
from selfverify.core.events import EventLog, read_events
from selfverify.evaluation.metrics import summarise
from selfverify.evaluation.samples import StoredStep, read_samples
from selfverify.reports.charts import running_mean
from selfverify.reports.film import PageImages
from selfverify.reports.gallery import gallery
from selfverify.reports.report import sentence, write_report
from selfverify.reports.run_data import RunData, story, table
from tables import yaml_cases

ATTACK = "<script>alert('x')</script>&lt;b&gt;"


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
            yield made.sample(
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


@pytest.fixture(scope="module")
def page(run_dir, tmp_path_factory):
    return write_report(run_dir, tmp_path_factory.mktemp("out") / "deep" / "report.html").read_text("utf-8")


@pytest.fixture
def run_copy(run_dir, tmp_path):
    return shutil.copytree(run_dir, tmp_path / run_dir.name)


class _Balance(HTMLParser):
    """Checks that every element is closed in order, and collects attributes that could load something."""

    VOID = {"meta", "img", "br", "path", "use", "rect", "link"}

    def __init__(self):
        super().__init__()
        self.open, self.links, self.scripts = [], [], 0

    def handle_starttag(self, tag, attrs):
        self.links += [
            value for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")
        ]
        self.scripts += tag == "script"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def parse(page):
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []
    return parser


def shown(run, folder):
    """The page about a run, which is well formed."""
    page = write_report(run, folder / "r.html").read_text("utf-8")
    parse(page)
    return page


def test_page_is_well_formed_and_loads_nothing(page):
    found = parse(page)
    assert found.links
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in found.links)
    assert found.scripts == 1
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_page_shows_every_part(page):
    for title in (
        "Before and after", "What more samples buy", "Over training", "What the verification reward pays for",
        "Scores of right and of wrong answers", "Problems and answers", "Settings",
    ):  # fmt: skip
        assert f"<h2>{title}</h2>" in page
    assert page.count('<article class="card') == 12
    assert page.count("data:image/png") == 12
    assert "left-out" not in page.split("</style>")[1]
    assert "digits-pick" in page


@pytest.fixture(scope="module")
def hostile(run_dir, tmp_path_factory):
    """A run in which all that a model, a file or a name can say is an attack, and its page."""
    folder = shutil.copytree(run_dir, tmp_path_factory.mktemp("hostile") / "<script>$x_1$")
    event = {"time": "", "step": 1, "event": "problem_skipped", "problem": ATTACK, "reason": "no image"}
    # A line that a bad disk has spoiled hides no other.
    (folder / "events.jsonl").write_text('{"event":\n' + json.dumps(event) + "\n")
    metrics = json.loads((folder / "metrics.json").read_text())
    after = metrics["after"]
    seen = {"answers": 9, "share": 0.25, "within_problem_auc": 0.75}
    empty = {"answers": 0, "share": 0.0, "within_problem_auc": None, "missing": "no answer is of this class"}
    after["errors"] = {"wrong <sum>": seen, "not shown": empty}
    after["intervals"]["errors.wrong <sum>.within_problem_auc"] = [0.7, 0.8]
    after["categories"] = {
        "topic": {ATTACK: {"accuracy": {"curves": {"pass@1": [0.25] * 8}, "intervals": {}}}}
    }
    metrics["headline"] = {
        "title": f"ADPO {ATTACK}", "columns": ["", "before", "after"],
        "notes": [f"[1] stored: {ATTACK}; `selfverify {ATTACK}`"],
        "rows": [["plain vote", "0.587", "0.602"], [ATTACK, ATTACK, "0.9"]],
    }  # fmt: skip
    (folder / "metrics.json").write_text(json.dumps(metrics))
    settings, samples = read_samples(folder / "samples-after.jsonl")
    (folder / "samples-after.jsonl").unlink()
    for sample in samples:
        sample.text = sample.answer = sample.key = ATTACK
    write_samples(folder / "samples-after.jsonl", settings, samples)
    Image.new("RGB", (4, 4)).save(folder / "secret.png")
    problems = json.loads((folder / "gallery" / "problems.json").read_text())[:3]
    names = ["../secret.png", str(folder / "secret.png"), "none.png"]
    told = [entry | {"question": ATTACK, "target": ATTACK, "image": name}
            for entry, name in zip(problems, names, strict=True)]  # fmt: skip
    (folder / "gallery" / "problems.json").write_text(json.dumps(told))
    return folder, shown(folder, folder)


def test_what_models_and_files_say_is_text(hostile, page):
    told = hostile[1]
    assert parse(told).scripts == 1 and "<script>alert" not in told
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;lt;b&amp;gt;" in told
    assert "What happened" in told and "problems skipped: 1" in told and "What happened" not in page
    assert "topic: &lt;script" in told and "0.250" in told  # a figure without a count


def test_images_outside_the_gallery_are_refused(hostile):
    assert "data:image/png" not in hostile[1]
    assert hostile[1].count("lies outside the folder gallery") == 2
    assert "image none.png is missing or unreadable" in hostile[1]


def test_classes_of_error_are_shown_with_intervals_and_reasons(hostile):
    rows = hostile[1].split("<h2>By class of error</h2>")[1].split("</table>")[0]
    assert "wrong &lt;sum&gt;" in rows and ">0.750<small>0.700 – 0.800</small></td>" in rows
    assert 'data-label="AUC within a problem">–</td>' in rows and ">no answer is of this class</td>" in rows


def test_the_table_that_comes_first(hostile, tmp_path):
    folder, told = hostile
    titles = [told.index(f"<h2>{t}</h2>") for t in ("In short", "What more samples buy", "Before and after")]
    assert titles == sorted(titles) and told.index("Scores of right and of wrong answers") < titles[2]
    assert '<th scope="row">plain vote</th><td data-label="before">0.587</td>' in told
    assert "[1] stored" in told and "<code>selfverify &lt;" in told
    broken = shutil.copytree(folder, tmp_path / "broken")
    metrics = json.loads((broken / "metrics.json").read_text())
    metrics["headline"]["rows"] = [["plain vote", 0.587]]
    (broken / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(DataError, match=r"metrics\.json: headline: rows: 0: 1: .* but is 0\.587"):
        write_report(broken, tmp_path / "r.html")


def test_several_runs_are_shown_side_by_side(run_dir, hostile, tmp_path):
    both = shown([run_dir, hostile[0]], tmp_path)
    assert "2 runs compared" in both and "Side by side, after training" in both
    assert both.count("<figure>") == 4 + 5 + 2 + 4
    assert both.count("<h2>In short</h2>") == 1


def test_missing_parts_are_told(run_copy, tmp_path):
    for gone in ("metrics.jsonl", "samples-before.jsonl", "metrics.json"):
        (run_copy / gone).unlink()
    assert RunData(run_copy).summaries["after"]["samples_per_problem"] == 8, "it is computed"
    shutil.rmtree(run_copy / "gallery")
    page = shown(run_copy, tmp_path)
    for line in ("no learning curves", "no score histogram before training", "no problems are shown"):
        assert line in page


def test_an_empty_folder_is_refused_and_a_begun_run_is_not(tmp_path):
    with pytest.raises(DataError, match="holds nothing to report: no metrics"):
        write_report(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "accuracy": 0.5}\n')
    page = shown(tmp_path, tmp_path)
    assert "This run has no evaluation yet." in page


def test_conversations_are_reported(run_copy, tmp_path):
    """Turns, endings, tools and time: of the evaluations, and step by step."""
    settings, samples = read_samples(run_copy / "samples-after.jsonl")
    samples = samples[:96]
    for number, sample in enumerate(samples):
        errors = {"tool_errors": 2.0} if number % 2 else {}
        sample.steps = [
            StoredStep("policy", 0, "action", "call", [], "stop", errors, None),
            StoredStep("environment", 1, "observation", "shown", [], None, {}, None),
            StoredStep("policy", 1, "answer", "done", [], "stop", {}, None),
        ]  # fmt: skip
        sample.rewards |= {"tool_calls": 1.0, "tool_errors": 2.0 * (number % 2)}
        sample.finish = "length" if number % 4 == 0 else "stop"
        sample.key, sample.steps[1].record = None, {"role": "tool"}
    for gone in ("samples-after.jsonl", "samples-before.jsonl", "metrics.json"):
        (run_copy / gone).unlink()
    write_samples(run_copy / "samples-after.jsonl", settings, samples)
    rows = [json.loads(line) for line in (run_copy / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"conversation/turns": 2.5, "reward/tool_errors": 0.5, "reward/tool_calls": 1.5}
        row |= {"conversation/stop": 0.7, "conversation/length": 0.2, "conversation/error": 0.1}
    (run_copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    clock = [
        {"step": row["step"], "time/say_s": 3.0, "time/reply_s": 1.0, "time/hear_s": 0.5} for row in rows
    ]
    (run_copy / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in clock))

    found = {row["name"]: row for row in table(RunData(run_copy))}
    after = {name: row["after"]["value"] for name, row in found.items() if row["after"]}
    assert (after["conversations.turns"], after["conversations.failed_turns"]) == ("2.000", "0.500")
    assert (after["conversations.stop"], after["conversations.length"]) == ("75.0\xa0%", "25.0\xa0%")
    assert (after["conversations.error"], after["rewards.tool_errors"]) == ("0.0\xa0%", "1.000")
    assert found["pass@1"]["title"] == "Success rate" and "majority@{n}" not in found
    assert found["best@{n}"]["after"] is not None
    assert "2.0 turns" in sentence(RunData(run_copy)) and "vote" not in sentence(RunData(run_copy))
    page = shown(run_copy, tmp_path)
    assert ">tool<" in page
    for kind in ("How conversations end", "Seconds of a rollout", "Turns", "Tool calls", "Tool errors"):
        assert f"{kind} over training" in page


def test_a_running_log_may_end_in_half_a_line_but_not_be_corrupt(run_copy):
    log = run_copy / "metrics.jsonl"
    log.write_text('{"step": 1, "accuracy": 0.5}\n{"step": 2, "accuracy": NaN}\n{"step": 3, "acc')
    steps, values = RunData(run_copy).series("accuracy")
    np.testing.assert_array_equal(steps, [1, 2])
    np.testing.assert_array_equal(values, [0.5, np.nan])
    log.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
        RunData(run_copy)


@yaml_cases
def test_files_of_another_shape_are_refused(run_copy, tmp_path, file, text, said):
    (run_copy / file).write_text(text)
    with pytest.raises(DataError, match=said):
        write_report(run_copy, tmp_path / "r.html")


def test_the_gallery_puts_contested_problems_first(run_dir):
    cards = gallery(RunData(run_dir), PageImages())
    order = ["wins", "fails", "missed", "both", "same"]
    kinds = [card["kind"] for card in cards]
    assert kinds == sorted(kinds, key=order.index)
    assert kinds[0] == "wins"
    for card in cards:
        chosen = [row["sample"].correct for row in card["rows"] if row["best"]]
        voted = [row["sample"].correct for row in card["rows"] if row["vote"]]
        if card["kind"] == "wins":
            assert np.mean(chosen) > np.mean(voted)
        if card["kind"] == "same":
            assert len({row["sample"].correct for row in card["rows"]}) == 1


def test_the_sentence_says_who_wins_and_when_it_is_chance(run_dir):
    run = RunData(run_dir)
    after, before = run.summaries["after"], run.summaries["before"]
    before["best@8"], after["best@8"], after["majority@8"] = 0.70, 0.80, 0.75
    after["weighted@8"] = 0.85
    after["within_problem_auc"], before["within_problem_auc"] = 0.875, 0.5
    after["intervals"]["best_over_majority@8"] = [0.02, 0.08]
    told = re.findall(r"[+-]?\d+\.\d", sentence(run))
    assert told == ["87.5", "50.0", "80.0", "10.0", "75.0", "5.0", "+2.0", "+8.0", "85.0"]
    assert "wins by" in sentence(run)
    after["intervals"]["best_over_majority@8"] = [-0.01, 0.08]
    assert "a difference within chance" in sentence(run)
    after["best@8"], after["intervals"]["best_over_majority@8"] = 0.60, [-0.2, -0.1]
    assert "10.0 points less than before" in sentence(run)
    after["text_rule"], before["score"] = {"within_problem_auc": 0.9}, "sampled"
    told = sentence(run).replace("\u00a0", " ")
    assert "written score" in told and "90.0 %" in told and "loses by 15.0" in told
    assert "no verdict" not in told
    after["unjudged"], before["unjudged"] = 7, 9
    assert (
        f"7 of {after['samples']} answers have no verdict, and count as wrong; before it were 9."
        in sentence(run)
    )


def test_what_ends_looking_is_told_and_drawn(tmp_path):
    rules = {
        name: {"accuracy": right, "steps": looks}
        for name, right, looks in (
            ("always 1", 0.25, 1.0), ("always 7", 0.84, 6.8), ("self-stop", 0.85, 6.6), ("signed", 0.83, 4.5),
            ("signed, random", 0.65, 4.5), ("oracle", 0.86, 4.1),
        )
    }  # fmt: skip
    found = {"rules": rules, "verifier": {"signed": {"smallest_n": 7}}}
    (tmp_path / "metrics.json").write_text(json.dumps({"after": {"pass@1": 0.83}, "stopping": found}))
    write_samples(tmp_path / "samples.jsonl", {}, [made.sample("p", 0, True, None)])
    told = sentence(RunData(tmp_path))
    assert all(number in told for number in ("83.0", "4.5", "84.0", "6.8"))
    page = shown(tmp_path, tmp_path)
    assert "<h2>When looking ends</h2>" in page and "the verifier 83%" in page and '"tiles"' not in page
    del rules["self-stop"]["steps"]
    (tmp_path / "metrics.json").write_text(json.dumps({"stopping": found}))
    with pytest.raises(DataError, match="stopping: rules: self-stop: steps: Field required"):
        RunData(tmp_path)


def test_running_mean_leaves_gaps_out():
    """Reach 1 over 1, –, 4, 7: means of {1}, {1, 4}, {4, 7}, {4, 7}."""
    np.testing.assert_allclose(running_mean(np.array([1, np.nan, 4, 7]), 1), [1, 2.5, 5.5, 5.5])


def test_a_story_names_what_was_skipped_and_counts_the_rest(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("problem_skipped", problem="of an older run", reason="?")
    log.append("started", resume=False)
    assert story(read_events(log.path)) == []
    log.append("started", resume=True)
    log.step = 4
    log.append("resumed", steps_again=3)
    for problem in ("p/1", "p/2", "p/1", "p/3"):
        log.append("problem_skipped", problem=problem, reason="no image")
    for message in ("odd", "odd"):
        log.append("warning", message=message)
    log.append("worker_restarted")
    log.append("finished")
    again, resumed, *told = story(read_events(log.path), named=2)
    assert again.startswith("started again from the beginning")
    assert resumed.startswith("resumed at step 4 (") and resumed.endswith("; steps done again: 3")
    skipped = ["problems skipped: 3", "  p/1: no image", "  p/2: no image", "  and 1 more, see events.jsonl"]
    assert told == ["worker processes replaced: 1", "other warnings: 2", "  odd", *skipped]
