"""How long a training is: steps, or passes over problems."""

from __future__ import annotations

from selfverify.core.trainer_config import TrainerConfig


def test_passes_decide_the_steps_and_the_warm_up() -> None:
    config = TrainerConfig(steps=100, epochs=2, groups_per_step=32, warmup_share=0.1, evaluate_every=50)
    found = config.lasting(400)
    assert (found.steps, found.warmup_steps, found.evaluate_every) == (25, 2, 25)  # 800 / 32
    assert (found.epochs, found.warmup_share) == (None, None)
    assert config.lasting(401).steps == 26 and config.lasting(10_000).steps == 100
    assert config.lasting(1).steps == 1 and config.lasting(400, epochs=4).steps == 50
    assert config.lasting().steps == 100 and config.lasting().warmup_steps == 10
