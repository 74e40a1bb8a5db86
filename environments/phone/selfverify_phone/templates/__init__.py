"""All templates: a table for each app."""

from __future__ import annotations

from dataclasses import replace

from selfverify_phone.templates import calendar, clock, contacts, maps, money, music, reader, settings
from selfverify_phone.templates.base import Template

TEMPLATES: dict[str, Template] = {
    f"{app}-{key}": replace(template, app=app, name=f"{app}-{key}")
    for app, table in (
        ("settings", settings),
        ("contacts", contacts),
        ("clock", clock),
        ("calendar", calendar),
        ("money", money),
        ("music", music),
        ("maps", maps),
        ("reader", reader),
    )
    for key, template in table.TASKS.items()
}
"""By name, in the order of the apps on the home screen."""
