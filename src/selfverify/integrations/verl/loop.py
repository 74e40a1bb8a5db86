"""verl's rollouts: its loader's rows, and the agent loop that holds a conversation with any `Episode`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import torch
from torch.utils.data import Dataset
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

from selfverify.core.episode import Observation
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Finish
from selfverify.integrations.verl.streams import FIELD, Settings, as_plain, settings_of
from selfverify.policy.decoding import Sample, derived_seed
from selfverify.rollouts.conversation import Conversation, find_results
from selfverify.rollouts.episode_runner import outcome
from selfverify.rollouts.sampler import ContextFull, Encoded, SampledTurn, sampled_turn

T = TypeVar("T")


class ProblemDataset(Dataset[dict[str, Any]]):
    """The problems of a split, in order.

    Args:
        data_files: One text ``SPLIT/COUNT``, which stands in the place of a file.
        tokenizer: Not used: prompts are written in the agent loop.
        processor: Not used.
        config: verl's ``data``.
        max_samples: Use so many problems at most; -1 for all.
    """

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any,
        processor: Any,
        config: Any,
        max_samples: int = -1,
    ) -> None:
        text = data_files if isinstance(data_files, str) else data_files[0]
        self.split, _, count = text.partition("/")
        self.count = int(count) if max_samples < 0 else min(int(count), max_samples)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return what verl hands to the agent loop."""
        return {
            "raw_prompt": [{"role": "user", "content": ""}],
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
            "data_source": self.split,
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "split": self.split},
            "index": index,
            "tools_kwargs": {},
            "interaction_kwargs": {},
        }


@register("selfverify")
class EpisodeLoop(AgentLoopBase):
    """Answers once, answers again or acts in an environment, as the method's episode has it.

    Episodes may block (devices, remote environments, judges), so that they are asked on threads. What fails
    ends its own conversation, which then takes no part in training.
    """

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """See verl's ``AgentLoopBase``."""
        settings = settings_of(self.config)
        about = kwargs["extra_info"]
        problem = settings.task.problem(about["split"], settings.seed, int(about["index"]))
        talk = Conversation(problem, settings.turns)
        request, room = uuid4().hex, self.rollout_config.response_length
        open_ = partial(
            settings.method.open, settings.task, problem, derived_seed(settings.seed, uuid4().int)
        )
        await self._asked(partial(talk.open, open_, lambda *expected: None))
        first = None
        if not talk.over:
            first = await self._asked(talk.reset)
            if isinstance(first, Exception):
                talk.fail(first)
            else:
                talk.take(first)
        messages, images, tools = (
            [dict(m) for m in problem.messages],
            list(problem.images),
            problem.tools or None,
        )
        if isinstance(first, Observation) and not talk.over:
            # Each sample has an environment of its own: what that shows first ends its prompt.
            messages.append({"role": first.role, "content": first.content})
            images += first.images
        prompt = await self.ct_build_initial_tokens(messages, tools=tools, images=images or None)
        ids, mask, logprobs, steps = list(prompt), list[int](), list[float](), list[Any]()
        while not talk.over:
            limit = min(room - len(mask), settings.max_new_tokens)
            out = await self.server_manager.generate(
                request_id=request,
                prompt_ids=ids,
                image_data=images or None,
                sampling_params=sampling_params | {"max_tokens": limit},
            )
            steps.append(out.extra_fields.get("global_steps"))
            turn = self._sampled(list(out.token_ids), list(out.log_probs or []))
            ids, mask = ids + turn.segment.tokens, mask + [1] * len(turn.segment.tokens)
            logprobs += turn.segment.logprobs
            talk.say(turn)
            reply = await self._asked(talk.step)
            if isinstance(reply, Exception):
                talk.fail(reply)
            elif reply.probe is not None or reply.undo:
                raise ConfigError(f"problem {problem.id}: verl's rollouts cannot ask aside or take back")
            elif talk.take(reply):
                shown = {"role": reply.role, "content": reply.content}
                before = [*messages, {"role": "assistant", "content": turn.turn.text}]
                merged, mask, logprobs = await self.ct_merge_context_msg(
                    before, [*before, shown], ids, mask, logprobs, tools=tools
                )
                heard = list(merged.token_ids[len(ids) :])
                if len(mask) + 1 >= room:
                    kept = len(mask) - len(heard)
                    mask, logprobs = mask[:kept], logprobs[:kept]
                    talk.end(ContextFull(f"data.max_response_length of {room} tokens", len(mask)))
                    break
                talk.show(Encoded(heard, self.tokenizer.decode(heard), list(reply.images)), reply)
                ids, messages, images = list(merged.token_ids), [*before, shown], images + list(reply.images)
        await self._finish(talk, settings)
        trajectory = talk.trajectory()
        correct = float(trajectory.rewards.get("correct", 0.0))
        known = [step for step in steps if step is not None]
        return AgentLoopOutput(
            prompt_ids=list(prompt),
            response_ids=ids[len(prompt) :],
            response_mask=mask,
            response_logprobs=logprobs,
            reward_score=correct,
            num_turns=1 + len(talk.turns),
            metrics={},
            multi_modal_data={"images": images} if images else {},
            extra_fields={
                FIELD: as_plain(trajectory),
                "reward_extra_info": {"correct": correct, "lost": float(trajectory.lost)},
                "turn_scores": [],
                "tool_rewards": [],
                "min_global_steps": min(known, default=None),
                "max_global_steps": max(known, default=None),
            },
        )

    async def _asked(self, call: Callable[[], T]) -> T | Exception:
        """Return what an episode says, asked on a thread, or what it raises."""
        return await asyncio.to_thread(outcome, call)

    def _sampled(self, tokens: list[int], logprobs: list[float]) -> SampledTurn:
        ended = bool(tokens) and tokens[-1] == self.tokenizer.eos_token_id
        return sampled_turn(self.tokenizer, Sample(tokens, logprobs, Finish.STOP if ended else Finish.LENGTH))

    async def _finish(self, talk: Conversation, settings: Settings) -> None:
        """Give the environment back, then ask what came of the conversation."""
        released = await self._asked(talk.release)
        if isinstance(released, Exception) and talk.error is None:
            talk.fail(released)
        awaited = talk.awaited()
        if awaited is not None:
            await asyncio.wrap_future(awaited)
        await asyncio.to_thread(find_results, settings.task, [talk])
