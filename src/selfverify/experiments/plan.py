"""The memory and work of one step of a recipe, in closed form from a model's shapes and a recipe's numbers.

The model is made without its weights, and nothing is computed with it. Counted is the worst moment of each
phase: sampling, reading scores, and the update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from selfverify.core.config import EngineConfig
from selfverify.core.episode import Observation
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.experiments.recipe import Recipe, recipe_task
from selfverify.experiments.registry import make_method
from selfverify.methods.base import Method
from selfverify.policy.adapters import is_adapted
from selfverify.policy.encoding import Prompt
from selfverify.policy.families import Family, family_of
from selfverify.policy.loading import load_structure, resolve
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.packing import SharedLayout
from selfverify.policy.policy import Policy
from selfverify.policy.scores import READ_BATCH, score_tree
from selfverify.tasks.base import user_turn

MOST = 8
"""The most problems that are drawn; a larger step repeats them."""
OUTSIDE = 6
"""Tensors as wide as the model that autograd keeps of each token outside of the layers."""
LEARNT, DRAWN, SCORE = 16, 25, 8
"""Bytes of a logit while it is learnt from (four float32), and while a token is drawn (float64, too); of an
attention score that is written out."""
ENDED = 5
"""Of so many conversations one has ended when the others' keys are copied without it."""


class Block:
    """The widths of a layer: of the model, its heads, all queries, all keys, and the feed-forward block.

    Args:
        config: A configuration of transformers, of a decoder or of a tower.

    Raises:
        ConfigError: It names none, or several for different layers.
    """

    def __init__(self, config: Any) -> None:
        heads = getattr(config, "num_attention_heads", None) or getattr(config, "num_heads", None)
        hidden, wide = getattr(config, "hidden_size", None), getattr(config, "intermediate_size", None)
        if not (isinstance(heads, int) and isinstance(hidden, int) and isinstance(wide, int | None)):
            raise ConfigError(f"{config.model_type}: its configuration names no one width of all its layers")
        size: int = getattr(config, "head_dim", None) or hidden // heads
        self.hidden, self.heads, self.query, self.wide = hidden, heads, size * heads, wide or 4 * hidden
        self.keys: int = size * (getattr(config, "num_key_value_heads", None) or heads)

    def saved(self, size: int, own: bool = True, norms: bool = True) -> int:
        """Return the bytes that autograd keeps of a token.

        Args:
            size: Bytes of a weight.
            own: Whether it stands behind a prompt, where attention merges two parts.
            norms: Whether the layer norms learn.
        """
        parts = (5, 4) if own else (3, 2)
        attention = parts[0] * self.query + parts[1] * self.keys
        return 2 * (4 + (1 + norms) * size) * self.hidden + size * (attention + 4 * self.wide)


