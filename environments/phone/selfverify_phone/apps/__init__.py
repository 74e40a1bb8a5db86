"""The apps of the phone."""

from __future__ import annotations

from typing import Any

from selfverify_phone.apps import (
    calendar_app,
    clock_app,
    contacts_app,
    home_app,
    maps_app,
    money_app,
    music_app,
    reader_app,
    settings_app,
)
from selfverify_phone.system.device import App, Phone

APPS: dict[str, App] = {
    module.APP.name: module.APP
    for module in (
        home_app,
        settings_app,
        contacts_app,
        clock_app,
        calendar_app,
        money_app,
        music_app,
        maps_app,
        reader_app,
    )
}
"""By name, in the order of the home screen."""


def switch_on(state: dict[str, Any]) -> Phone:
    """A phone in this state, with all apps."""
    return Phone(state, APPS)
