"""The apps of the phone."""

from __future__ import annotations

from typing import Any

from selfverify.agents.phone.apps import clock_app, contacts_app, home_app, settings_app
from selfverify.agents.phone.system.device import App, Phone

APPS: dict[str, App] = {
    app.name: app
    for app in (
        home_app.APP,
        settings_app.APP,
        contacts_app.APP,
        clock_app.APP,
    )
}
"""By name, in the order of the home screen."""


def switch_on(state: dict[str, Any]) -> Phone:
    """A phone in this state, with all apps."""
    return Phone(state, APPS)