class Shapes:
    """The numbers of a model.

    Args:
        model: The model, which needs no weights.
        family: Its family.

    Attributes:
        layer: The widths of a decoder layer.
        layer_count: How many there are.
        window: The sliding window of some layers; None where there is none.
        sliding: How many layers have it.
        vocabulary: Rows of the output head.
        tied: Whether the head is the embeddings' matrix.
        size: Bytes of a weight.
        learnt: Bytes of one that learns.
        adapted: Whether these are an adapter's.
        weights: Bytes of all weights.
        every: All parameters.
        learning: Those that learn.
        decoder: Those of all decoder layers.
        tower: Those that encode images.
        vision: Bytes that autograd keeps of a patch in a tower that learns.
    """

    def __init__(self, model: Any, family: Family) -> None:
        text, head = model.config.get_text_config(), model.get_output_embeddings().weight
        decoder: Any = family.backbone(model)
        vision = getattr(model.config, "vision_config", None)
        tower = {} if vision is None else vision.to_dict()
        depth = int(tower.get("depth") or tower.get("num_hidden_layers") or 0)
        kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
        every = [*model.parameters()]
        learning = [p for p in every if p.requires_grad]
        self.layer = Block(text)
        self.layer_count: int = text.num_hidden_layers
        self.window: int | None = getattr(text, "sliding_window", None)
        self.sliding: int = kinds.count("sliding_attention")
        self.vocabulary, self.size = len(head), int(head.itemsize)
        self.tied = head is model.get_input_embeddings().weight
        self.learnt: int = max(p.itemsize for p in learning)
        self.adapted = is_adapted(model)
        self.weights: int = sum(p.nbytes for p in every)
        self.every: int = sum(p.numel() for p in every)
        self.learning: int = sum(p.numel() for p in learning)
        self.decoder: int = sum(p.numel() for p in getattr(decoder, "layers", decoder).parameters())
        self.tower: int = sum(p.numel() for p in family.vision_parameters(model))
        self.vision = depth and depth * Block(vision).saved(self.size, own=False)

    @property
    def head(self) -> int:
        """The values of the output head."""
        return self.vocabulary * self.layer.hidden

    def passing(self, own: bool = True) -> int:
        """Return the bytes of a token in a pass that nothing is learnt from, at its worst moment.

        ``own``: whether it stands behind a prompt, where attention merges two parts in float32.
        """
        hidden, query, keys, wide = self.layer.hidden, self.layer.query, self.layer.keys, self.layer.wide
        merging = self.size * (2 * hidden + 2 * keys + 6 * query) + 12 * query
        # The output of an adapter stands beside that of its layer.
        return max(merging * own, self.size * (hidden + (2 + self.adapted) * wide))

    def work(self, tokens: float, pairs: float) -> float:
        """Return the operations of the layers on ``tokens``, and on ``pairs`` of a query and a key."""
        return 2 * self.decoder * tokens + 4 * self.layer.query * self.layer_count * pairs

    def forward(self, prompts: Sequence[int], rows: int, own: int) -> float:
        """Return the operations of the layers on prompts with ``rows`` of ``own`` tokens behind each."""
        tokens = sum(prompts) + len(prompts) * rows * own
        return self.work(tokens, sum(p * p + rows * own * (p + own) for p in prompts))


class Lengths:
    """The prompts and conversations of one step on one GPU.

    A few problems are drawn; conversations go on to the recipe's limits, or are as long as demonstrated.

    Args:
        recipe: The recipe.
        method: Its method.
        policy: Encodes the prompts.
        groups: How many problems the step has.
        heard: The tokens of what an environment says at a time.

    Raises:
        DataError: The task cannot make its problems.

    Attributes:
        prompts: The tokens of each prompt.
        shown: The placeholders of each prompt's images.
        patches: The patches of each prompt's images, which pass through the tower.
        group_size: The number of conversations per prompt (G).
        own: The tokens behind a prompt, at the longest (R).
        said: How many of them the policy says.
        stated: Where the lengths come from, in words for people.
    """

    def __init__(
        self, recipe: Recipe, method: Method, policy: Policy, groups: int, heard: int | None
    ) -> None:
        task = recipe_task(recipe)
        task.set_coordinate_space(policy.coordinate_space)
        problems = [task.problem("train", recipe.seed, i) for i in range(min(groups, MOST))]
        drawn = [policy.encoder.prompt(problem) for problem in problems]
        prompts = [*islice(cycle(drawn), groups)]
        self.prompts = [len(prompt.ids) for prompt in prompts]
        self.shown = [sum(image.placeholders for image in prompt.images) for prompt in prompts]
        self.patches = [_patches(policy, prompt) for prompt in prompts]
        self.stated = f"{len(drawn)} problems of {task.name} were drawn"
        if not samples(recipe, method):
            seeds = [*range(len(problems))]
            made = method.rollout(policy, task, problems, seeds, recipe.sampling)
            told = [t for group in made.groups for t in group.trajectories]
            self.own = self.said = max(len(t.tokens) for t in told)
            self.group_size = max(len(group.trajectories) for group in made.groups)
            self.stated += ", with their demonstrations"
            return
        limits = method.limits or task.limits
        begins = any(problem.environment_begins for problem in problems)
        words = recipe.method.options.get("second_turn")
        if heard is None and words is not None and not begins:
            asked = Problem("planned", user_turn("", 0))
            heard = len(ReplyEncoder(policy.encoder).encode(asked, Observation(words), 1).tokens)
        self.stated += f", conversations go on to sampling.max_new_tokens in each of {limits.turns} turns"
        if heard is None and (begins or limits.turns > 1):
            self.stated += ", and what their environment says is NOT counted: say how long it is"
        self.group_size = recipe.sampling.group_size
        self.said = limits.turns * recipe.sampling.max_new_tokens
        self.own = whole = self.said + (heard or 0) * (limits.turns - 1 + begins)
        if limits.tokens is not None:
            self.own = min(whole, max(limits.tokens - min(self.prompts), 1))
            self.said = self.said * self.own // whole


