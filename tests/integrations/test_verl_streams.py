"""The streams for verl's rows are our own trainer's, and what verl cannot do is refused before it starts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from pydantic.fields import FieldInfo
from torch.nn.utils.rnn import pad_sequence
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.config import Config
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.score_tokens import SCORE_TEXTS, ScoreReading, ScoreTree
from selfverify.core.trainer_config import LossConfig
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory, valid_trajectories
from selfverify.experiments.plan import engine_lines
from selfverify.experiments.recipe import NamedConfig, Recipe, load_recipe
from selfverify.experiments.registry import make_method
from selfverify.integrations.verl.launch import REFUSED, verl_config
from selfverify.integrations.verl.streams import (
    ADVANTAGE,
    ALTERNATIVES,
    KL_COEF,
    PLACE,
    SHARE,
    WEIGHT,
    WORTH,
    Row,
    in_groups,
    optimiser_batches,
    row_streams,
)
from selfverify.methods.base import Method
from selfverify.objectives import choice_surrogate, pairwise, surrogate
from selfverify.rollouts.rollout import Rollout
from selfverify.trainer.batch import batch_weights, pair_weights, select, stack_choices
from tables import read_tables, yaml_cases


def answered(rng: random.Random, right: float, score: float) -> Trajectory:
    answer, behind = rng.randrange(3, 9), rng.randrange(2, 5)
    segments = [
        Segment("answer", [7] * answer, [-0.1] * answer),
        Segment("score", [8] * behind, [-0.2] * behind, finish=Finish.STOP),
    ]
    formats = {"answer_format": 1.0, "score_format": 1.0, "score_opened": 1.0}
    return Trajectory(segments, {"sampled": score}, {"answer": right, "correct": right, **formats})


def corrected(rng: random.Random, first: float, second: float) -> Trajectory:
    one, two = rng.randrange(3, 9), rng.randrange(2, 5)
    segments = [
        Segment("turn_1", [7] * one, [-0.1] * one, finish=Finish.STOP),
        Segment("observation", [9] * 3, [0.0] * 3, author="environment"),
        Segment("turn_2", [8] * two, [-0.2] * two, turn=1, finish=Finish.STOP),
    ]
    formats = {"answer_format": 1.0, "answer_format_1": 1.0}
    rewards = {"correct_1": first, "correct": second, "answer": second, **formats}
    return Trajectory(segments, {}, rewards)


def groups_of(name: str) -> tuple[Method, list[Group]]:
    """Four groups of four, of which the second teaches nothing and the third has lost a trajectory."""
    rng = random.Random(3)
    made = []
    for b in range(4):
        if name == "adpo":
            rows = [
                answered(rng, *((1.0, 0.5) if b == 1 else (float(g % 2), rng.randrange(10) / 10)))
                for g in range(4)
            ]
        else:
            rows = [corrected(rng, float(g < b), float(b != 1 and g % 2)) for g in range(4)]
        made.append(Group(Problem(f"p{b}", []), rows))
    made[2].trajectories[1].segments[-1].finish = Finish.ERROR
    made[2].trajectories[1].rewards.clear()
    options = {"kl": 0.2, "score_kl": 0.02, "verification_credit": "concordance"} if name == "adpo" else {}
    return make_method(name, **options), made


@pytest.mark.parametrize("name", ["adpo", "adapo"])
@pytest.mark.parametrize("denominator", ["sequence", "channel", "batch", "trajectory"])
@pytest.mark.parametrize("drop", [True, False])
def test_streams_are_those_of_our_trainer(name: str, denominator: Any, drop: bool) -> None:
    """Advantages, KL coefficients and final weights, over two optimiser batches."""
    method, groups = groups_of(name)
    flat = [t for group in groups for t in group.trajectories]
    skipped = Row(Trajectory([Segment("observation", [], author="environment")]), skipped="no image")
    uids = [group.problem.id for group in groups for _ in group.trajectories]
    batches = [[*range(8), 16], [*range(8, 16), 17]]
    loss = LossConfig(denominator=denominator, drop_zero_advantage=drop)
    rows = [*map(Row, flat), None, skipped]
    streams, figures = row_streams(method, rows, [*uids, "pad", "left"], batches, loss)
    credits = [method.credit(group, valid_trajectories(group, False)) for group in groups]
    kept, dropped = select(Rollout([None] * 4, groups), credits, drop)  # type: ignore[list-item]
    assert figures["groups/kept"] == len(kept) == (3 if drop and name == "adpo" else len(kept))
    assert figures["groups/zero_advantage"] == dropped["zero_advantage"]
    assert (figures["lost"], figures["skipped"], figures["trajectories/invalid"]) == (1 / 16, 1, 1)
    for first in (0, 2):
        own = [group for group in kept if group.number in (first, first + 1)]
        for group, weight in zip(own, batch_weights(own, denominator), strict=True):
            at, width = slice(4 * group.number, 4 * group.number + 4), group.width
            for stream, value in (
                (ADVANTAGE, group.advantage_gr), (KL_COEF, group.kl_coef_gr), (WEIGHT, weight)
            ):  # fmt: skip
                torch.testing.assert_close(streams[stream][at, :width], value)
                assert not streams[stream][at, width:].any()
        for b in {first, first + 1} - {group.number for group in own}:
            assert not streams[WEIGHT][4 * b : 4 * b + 4].any(), "a group that teaches nothing counts nowhere"
    assert not streams[WEIGHT][16:].any() and not streams[WEIGHT][9].any(), "padding, and a lost trajectory"


def test_alternatives_are_those_of_our_trainer() -> None:
    """The loss of the tokens that learn from all alternatives, in each of two optimiser batches."""
    tree, width, generator = ScoreTree(), 16, torch.Generator().manual_seed(0)
    for text in SCORE_TEXTS:
        tree.add([ord(sign) for sign in text], float(text))
    _, groups = groups_of("adpo")
    method = make_method("adpo", verification_credit="expected", score_weight=0.5)
    flat, readings = [t for group in groups for t in group.trajectories], list[ScoreReading | None]()
    for t in flat:
        t.segments[-1].tokens = [*map(ord, f"{t.scores['sampled']:.1f}"), 8]
        t.segments[-1].logprobs = [-0.2] * 4
        branches = {
            at: dict(
                zip(node.children, torch.rand(len(node.children), generator=generator).tolist(), strict=True)
            )
            for at, node in tree.branchings()
        }
        shares = {at: {n: p / sum(row.values()) for n, p in row.items()} for at, row in branches.items()}
        readings.append(ScoreReading(tree, shares))
    readings[5] = None
    flat[5].scores.clear()
    uids = [group.problem.id for group in groups for _ in group.trajectories]
    batches = [range(8), range(8, 16)]
    streams, _ = row_streams(method, [*map(Row, flat)], uids, batches, LossConfig(), 0, readings)
    logits = torch.randn(16, width, 64, generator=generator)
    for t, reading in zip(flat, readings, strict=True):
        t.scores |= {"soft": 0.0} if reading else {}
        t.segments[-1].parsed = reading
    credits = [method.credit(group, valid_trajectories(group, False)) for group in groups]
    kept, _ = select(Rollout([None] * 4, groups), credits, True)  # type: ignore[list-item]
    for batch, first in zip(batches, (0, 2), strict=True):
        at = streams[SHARE][batch].any(-1).nonzero(as_tuple=True)
        share, worth, ids, place = (streams[name][batch][at] for name in (SHARE, WORTH, ALTERNATIVES, PLACE))
        found = choice_surrogate(logits[batch][at[0], place].gather(-1, ids), share, worth).loss.sum()
        own = [group for group in kept if group.number in (first, first + 1)]
        places, weights, choices = stack_choices(own)
        numbers = torch.tensor([4 * own[b].number + g for b, g, _ in places.tolist()])
        terms = choice_surrogate(
            logits[numbers, places[:, 2]].gather(-1, choices.tokens), choices.probability, choices.advantage
        )
        wanted = (terms.loss * weights).sum() / sum(group.trajectories for group in own)
        torch.testing.assert_close(found, wanted)
        assert len(places) > 6
    assert not streams[SHARE][[5, 9]].any(), "without a score, and a lost one"


def test_pairs_have_the_gradient_of_our_trainer() -> None:
    """Rows of a pair come in any order; one pair has lost a side."""
    method, generator = make_method("dpo", eta=0.3), torch.Generator().manual_seed(1)
    _, groups = groups_of("adapo")
    for group in groups:
        del group.trajectories[2:]
        for t in group.trajectories:
            t.rewards["turns"] = 2.0
    flat = [t for group in groups for t in group.trajectories]
    order = [7, 0, 4, 5, 2, 1, 3, 6]
    now, reference = (
        [-torch.rand(len(t.tokens), generator=generator) * (3 + i % 2) for i, t in enumerate(flat)]
        for _ in range(2)
    )
    now = [row.requires_grad_() for row in now]
    streams, figures = row_streams(
        method, [Row(flat[i], i % 2) for i in order],
        [str(i // 2) for i in order], [range(8)], LossConfig(),
        logprobs=[[column[i].detach() for i in order] for column in (now, reference)],
    )  # fmt: skip
    rows = pad_sequence([now[i] for i in order], batch_first=True)
    terms = surrogate(rows, rows.detach(), streams[ADVANTAGE], kl_coef=streams[KL_COEF])
    found = torch.autograd.grad((terms.loss * streams[WEIGHT]).sum(), now, allow_unused=True)
    credits = [method.credit(group, valid_trajectories(group, False)) for group in groups]
    kept, _ = select(Rollout([None] * 4, groups), credits, True)  # type: ignore[list-item]
    losses = []
    for group, weight in zip(kept, pair_weights(kept), strict=True):
        sides = slice(2 * group.number, 2 * group.number + 2)
        both = [pad_sequence(column[sides], batch_first=True)[None] for column in (now, reference)]
        told = pairwise(*both, group.advantage_gr[None], group.kl_coef_gr[None])
        losses.append(told.loss[0] * weight.max())
    wanted = torch.autograd.grad(sum(losses), now)  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted)
    assert figures["pairs/loss"] == pytest.approx(float(sum(losses).detach()), abs=1e-6)
    assert not wanted[4].any() and wanted[0].any()


def test_a_batch_in_which_nothing_teaches_makes_no_step() -> None:
    """verl leaves a step out whose gradient is not finite; after zeros AdamW would go on by its moments."""
    method, groups = groups_of("adpo")
    quiet = [t for _ in range(2) for t in groups[1].trajectories]
    uids = [0] * 4 + [1] * 4
    streams, _ = row_streams(method, [*map(Row, quiet)], uids, [range(8)], LossConfig())
    assert streams[WEIGHT].isnan().all()


def test_stages_of_a_method_go_on() -> None:
    """SCoRe's credit asks for the step: its second stage pays the first turn for itself."""
    _, groups = groups_of("adapo")
    method = make_method("score", first_stage=1, kl=0.01, first_kl=0.1)
    flat = [t for group in groups for t in group.trajectories]
    uids = [group.problem.id for group in groups for _ in group.trajectories]
    found = [row_streams(method, [*map(Row, flat)], uids, [range(16)], LossConfig(), n) for n in (0, 1)]
    assert [figures["score/stage"] for _, figures in found] == [1, 2]
    assert [round(float(streams[KL_COEF].max()), 3) for streams, _ in found] == [0.1, 0.01]


