"""Splits share neither seeds nor what is held out."""

from __future__ import annotations

import pytest

from selfverify.core.problem import SPLITS, split_seeds
from selfverify_phone.splits import (
    HELD_OUT_APPS,
    Unseen,
    templates_of,
)
from selfverify_phone.templates import TEMPLATES


def test_no_two_splits_share_a_seed() -> None:
    seeds = {split: {next(split_seeds(split, 0, index)) for index in range(500)} for split in SPLITS}
    assert all(len(found) > 490 for found in seeds.values())
    assert not (seeds["train"] & seeds["test"] or seeds["train"] & seeds["validation"])
    assert [{seed % len(SPLITS) for seed in seeds[split]} for split in SPLITS] == [{0}, {1}, {2}]


@pytest.mark.parametrize("unseen", ["templates", "apps"])
def test_tests_of_the_unseen_share_no_template(unseen: Unseen) -> None:
    train, validation, test = (
        {template.name for template in templates_of(split, unseen)} for split in SPLITS
    )
    assert train == validation and not train & test and train and test


def test_seeds_alone() -> None:
    assert all(len(templates_of(split, "seeds")) == len(TEMPLATES) for split in SPLITS)


def test_two_apps_are_held_out() -> None:
    assert {template.app for template in templates_of("test", "apps")} == set(HELD_OUT_APPS)
    assert not {template.app for template in templates_of("train", "apps")} & set(HELD_OUT_APPS)


def test_some_templates_of_every_app_are_held_out() -> None:
    apps = {template.app for template in TEMPLATES.values()}
    assert {template.app for template in templates_of("test", "templates")} == apps
    assert {template.app for template in templates_of("train", "templates", ["clock"])} == {"clock"}
