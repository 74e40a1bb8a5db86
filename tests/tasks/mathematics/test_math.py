"""The maths task: problems from rows, the order of training, prompts, outages, demonstrations, fuzzing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.tasks.row_data import mutated

from sampled_threads import drawn
from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.core.process_pool import WorkerPool
from selfverify.core.tags import Tagged, parse_tagged
from selfverify.data.fields import Row
from selfverify.evaluation.evaluate import evaluate
from selfverify.experiments.registry import make_method, make_task
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks import math_worker as math_answer
from selfverify.tasks.math import Math, MathConfig, read_choice, request
from selfverify.tasks.math_answer import Target, answer_key, compare
from selfverify.tasks.math_text import final_expression
from selfverify.tasks.row_task import with_images

REQUEST = request("think-answer", score=True)
IMAGE = Image.new("RGB", (32, 32))
ANGLES = {"A": "30°", "B": "45°", "C": "60°", "D": "90°"}


def task(*rows: Row, **options: Any) -> Math:
    return Math(MathConfig(**options), {"train": rows, "test": rows})


def problem(row: Row, **options: Any) -> Problem:
    return task({"question": "What?", "answer": "4"} | dict(row), **options).problem("test", 0, 0)


def prompt(of: Problem) -> str:
    [turn] = of.messages
    return "".join("<IMG>" if part["type"] == "image" else part["text"] for part in turn["content"])


# ------------------------------------------------------------------------------------------- problems


def test_a_problem() -> None:
    made = problem(
        {"id": "m-1", "images": [IMAGE], "answer": r"$\boxed{42}$", "category": "sums", "source": "s"}
    )
    assert (made.id, made.target, made.images) == ("math/test/m-1", "42", [IMAGE])
    assert prompt(made) == f"<IMG>What?\n{REQUEST}"
    assert made.meta.pop("categories") == {"category": ["sums"]}
    assert made.meta == {"question": "What?", "answer": r"$\boxed{42}$", "category": "sums", "source": "s"}
    for tag in ("think", "answer", "score"):
        assert f"<{tag}>" in REQUEST and f"</{tag}>" in REQUEST
    assert prompt(problem({}, instruction="Go.")) == "What?\nGo."
    assert problem({"answer": 4}).target == "4" and problem({"answer": 0.5}).target == "0.5"
    several = problem({"answer": ["1", "one"]})  # each of them is right
    assert (several.target, several.meta["alternatives"]) == ("1", ["one"])
    assert problem({"answer_type": "free-form"}).meta.keys() == {"question", "answer", "categories"}


def test_hints_and_options() -> None:
    asked = prompt(problem({"options": list(ANGLES.values()), "answer": "B"})).removesuffix(REQUEST)
    assert asked == "What?\nA. 30°\nB. 45°\nC. 60°\nD. 90°\nAnswer with the letter of the right option.\n"
    listed = {"question": "What? (A) yes (B) no", "options": {"a": "yes", "b": "no"}, "answer": "no"}
    made = problem(listed)
    assert prompt(made).startswith("What? (A) yes (B) no\nAnswer with the letter")
    assert (made.target, made.meta["right"], made.meta["options"]) == ("B", ["B"], {"A": "yes", "B": "no"})
    assert "rounded to 2 decimals" in prompt(problem({"answer_type": "float", "precision": 2.0}))
    assert "an integer" in prompt(problem({"answer_type": "integer"}))
    assert "[1, 2, 3]" in prompt(problem({"answer_type": "list", "answer": "[4]"}))


@pytest.mark.parametrize(
    ("text", "images", "shown"),
    [
        ("Look.", 2, "<IMG><IMG>Look."),
        ("<image>Look.", 1, "<IMG>Look."),
        ("One <image> and <image>.", 2, "One <IMG> and <IMG>."),
        ("In <image 1> or <image 2>, not <image 1>?", 2, "In <IMG> or <IMG>, not image 1?"),
        ("In <image 2> or <image 1>?", 2, "<IMG><IMG>In image 2 or image 1?"),
        ("In <image 2>?", 3, "<IMG><IMG><IMG>In image 2?"),
        ("No image.", 0, "No image."),
        *[
            (text, n, "")
            for text, n in (("<image>", 0), ("<image>", 2), ("<image 3>", 2), ("<image> <image 1>", 1))
        ],
    ],
)
def test_images_stand_where_the_text_has_them(text: str, images: int, shown: str) -> None:
    """And none disappears: a text that names others than there are is refused."""
    if shown:
        assert prompt(Problem("p", with_images(text, images, "p"))) == shown
        return
    with pytest.raises(DataError, match="problem-9"):
        with_images(text, images, "problem-9")


# -------------------------------------------------------------------------------- rewards and outages


def test_malformed_output_earns_nothing(policy: Policy) -> None:
    """Through the rollout, whose named rewards these are."""
    made, answer = task({"question": "?", "answer": "4"}), "<think>2+2</think><answer>4</answer>"
    asked = made.problem("test", 0, 0)

    def rewards(text: str) -> dict[str, float]:
        return recite(policy, asked, made.open(asked, 0), [drawn(policy, text)]).rewards

    names = ("answer", "correct", "answer_format", "score_format", "score_opened")
    table = {
        f"{answer}<score>0.9</score>": (1, 1, 1, 1, 1),
        f"{answer}\n<score>0.9</score>": (1, 1, 1, 1, 1),
        f"{answer}<score>sure</score>": (1, 1, 1, 0, 1),
        answer: (1, 1, 1, 0, 0),
        "<answer>4</answer><think>2+2</think><score>0.9</score>": (0, 0, 0, 0, 1),
        "<think>2+2</think><answer>4</answer><answer>5</answer><score>0.9</score>": (0, 0, 0, 1, 1),
        "<think><answer>4</answer></think><score>0.9</score>": (0, 0, 0, 0, 1),
        "<answer>4</answer><score>0.9</score>": (0, 0, 0, 1, 1),
        "4": (0, 0, 0, 0, 0),
    }
    assert {text: tuple(rewards(text)[name] for name in names) for text in table} == table


def slow_pool(**options: Any) -> WorkerPool:
    import worker_functions

    return WorkerPool(worker_functions.math_verdict, **{"timeout_s": 0.5, "retries": 1} | options)


@pytest.fixture
def outage() -> Any:
    made = task({"question": "?", "answer": "x+1"}, {"question": "?", "answer": "x+7"})
    made._pool = slow_pool()
    yield made
    made._pool.close()


def test_an_answer_that_hangs_is_wrong_and_a_dead_worker_no_verdict(outage: Math) -> None:
    asked = outage.problem("test", 0, 0)

    def verdict(answer: str, of: Problem = asked) -> tuple[float, bool, bool]:
        judged = outage.judge(of, Tagged({"answer": answer}))
        return judged.reward, judged.correct, bool(judged.unjudged)

    assert verdict("1+x") == (1.0, True, False)
    assert verdict("x+7") == (0.0, False, False)  # 7: the worker sleeps
    assert verdict("x+8") == (0.0, False, True)  # 8: it dies
    assert verdict("x+9") == (0.0, False, False)  # 9: the function raises
    hopeless = outage.problem("test", 0, 1)  # the target itself makes it sleep
    assert verdict("x+1", hopeless) == (0.0, False, True)
    assert outage.counters()["workers/timeouts"] >= 4


def test_without_math_verify_the_rules_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "selfverify.tasks.math_worker", None)
    monkeypatch.delattr("selfverify.tasks.math_worker", raising=False)
    made = task({"question": "?", "answer": "4"})
    asked = made.problem("test", 0, 0)
    assert made.judge(asked, Tagged({"answer": "4.0"})).correct
    with pytest.raises(ConfigError, match=r"pip install 'selfverify\[math\]'"):
        made.judge(asked, Tagged({"answer": r"\log_2 16"}))


def test_the_worker_is_light() -> None:
    """A worker that took seconds to start would make every restart felt."""
    code = "import sys, selfverify.tasks.math_worker; print('torch' in sys.modules, 'numpy' in sys.modules)"
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    assert done.stdout.split() == [b"False", b"False"]


def test_nothing_is_evaluated() -> None:
    """math-verify's path through Python's parser is not taken: what it reads are plain texts."""
    for text in ("__import__('os').getpid()", "1 if 1 else 2", "lambda: 4", "(4).real", "[].append(4)"):
        assert not math_answer.compare("4", text)["equal"]
        assert not math_answer.compare(text, "4")["equal"]


# ----------------------------------------------------------------------------------- demonstrations


def test_demonstrations_are_judged_right() -> None:
    rows = [
        {"question": "?", "answer": "4", "solution": "2+2 is 4"},
        {"question": "?", "answer": "45°", "solution": " half of 90° ", "options": ANGLES},
        {"question": "?", "answer": r"\frac12", "solution": "<think>one of two</think>\n<answer>x</answer>"},
    ]
    made = task(*rows)
    texts = []
    for i in range(3):
        asked = made.problem("test", 0, i)
        shown = made.demonstrate(asked, np.random.default_rng(0), wrong=False)
        tagged = parse_tagged("".join(text for _, text in shown.pieces) + "<score>1</score>")
        assert tagged.answer_ok and tagged.score_ok and made.judge(asked, tagged).correct
        texts.append(tagged.fields["think"])
    assert texts == ["2+2 is 4", "half of 90°", "one of two"]


def test_data_without_demonstrations_says_so(policy: Policy) -> None:
    rng = np.random.default_rng(0)
    made = task({"id": "p", "question": "?", "answer": "4"})
    asked = made.problem("train", 0, 0)
    with pytest.raises(DataError, match=r"math/train/p: the row has no `solution`.*worked solutions"):
        made.demonstrate(asked, rng, wrong=False)
    with pytest.raises(ConfigError, match=r"no wrong demonstrations; set method\.wrong=0"):
        make_method("sft", right=0).rollout(policy, made, [asked], [0], SamplingConfig())
    with pytest.raises(DataError, match="no `solution`"):
        make_method("sft", wrong=0).rollout(policy, made, [asked], [0], SamplingConfig())
    asked.meta["solution"] = "see <answer>"
    with pytest.raises(DataError, match="holds tags"):
        made.demonstrate(asked, rng, wrong=False)


# ------------------------------------------------------------------------------------ forms of answers


def test_a_form_decides_the_tags_and_the_prompt() -> None:
    made = task({"question": "?", "answer": "4"}, score=False)
    assert made.tags == ("think", "answer") and "score" not in prompt(made.problem("test", 0, 0))
    assert made.ask_again("Again.").endswith("<think>your reasoning</think><answer>your answer</answer>.")
    free = task({"question": "?", "answer": "4"}, form="free", score=False)
    asked = prompt(free.problem("test", 0, 0))
    assert free.tags == () and "<" not in asked and "The answer is: " in asked
    assert free.ask_again("Again.").startswith("Again. ") and "The answer is: " in free.ask_again("Again.")
    short = task({"question": "?", "answer": "4"}, form="answer")
    assert short.tags == ("answer", "score") and "<think>" not in prompt(short.problem("test", 0, 0))
    with pytest.raises(ValueError, match="set score: false"):
        make_task("math", form="free")


def test_fine_tuning_takes_rows_with_a_solution(policy: Policy) -> None:
    rows = [
        {"id": "a", "question": "?", "answer": "4", "solution": "2+2"},
        {"id": "b", "question": "?", "answer": "4"},
        {"id": "c", "question": "?", "answer": "4", "solution": "2+2 </think>"},
    ]
    made = task(*rows, solved=True)
    assert (made.count("train"), made.count("test")) == (1, 3)
    assert [made.problem("train", 0, i).id for i in (0, 1)] == ["math/train/a", "math/train/a/pass-2"]
    free = task(*rows, solved=True, form="free", score=False)
    assert free.count("train") == 2  # without tags there are none to hold
    asked = free.problem("train", 0, 0)
    [group] = (
        make_method("sft", right=1, wrong=0).rollout(policy, free, [asked], [0], SamplingConfig()).groups
    )
    [shown] = group.trajectories
    assert shown.text.endswith("\nThe answer is: 4") and "<score>" not in shown.text
    assert free.verdict(asked, parse_tagged(shown.text, free.tags)).correct
    with pytest.raises(DataError, match="has 1 rows, and task math can train on none of them"):
        task(rows[1], solved=True).count("train")


# -------------------------------------------------------------------------------------------- fuzzing

MARKS = """42 43 4 2 . , = x or and \\boxed{ } { ( ) [ ] $ % \\frac ^ \\circ cm A B C D 30° 45° - + /
\\text{ 0.9 e9 \\ <think> </think> <answer> </answer> <score> </score> ； ４２ 🙂"""
PIECES = [*MARKS.split(), " ", "\n", "Answer: ", "\x00"]
SOUP = st.lists(st.sampled_from(PIECES), max_size=16).map("".join)


def obvious_value(text: str) -> Fraction:
    """The sum of the numbers on the last side of an answer (42; 84/2; 41 1/1), but for powers of units."""
    side = re.sub(r"(?:\^\s*\{?\s*-?|(?<=m))\d", " ", text.split("=")[-1])
    side = re.sub(r"frac *\{? *(\d+) *\}? *\{? *(\d+)", r" \1/\2 ", side)
    return sum(map(Fraction, re.findall(r"\d+/\d+|\d+\.?\d*|\.\d+", re.sub(" */ *", "/", side))), Fraction())


def check_rules(text: str) -> None:
    """What must hold of any answer to a target of 42, and to one of the four angles."""
    content = final_expression(text)
    if content:
        assert isinstance(answer_key(content), str)
        if compare(Target("42"), content).verdict == "right":
            assert abs(obvious_value(content) - 42) < 1e-3, text
    letter = read_choice(text, ANGLES)
    if letter is not None and "\\boxed" not in text:
        told = text
        if re.match(r"(?i)\W*(the )?answer", text):  # of several statements the last one counts, to its end
            told = re.split(r"\.\s+(?=[A-Z]\S*\s+\S)", re.split("(?i)answer(?: is|:)", text)[-1])[0]
        assert set(re.findall(r"(?<![A-Za-z])[A-D](?![A-Za-z])", told)) <= {letter}, text
        assert letter in text.upper() or ANGLES[letter].rstrip("°") in text, text


@settings(max_examples=1000, deadline=None)
@given(st.one_of(SOUP, st.text(max_size=60)))
@example("4\x00" * 50)
@example("42" + "\\boxed{" * 200)
def test_any_text_is_read_without_an_error(text: str) -> None:
    check_rules(text)


MUTATED = [
    "<think>2+2</think><answer>42</answer><score>0.9</score>",
    "<think>a</think>\n<answer>B</answer>\n<score>1</score>",
    r"<think>so</think><answer>\boxed{42}</answer><score>0.5</score>",
    "<think>so</think><answer>The answer is B. 45°</answer><score>0.5</score>",
    *(
        f"<think>so</think><answer>{both}</answer><score>1</score>"
        for both in ("42 or 43", "41, 42", "A or B", "(B) (C)")
    ),
    r"<think>so</think><answer>x = 84/2 = 42 \text{ cm}^2</answer><score>0.1</score>",
    r"<think>so</think><answer>$\frac{84}{2}$, 42 or (41, 43]</answer><score>0.1</score>",
]


def strictly_tagged(text: str) -> re.Match[str] | None:
    """An obvious reference for well-formed output, without its score."""
    inner = r"((?:(?!</?(?:think|answer|score)>)[\s\S])*)"
    return re.match(rf"\s*<think>{inner}</think>\s*<answer>{inner}</answer>\s*(?:<score>|$)", text, re.ASCII)


def mutations(count: int) -> None:
    judged = task({"question": "?", "answer": "42"}, {"question": "?", "answer": "B", "options": ANGLES})
    asked = [judged.problem("test", 0, i) for i in range(2)]
    rewarded = 0
    for text in mutated(MUTATED, PIECES, count, 0):
        tagged = parse_tagged(text)
        if tagged.answer_ok:
            assert strictly_tagged(text), text
        answer = tagged.fields.get("answer", "")
        check_rules(answer)
        if tagged.answer_ok:
            # In process only: math-verify would be asked about a few thousand of them.
            content = final_expression(answer) or ""
            free = compare(Target("42"), content).verdict != "ask" and judged.judge(asked[0], tagged).correct
            rewarded += free or judged.judge(asked[1], tagged).correct
    assert count // 100 < rewarded < count // 2


def test_mutated_outputs() -> None:
    mutations(5_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_mutated_outputs() -> None:
    mutations(1_000_000)


def test_a_batch_is_judged_at_once(policy: Policy) -> None:
    """All comparisons of a batch go to the workers together; judging one by one then finds them."""
    made = task({"question": "?", "answer": r"\sqrt{12}x"}, {"question": "?", "answer": "1/3+1/6"}, workers=2)
    asked = [made.problem("test", 0, i) for i in range(2)]
    texts = [
        r"2x\sqrt{3}",
        r"3x\sqrt{2}",
        r"\frac{6x}{2\sqrt{3}} \cdot 2",
        r"\log_4 2",
        "x",
        "no maths",
        "x" * 3000,
    ]
    answers = [(p, Tagged({"answer": text}, answer_ok=True)) for p in asked for text in texts]
    made.prepare([*answers, (asked[0], Tagged({"answer": "9"}))])
    pool = made._pool
    assert pool is not None and pool.counters()["workers/cached"] == 0
    known = pool._remembered.cache_info().currsize
    assert known > 4 and len(pool._all) == 2
    verdicts = [made.judge(problem, tagged).correct for problem, tagged in answers]
    assert pool._remembered.cache_info().currsize == known
    assert pool.counters()["workers/cached"] >= known
    alone = task({"question": "?", "answer": r"\sqrt{12}x"}, {"question": "?", "answer": "1/3+1/6"})
    alone.prepare(answers)
    assert alone._pool is None
    assert verdicts == [alone.judge(problem, tagged).correct for problem, tagged in answers]
    assert verdicts[:7] == [True, False, True, False, False, False, False] and verdicts[10]


def test_a_rollout_prepares_its_batch(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    made = task({"question": "?", "answer": "3"}, {"question": "?", "answer": "4"})
    seen: list[list[str]] = []
    monkeypatch.setattr(made, "prepare", lambda answers: seen.append([p.id for p, _ in answers]))
    evaluate(policy, made, EvaluationConfig(problems=2, samples=3), max_new_tokens=4)
    assert seen == [["math/test/0"] * 3 + ["math/test/1"] * 3]
