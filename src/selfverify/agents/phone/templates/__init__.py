"""All templates, one file for each app."""

from __future__ import annotations

from selfverify.agents.phone.templates import (
    calendar_tasks,
    clock_tasks,
    contacts_tasks,
    maps_tasks,
    money_tasks,
    music_tasks,
    reader_tasks,
    settings_tasks,
)
from selfverify.agents.phone.templates.base import Template

TEMPLATES: dict[str, Template] = {
    template.name: template
    for module in (
        settings_tasks,
        contacts_tasks,
        clock_tasks,
        calendar_tasks,
        money_tasks,
        music_tasks,
        maps_tasks,
        reader_tasks,
    )
    for template in module.SHELF.templates
}
"""By name, in the order of the apps on the home screen."""
