"""Conversations on verl end as our own do, whatever their episodes and servers do; without Ray."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from PIL import Image
from transfer_queue.utils.serial_utils import MsgpackDecoder, MsgpackEncoder
from verl.workers.rollout.replica import TokenOutput

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation
from selfverify.core.trajectory import Finish, Segment, Trajectory
from selfverify.experiments.recipe import load_recipe
from selfverify.integrations.verl import loop
from selfverify.integrations.verl.streams import FIELD, Row
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import rollout

RECIPE = load_recipe(
    "adpo-digits", ["engine={name: verl, gpus_per_node: 1}", "method.verification_credit=concordance"]
)


class Server:
    """Says the same words again and again, as verl's servers do; ``error`` is raised in the second turn."""

    def __init__(self, words, error=None):
        self.words, self.error, self.asked = words, error, []

    async def generate(self, request_id, prompt_ids, image_data, sampling_params):
        self.asked.append((list(prompt_ids), image_data, sampling_params))
        if self.error is not None and len(self.asked) == 2:
            raise self.error
        said = self.words[: sampling_params["max_tokens"]]
        extra = {"min_global_steps": 3, "max_global_steps": 4}
        return TokenOutput(
            token_ids=said, log_probs=[-0.5] * len(said), stop_reason="completed", extra_fields=extra
        )


class Twice(Episode):
    """Two turns; between them an image is shown. ``fault`` names what fails."""

    def __init__(self, fault=None):
        self.fault, self.turns = fault, 0

    def step(self, said):
        self.turns += 1
        if self.fault == "step" and self.turns == 2:
            raise OSError("the device is gone")
        if self.turns == 2:
            return Observation(done=True)
        picture = Image.new("RGB", (48, 32), (200, 10, 10))
        content = [{"type": "text", "text": "And here: <|im_end|>"}, {"type": "image"}]
        return Observation(content, images=[picture])

    def release(self):
        if self.fault == "release":
            raise OSError("it does not let go")

    def awaited(self):
        future = Future()
        future.set_exception(OSError("no verdict")) if self.fault == "awaited" else future.set_result(None)
        return future

    def result(self):
        if self.fault == "awaited":
            raise OSError("no verdict")
        return EpisodeResult({"correct": 1.0}, {"sampled": 0.5}, [None, None])


@pytest.fixture(scope="module")
def policy():
    return Policy.load("builtin:digits", device="cpu")


def held(server, fault=None, prompt_tokens=256, split="train", threads=0):
    """The outcome of one conversation in verl's agent loop."""
    recipe = RECIPE.model_copy(update={"name": f"{fault}"})
    shared = loop.resources_of(recipe.model_dump_json(exclude={"engine"}))
    limits = RolloutLimits(turns=2, step_threads=threads)
    shared.opening = lambda split: (shared.task, lambda problem, seed: Twice(fault), limits)
    agent = loop.EpisodeLoop.__new__(loop.EpisodeLoop)
    agent.config = OmegaConf.create({"algorithm": {"selfverify": recipe.model_dump_json(exclude={"engine"})}})
    agent.rollout_config = SimpleNamespace(prompt_length=prompt_tokens, response_length=160)
    agent.server_manager, agent.tokenizer = server, shared.policy.tokenizer
    agent.mm_processor_kwargs = {}
    about = {"data_source": split, "index": 5, "session_id": 1, "global_steps": 7}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "resources_of", lambda text: shared)
        return asyncio.run(agent.run({"temperature": 1.0}, **about))


def words_of(policy, text):
    return [*policy.tokenizer(text)["input_ids"], *policy.stop_tokens]


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("fault", [None, "release", "awaited", "step"])
def test_faults_of_episodes_end_conversations_as_ours(policy, fault, threads):
    """A release that raises is noted; without a verdict or a reply a trajectory is lost."""
    words = words_of(policy, "<answer>1</answer>")
    found = held(Server(words), fault, threads=threads)
    task = loop.LoopResources(RECIPE).task
    own = rollout(
        PolicySampler(policy, SamplingConfig(max_new_tokens=48)), task, [task.problem("train", 0, 5)], [1], 1,
        open_episode=lambda problem, seed: Twice(fault), limits=RolloutLimits(turns=2, step_threads=threads),
    ).groups[0].trajectories[0]  # fmt: skip
    told = found.extra_fields[FIELD].trajectory
    lost = fault in ("awaited", "step")
    assert own.lost == lost == bool(found.extra_fields["reward_extra_info"]["lost"])
    assert (told.finish == Finish.ERROR) == lost and told.rewards == own.rewards
    assert len(found.response_ids) == len(found.response_mask) == len(found.response_logprobs)
    assert found.reward_score == float(not lost)


def test_an_image_in_a_later_turn(policy):
    """The second turn's prompt is ours, its image reaches the server, and no word of it ends a turn."""
    words = words_of(policy, "<answer>1</answer>")
    server = Server(words)
    found = held(server)
    (first, images, params), (second, more, _) = server.asked
    assert len(images) == 1 and len(more) == len(found.multi_modal_data["images"]) == 2
    assert params["stop_token_ids"] == sorted(policy.stop_tokens)
    assert second[: len(first)] == first == found.prompt_ids
    between = second[len(first) + len(words) :]
    assert found.response_mask == [1] * len(words) + [0] * len(between) + [1] * len(words)
    assert found.response_ids == [*words, *between, *words]
    [prompt] = policy.encode([loop.LoopResources(RECIPE).problem("train", 5)])
    assert prompt.ids.tolist() == first
    [image] = prompt.images
    assert between.count(policy.model.config.image_token_id) == image.placeholders
    assert sum(token in policy.stop_tokens for token in between) <= 1, "words of an environment end nothing"
    assert found.extra_fields["min_global_steps"] == 3 and found.extra_fields["max_global_steps"] == 4


def test_what_is_not_an_episodes_fault_is_named(policy):
    """A prompt that is too long is skipped; a server that fails ends the run."""
    words = words_of(policy, "<answer>1</answer>")
    skipped = held(Server(words), prompt_tokens=10)
    assert "engine.prompt_tokens=10" in skipped.extra_fields[FIELD].skipped
    assert skipped.response_mask == [0] and skipped.extra_fields["min_global_steps"] == 6
    fatal = held(Server(words, RuntimeError("the server is gone")))
    assert "the server is gone" in fatal.extra_fields[FIELD].fatal


def test_a_conversation_goes_through_verls_queue(policy):
    """As it is, but for its images, which verl has already."""
    found = held(Server(words_of(policy, "<answer>1</answer>"))).extra_fields[FIELD]
    sent = MsgpackDecoder().decode(MsgpackEncoder().encode({FIELD: found}))[FIELD]
    assert sent.trajectory == found.trajectory and sent.number == 1
    assert not any(segment.images for segment in sent.trajectory.segments)
    assert sent.trajectory.segments[0].logprobs and sent.trajectory.rewards == {"correct": 1.0}
    shown = Segment("observation", [1], images=[Image.new("RGB", (4, 4))])
    Row(Trajectory([shown]))
    assert shown.images, "the conversation keeps its own"


def test_a_mark_of_an_image_cuts_a_turn_off(policy):
    words = words_of(policy, "<answer>1</answer>")
    never = policy.suppressed_tokens[0]
    found = held(Server([*words[:3], never, *words[3:]]))
    assert found.response_ids == words[:3] and found.extra_fields[FIELD].trajectory.finish == Finish.LENGTH
