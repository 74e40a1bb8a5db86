"""All templates, one file for each app."""

from __future__ import annotations

from selfverify.agents.phone.templates import clock_tasks, contacts_tasks, settings_tasks
from selfverify.agents.phone.templates.base import Template

TEMPLATES: dict[str, Template] = {
    template.name: template
    for shelf in (
        settings_tasks.SHELF,
        contacts_tasks.SHELF,
        clock_tasks.SHELF,
    )
    for template in shelf.templates
}
"""By name, in the order of the apps on the home screen."""