def test_groups_stay_together() -> None:
    """On two ranks of six rows each; the longest group of three goes first."""
    uids, lengths = list("abcdabcdabcd"), [1, 9, 5, 2] * 3
    order = in_groups(uids, lengths, 2)
    assert ["".join(uids[row] for row in order[rank : rank + 6]) for rank in (0, 6)] == ["bbbaaa", "cccddd"]
    names = [*"abab", "pad"]
    ragged = in_groups(names, [3, 1, 3, 1, 2], 2)
    assert [names[row] for row in ragged] == ["a", "a", "b", "b", "pad"]


def test_rows_of_an_optimiser_step() -> None:
    """Two ranks with six rows each, four rows a step: each rank gives two."""
    assert optimiser_batches(12, 2, 4) == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    with pytest.raises(ValueError, match="do not divide"):
        optimiser_batches(12, 2, 5)


CREDIT = "method.verification_credit=concordance"
ENGINE = ["engine={name: verl, gpus_per_node: 2}", "policy.path=some/model"]

TABLES = read_tables(Path(__file__).with_suffix(".yaml"))
READ_THERE, NOT_THERE, VALUES, ALSO = (TABLES[name] for name in ("read_there", "not_there", "values", "also"))


def settings(model: type[Config] = Recipe, above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        dotted = f"{above}{name}"
        inner = [
            part
            for part in (field.annotation, *get_args(field.annotation))
            if isinstance(part, type) and issubclass(part, Config) and part is not NamedConfig
        ]
        if inner and dotted not in REFUSED and dotted != "engine":
            yield from settings(inner[0], f"{dotted}.")
        elif dotted != "engine":
            yield dotted, field


def other(name: str, field: FieldInfo) -> Any:
    """Another value than the default."""
    if name in VALUES:
        return VALUES[name]
    kinds = [field.annotation, *get_args(field.annotation)]
    chosen = [v for kind in kinds if get_origin(kind) is Literal for v in get_args(kind)]
    if chosen or get_origin(field.annotation) is Literal:
        return next(v for v in chosen or get_args(field.annotation) if v != field.default)
    if isinstance(field.default, bool):
        return not field.default
    for kind, value in ((int, 7), (float, 0.5), (str, "words")):
        if kind in kinds:
            return value
    raise AssertionError(f"{name}: say in VALUES what it may be")


def with_values(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    plain = recipe.model_dump(mode="json")
    for dotted, value in values.items():
        *sections, last = dotted.split(".")
        inner = plain
        for section in sections:
            inner[section] = inner = inner.get(section) or {}
        inner[last] = value
    return Recipe.model_validate(plain)


def test_every_setting_reaches_verl_or_is_refused() -> None:
    """A new setting of a recipe is mapped, named here as read by our own code there, or refused."""
    plain = load_recipe("adpo-digits", [*ENGINE, CREDIT])
    found = {name for name, _ in settings()}
    assert {*READ_THERE, *NOT_THERE, *REFUSED} <= found, "no setting is named that there is not"
    wrong = []
    for name, field in settings():
        if name in (*READ_THERE, *NOT_THERE):
            continue
        lora = {"policy.lora.rank": 4} if name.startswith("policy.lora") else {}
        recipe = with_values(plain, {**lora, **ALSO.get(name, {})} if name not in REFUSED else {})
        changed = with_values(plain, {**lora, **ALSO.get(name, {}), name: other(name, field)})
        try:
            made, _ = verl_config(changed)
        except ConfigError as error:
            if name not in str(error):
                wrong.append(f"{name}: {error}")
            continue
        before, _ = verl_config(recipe)
        for config in (made, before):
            del config["algorithm"]["selfverify"]
        if made == before or name in REFUSED:
            wrong.append(f"{name} changes nothing")
    assert not wrong, "\n".join(wrong)


def test_the_configuration_of_a_recipe() -> None:
    more = [
        "output=runs/${a}",
        "engine.options={trainer.balance_batch: false, data: {val_batch_size: 7}}",
        "learner.groups_per_step=8",
    ]
    recipe = load_recipe("adpo-digits", [*ENGINE, CREDIT, *more])
    made, options = verl_config(recipe)
    assert made["trainer"]["v1"]["trainer_mode"] == "selfverify" and made["data"]["train_batch_size"] == 8
    assert options == ["trainer.balance_batch=false", "data.val_batch_size=7"], "hydra reads them"
    assert made["actor_rollout_ref"]["rollout"]["n"] == recipe.sampling.group_size
    text = made["algorithm"]["selfverify"]
    read = Recipe.model_validate_json(text).model_dump(mode="json", exclude={"engine"})
    assert "$" not in text and read == recipe.model_dump(mode="json", exclude={"engine"})
    assert made["actor_rollout_ref"]["actor"]["use_kl_loss"] == (recipe.method.options.get("kl", 0) > 0)
    assert made["trainer"]["save_freq"] > 0, "the trained weights are saved"
    made, _ = verl_config(load_recipe("vts-v-verifier-qwen2.5-vl-7b", ENGINE))
    actor, rollout = (made["actor_rollout_ref"][name] for name in ("actor", "rollout"))
    assert rollout["n"] == 2 and actor["ppo_mini_batch_size"] == 8, "the sides of a pair"
    assert made["trainer"]["test_freq"] == -1 and not made["trainer"]["val_before_train"]
    assert "hf_model" not in actor["checkpoint"]["save_contents"], "it would not be the adapter"


@yaml_cases
def test_what_verl_cannot_do_is_refused(recipe: str, changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        verl_config(load_recipe(recipe, [*ENGINE, *changes]))


def test_an_adapter_has_to_be_merged(tmp_path: Path) -> None:
    """verl would look for a model in its folder."""
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some/model"}')
    recipe = load_recipe("adpo-digits", [*ENGINE, CREDIT, f"policy.path={tmp_path}"])
    with pytest.raises(ConfigError, match="selfverify merge"):
        verl_config(recipe)


@pytest.mark.parametrize(
    "where", [["engine.nodes=1"], ["engine.nodes=8"], ["engine.gpus_per_node=1", "policy.lora={}"]]
)
@yaml_cases
def test_recipes_of_the_papers_fit_verl(tmp_path: Path, name: str, base: str, where: list[str]) -> None:
    """On 8 and on 64 GPUs, and with an adapter on one; all but engine and name is the paper's recipe."""
    plain = load_recipe(name)
    assert plain.model_copy(update={"engine": None, "name": base, "output": f"runs/{base}"}) == load_recipe(
        base
    )
    (tmp_path / "config.json").write_text(json.dumps(TABLES["qwen_7b"]))
    score = ["task.score=false", "evaluation.score=soft"] if base.startswith("adapo") else []
    data = [
        "task.name=digits-pick",
        "episode={}",
        "evaluation.problems=8",
        "learner.epochs=null",
        *score,
    ]  # no data is here
    recipe = load_recipe(name, [*data, f"policy.path={tmp_path}", *where])
    assert recipe.engine is not None
    lines = engine_lines(recipe, recipe.engine, verl_config(recipe)[0])
    assert "does NOT fit" not in "".join(lines) and "this fits into 80 GB" in lines[3]
    parameters = int(lines[0].split()[0].replace(",", ""))
    assert parameters == 8_292_166_656, "as the Hub says"


def test_a_plan_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    recipe = load_recipe("adpo-digits", ["engine={gpus_per_node: 1}", CREDIT, "policy.path=nobody/no-model"])
    assert recipe.engine is not None
    with pytest.raises(ConfigError, match=r"nobody/no-model: its config\.json"):
        engine_lines(recipe, recipe.engine, verl_config(recipe)[0])


def test_what_only_our_trainer_does_is_refused() -> None:
    words = ["train", "adpo-digits", "engine={name: verl}", CREDIT]
    for more in (["--overwrite"], ["--replay", "runs/other"]):
        shown = CliRunner().invoke(app, [*words, *more])
        assert shown.exit_code == 2 and "our own trainer's" in " ".join(shown.output.split())
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2 and "none is installed here" in " ".join(shown.output.split())