def samples(recipe: Recipe, method: Method) -> bool:
    """Whether the method samples. Of fine-tuning methods, only that of second turns does."""
    return method.measured or "second_turn" in recipe.method.options


def _patches(policy: Policy, prompt: Prompt) -> int:
    vision = getattr(policy.model.config, "vision_config", None)
    tensors = [pair for image in prompt.images for pair in image.tensors.items()]
    values = sum(tensor.numel() for name, tensor in tensors if name == "pixel_values")
    if not values or vision is None:
        return 0
    side = getattr(vision, "patch_size", 14)
    side = side if isinstance(side, int) else side[0]
    return int(values // (3 * side**2 * getattr(vision, "temporal_patch_size", 1)))


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory and work of one step.

    Args:
        memory: Bytes on each GPU at the worst moment of each phase, by what they hold: weights, the reference
            policy, gradients, the optimiser's state, activations, caches (keys, values and image features),
            logits, and weights that FSDP has gathered.
        flops: The operations of each phase, on each GPU, two per multiply-add; causal attention in full.
        lengths: The prompts and conversations of one GPU.
        parameters: How many there are, and how many of them learn.
        gpus: They share the problems of a step.
        sharded: Whether FSDP shares the model out to them, too; else each has all of it.
        notes: Sentences about all that is not in the plan.
    """

    memory: dict[str, dict[str, int]]
    flops: dict[str, float]
    lengths: Lengths
    parameters: tuple[int, int]
    gpus: int
    sharded: bool
    notes: list[str]

    @property
    def worst(self) -> str:
        """The phase that holds the most bytes."""
        return max(self.memory, key=lambda phase: sum(self.memory[phase].values()))

    @property
    def total(self) -> int:
        """The bytes at the worst moment."""
        return sum(self.memory[self.worst].values())

    def lines(self) -> list[str]:
        """Return the plan in words for people."""
        at, count = self.lengths, len(self.lengths.prompts)
        shared = self.gpus * (sum(at.prompts) + at.group_size * count * at.own)  # P + G R over all prompts
        plain = self.gpus * at.group_size * (sum(at.prompts) + count * at.own)
        width = max(map(len, self.memory))
        kind = "sharded" if self.sharded else "whole on each"
        where = f" on each of {self.gpus} GPUs (the model {kind})" if self.gpus > 1 else ""
        return [
            f"{self.parameters[0]:,} parameters, of which {self.parameters[1]:,} learn",
            f"step: {count * self.gpus} problems x {at.group_size} conversations of {at.own} tokens",
            f"prompts of {sum(at.prompts) / count:.0f} tokens, at most {max(at.prompts)}, "
            f"{sum(at.shown) / count:.0f} of them for images",
            f"tokens of a pass: {shared:,}; with prompts written out {plain:,}",
            at.stated,
            f"GB that tensors hold{where} at the worst moment of each phase, most in {self.worst}:",
            *(f"  {phase:{width}} {_sum(held, 1e9, '.3f', 5e5)}" for phase, held in self.memory.items()),
            f"TFLOP of a step{where}: {_sum(self.flops, 1e12, '.4g', 1)}",
            *self.notes,
        ]


def _sum(parts: Mapping[str, float], unit: float, form: str, least: float) -> str:
    """Return a sum with its parts, but for those below ``least``."""
    shown = " + ".join(f"{name} {x / unit:{form}}" for name, x in parts.items() if x >= least)
    return f"{sum(parts.values()) / unit:{form}} = {shown}"


def make_plan(recipe: Recipe, gpus: int = 1, sharded: bool = False, heard: int | None = None) -> Plan:
    """Plan one step without loading weights; problems are shared out evenly between GPUs.

    Args:
        recipe: The recipe.
        gpus: The number of GPUs.
        sharded: Whether FSDP shares the model out to them.
        heard: The tokens of what an environment says at a time.

    Raises:
        ConfigError: The model is not there.
        DataError: The task cannot make its problems.
    """
    settings = recipe.policy.model_copy(update={"device": "meta"})
    with torch.device("meta"):
        loaded = load_structure(settings)
    policy, method = Policy(loaded, settings), make_method(recipe.method.name, **recipe.method.options)
    policy.cache = None  # so that no image is encoded
    at = Lengths(recipe, method, policy, -(-recipe.learner.groups_per_step // gpus), heard)
    shapes, notes = Shapes(policy.model, loaded.family), list[str]()
    held = _states(recipe, method, shapes)
    if not settings.train_vision:
        features = sum(at.shown) * shapes.layer.hidden * shapes.size
        held["caches"] = min(features, settings.vision_cache_mb * 2**20)
    phases, flops = dict[str, dict[str, int]](), {"images": 2.0 * shapes.tower * sum(at.patches)}
    if samples(recipe, method) and recipe.sampling.engine == "own" and policy.shares_prefix is not False:
        phases["sampling"] = _sampling(shapes, at, recipe.policy.prefill_chunk)
        flops |= _sampling_work(shapes, at)
    elif samples(recipe, method):
        notes.append("sampling by vLLM, or where prompts are not shared, is not planned")
    text = policy.model.config.get_text_config()
    if any(hasattr(text, name) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        notes.append("every token is counted through all experts, and their activations as one block's")
    if method.config.reads_scores:
        paths = score_tree(policy.tokenizer).paths()
        rows, behind = len(paths) * at.group_size, at.own + max(map(len, paths)) + 1
        tokens = sum(sorted(at.prompts)[-READ_BATCH:]) + min(len(at.prompts), READ_BATCH) * rows * behind
        phases["scores"] = {"activations": shapes.passing() * tokens}
        flops["scores"] = shapes.forward(at.prompts, rows, behind)
    phases["update"] = _update(recipe, method, shapes, at, held["gradients"])
    layers = shapes.forward(at.prompts, at.group_size, at.own)
    once = layers + 2 * shapes.head * len(at.prompts) * at.group_size * at.said
    if method.config.needs_reference:
        flops["reference"] = once
    passes = len(method.channels) if recipe.learner.optim.channels == "separate" else 1
    backward = passes * (1 + shapes.learning / (shapes.every - shapes.tower))
    again = layers if settings.gradient_checkpointing else 0.0
    flops["update"] = recipe.learner.batch.inner_epochs * ((1 + backward) * once + again)
    memory = {}
    for phase, more in phases.items():
        whole = {name: held.get(name, 0) + more.get(name, 0) for name in {**held, **more}}
        if phase != "update":
            whole["gradients"] = 0
        if gpus > 1:
            _share_out(whole, phase, recipe, shapes, gpus, sharded)
        memory[phase] = {name: size for name, size in whole.items() if size}
    flops = {phase: count for phase, count in flops.items() if count}
    return Plan(memory, flops, at, (shapes.every, shapes.learning), gpus, sharded, notes)


def _states(recipe: Recipe, method: Method, shapes: Shapes) -> dict[str, int]:
    """Return the bytes that stay from step to step, and those of the gradients, on one GPU."""
    optim, low = recipe.learner.optim, shapes.learnt < 4
    channels = len(method.channels)
    masters = low and recipe.policy.master_weights
    moments = 2 + 8 / 256 if optim.name == "adamw_8bit" else 2 * (4 if masters else shapes.learnt)
    states = moments * (1 if optim.channels == "joint" else channels) + 4 * masters
    refers = method.config.needs_reference and not shapes.adapted
    return {
        "weights": shapes.weights,
        "reference": shapes.weights if refers else 0,
        "gradients": 4 * shapes.learning * (channels if optim.channels == "separate" else 1),
        "optimiser": int(states * shapes.learning),
    }


def _sampling(shapes: Shapes, at: Lengths, chunk: int) -> dict[str, int]:
    """Return what sampling holds near its end: while it draws, or copies the keys of those that go on."""
    b, g, room = len(at.prompts), at.group_size, SharedLayout.FIRST_ROOM
    while room < at.own - 1:  # as it grows by itself
        room *= 2
    token = 2 * shapes.size * shapes.layer.keys * shapes.layer_count
    kept = token * b * (max(at.prompts) + g * room)
    copied, drawn = token * b * max(g - g // ENDED, 1) * room, DRAWN * b * g * shapes.vocabulary
    read = shapes.passing(own=False) * min(sum(at.prompts), chunk)
    if max(drawn, read) > copied:
        return {"caches": kept, "activations": max(read - drawn, 0), "logits": drawn}
    return {"caches": kept + copied}


def _sampling_work(shapes: Shapes, at: Lengths) -> dict[str, float]:
    """Return the operations of sampling; what an environment says is read as prompts are."""
    rows, mean = len(at.prompts) * at.group_size, sum(at.prompts) / len(at.prompts)
    heard, pairs = rows * (at.own - at.said), mean + at.own / 2
    return {
        "reading": shapes.forward(at.prompts, 0, 0) + shapes.work(heard, heard * pairs),
        "drawing": shapes.work(rows * at.said, rows * at.said * pairs) + 2 * shapes.head * rows * at.said,
    }


def _update(recipe: Recipe, method: Method, shapes: Shapes, at: Lengths, gradients: int) -> dict[str, int]:
    """Return what the largest micro-batch holds beside the states: behind the last layer, or in a layer."""
    batch, size, layer = recipe.learner.batch, shapes.size, shapes.layer
    per_update = -(-len(at.prompts) // batch.updates_per_rollout)
    longest, limit = max(at.prompts), batch.micro_batch_tokens or 2**62
    groups, rows = min(batch.micro_batch_groups, per_update), at.group_size
    while groups > 1 and groups * (longest + rows * at.own) > limit:
        groups -= 1
    while rows > 1 and method.objective != "pairwise" and longest + rows * at.own > limit:
        rows -= 1
    asked, own = groups * longest, groups * rows * max(at.own - 1, 1)
    one = own * layer.saved(size, norms=not shapes.adapted)
    one += asked * layer.saved(size, own=False, norms=not shapes.adapted)
    written = 0  # the scores of layers with a narrow window, which no flash kernel takes
    if shapes.window is not None and shapes.sliding and longest + at.own > shapes.window:
        written = SCORE * layer.heads * own * (longest + at.own)
    inside = size * layer.wide * (asked + own)  # the gradient of a layer's widest part
    outside = OUTSIDE * size * layer.hidden * (asked + own)
    if recipe.policy.activation_offload and recipe.policy.device != "cpu":
        kept, inside = 0, shapes.passing() * (asked + own)
    elif recipe.policy.gradient_checkpointing:
        kept = outside + size * layer.hidden * shapes.layer_count * (asked + own)
        inside += one + written
    else:  # the last layer's feed-forward block skips the prompts
        kept = outside + shapes.layer_count * one - 4 * size * layer.wide * asked + shapes.sliding * written
    if recipe.policy.train_vision and shapes.tower:
        kept += max(at.patches) * groups * shapes.vision
    head = 0 if shapes.adapted else size * shapes.head
    logits = shapes.vocabulary * min(groups * rows * at.said, recipe.policy.logprob_chunk)
    behind = max(LEARNT * logits, 4 * logits + head)
    worst = kept + max(inside, behind)
    if per_update <= groups and recipe.learner.optim.channels != "separate":
        worst -= gradients  # they come as activations go
    worst = max(worst, inside, 3 * head if shapes.tied else head)
    shown = min(LEARNT * logits, worst)
    return {"activations": worst - shown, "logits": shown}


def _share_out(
    held: dict[str, int], phase: str, recipe: Recipe, shapes: Shapes, gpus: int, sharded: bool
) -> None:
    """Turn what one GPU would hold alone into what each holds.

    FSDP2 gives each its part, and keeps gradients in the weights' type. It gathers all weights for the
    rollout, and later a layer when it is needed, and the next one in advance; of one the gradients are whole
    until they are scattered. DDP keeps all on each GPU, and its buckets hold gradients that stay, unless they
    are summed in another type than the weights', or by channel.
    """
    if not sharded:
        beside = shapes.learnt < 4 or recipe.learner.optim.channels == "separate"
        held["gradients"] = shapes.learnt * shapes.learning + beside * held["gradients"]
        return
    held["gradients"] = held["gradients"] * shapes.learnt // 4
    for item in ("weights", "reference", "gradients", "optimiser"):
        held[item] = -(-held[item] // gpus)
    outer, layer = shapes.every - shapes.decoder, shapes.decoder // shapes.layer_count
    kept = 3 * layer if phase == "update" and shapes.layer_count > 3 else shapes.decoder
    held["gathered"] = shapes.size * (outer + kept)


GPU_GB = 80
"""The memory of the GPUs that large models are trained on (A100, H100)."""


def engine_lines(recipe: Recipe, engine: EngineConfig, config: Mapping[str, Any]) -> list[str]:
    """Say what training in another engine holds on each GPU.

    Counted are verl's parts with FSDP2 and activation checkpoints: weights, gradients, AdamW's moments and
    the reference, shared out to all GPUs; the largest layers, gathered; the checkpoints and logits of a
    micro-batch. Servers that sample hold their memory at other times.

    Args:
        recipe: The recipe.
        engine: Its section ``engine``.
        config: verl's configuration.

    Raises:
        ConfigError: The model's config.json is not on this machine, and the Hub does not give it.
    """
    policy, gpus = recipe.policy, engine.nodes * engine.gpus_per_node
    tokens = config["actor_rollout_ref"]["actor"]["ppo_max_token_len_per_gpu"]
    try:
        path = resolve(policy.path)
        settings = AutoConfig.from_pretrained(path, trust_remote_code=policy.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy.path={policy.path}: its config.json, of which a plan is made, is not on this machine, "
            "and the Hub does not give it; put this one file into a folder, and name that"
        ) from error
    sees = getattr(settings, "vision_config", None) is not None
    with torch.device("meta"):
        model: Any = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_config(settings)
    at, size = Shapes(model, family_of(model)), 2 if policy.dtype == "bfloat16" else 4
    learning = at.every if policy.train_vision else at.every - at.tower
    if policy.lora is not None:
        linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
        learning = policy.lora.rank * sum(m.in_features + m.out_features for m in linear)
    method = make_method(recipe.method.name, **recipe.method.options)
    refers = method.config.needs_reference and policy.lora is None
    kept = 4 if policy.master_weights else size
    parts = {
        "weights": kept * at.every / gpus,
        "gradients": kept * learning / gpus,
        "optimiser": 2 * kept * learning / gpus,
        "reference": size * at.every / gpus if refers else 0,
        "gathered": size * (at.every - at.tower - at.decoder + 2 * at.decoder / at.layer_count),
        "activations": tokens * (size * at.layer.hidden * at.layer_count + at.layer.saved(size)),
        "logits": (size + 4) * tokens * at.vocabulary,
    }
    total, server = sum(parts.values()) / 1e9, size * at.every / 1e9
    fits = "fits" if total < 0.9 * GPU_GB else "does NOT fit"
    return [
        f"{at.every:,} parameters, of which {learning:,} learn, on {gpus} GPUs",
        f"tokens of a micro-batch on each GPU: {tokens:,}",
        f"GB on each GPU while it learns: {_sum(parts, 1e9, '.1f', 5e7)}",
        f"this {fits} into {GPU_GB} GB, of which a tenth is left to CUDA and allocators",
        f"GB of a server's weights: {server:.1f}, shared out by tensor_model_parallel_size",
    ]
