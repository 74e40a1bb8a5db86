"""Update and log-probs on verl: its own FSDP engine against ours, which forwards a prompt once for a group.

Both engines run in one process on the same rows, in the environment with verl (`make verl` makes it)::

    PYTHONPATH=src:tests/with_verl VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=cpu_platform,cpu_engine \\
        .venv-verl/bin/python benchmarks/verl_engine.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import arguments, finish, interleaved, parse, show
from verl.utils import tensordict_utils
from verl.workers.utils.padding import no_padding_2_padding
from workers import batch, llama_folder, worker

import selfverify.integrations.verl.shared_engine  # noqa: F401
from selfverify.integrations.verl.launch import VENDOR

WORDS = 4096


def loss_of(
    config: Any, model_output: Any, data: Any, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The mean log-prob: which loss it is makes no difference to the time."""
    return -no_padding_2_padding(model_output["log_probs"], data).mean(), {}


def groups_of(prompt: int, response: int, group: int, groups: int) -> Any:
    """Groups of rows with the same prompt."""
    prompts = [p for _ in range(groups) for p in [torch.randint(2, WORDS, (prompt,))] * group]
    responses = [torch.randint(2, WORDS, (response - i % 4,)) for i in range(len(prompts))]
    data = batch(prompts, responses)
    tensordict_utils.assign_non_tensor(data, temperature=1.0)
    return data


def fresh(call: Callable[[Any], Any], data: Any) -> None:
    """Hand over a copy: workers take fields out of what they get."""
    call(data.clone())


def main() -> None:
    """Measure each size, print a table and finish."""
    parser = arguments(__doc__)
    parser.set_defaults(prompts=[106, 1024, 256], groups=[8, 16, 8])
    parser.add_argument("--responses", type=int, nargs="+", default=[24, 32, 256], help="answers' tokens")
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--layers", type=int, default=6, help="of the model")
    given = parse(parser)
    width, rows, ratios = given.width, [], {}
    path = llama_folder(tempfile.mkdtemp(), WORDS, width, 3 * width, given.layers, width // 32)
    for prompt, response, group in zip(given.prompts, given.responses, given.groups, strict=True):
        size = {"micro_batch_size_per_gpu": group, "infer_micro_batch_size_per_gpu": group}
        model = {"enable_gradient_checkpointing": False}
        made = {
            name: worker(path, vendor, loss_of, model, rate=1e-5, **size)
            for name, vendor in (("verl", "none"), ("shared", VENDOR))
        }
        data = groups_of(prompt, response, group, 2)
        asked = data.clone()
        tensordict_utils.assign_non_tensor(asked, compute_loss=False)
        found = [no_padding_2_padding(m.infer_batch(asked.clone())["log_probs"], data) for m in made.values()]
        torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
        for phase in ("log-probs", "update"):
            learns = phase == "update"
            sides = {
                name: partial(fresh, m.train_batch if learns else m.infer_batch, data if learns else asked)
                for name, m in made.items()
            }
            times = interleaved(sides, given.repeats)
            ratios[f"{prompt} + {group} x {response}, {phase}"] = times["verl"] / times["shared"]
            rows.append((prompt, group, response, phase, *times.values(), times["verl"] / times["shared"]))
    show("verl's engine and ours", ("prompt", "G", "answer", "pass", "verl s", "shared s", "ratio"), rows)
    finish({"ratios": ratios}, given)


if __name__ == "__main__":
    main()
