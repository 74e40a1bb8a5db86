"""All templates: a table for each app."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ruamel.yaml import YAML

from selfverify_phone.templates import calendar, clock, contacts, maps, money, music, reader, settings
from selfverify_phone.templates.base import Template

WORDINGS = YAML(typ="safe").load(Path(__file__).with_name("wordings.yaml").read_text(encoding="utf-8"))
TEMPLATES: dict[str, Template] = {
    name: replace(template, app=app, name=name, wordings=tuple(WORDINGS[name]))
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
    for name, template in ((f"{app}-{key}", template) for key, template in table.TASKS.items())
}
"""By name, in the order of the apps on the home screen."""
