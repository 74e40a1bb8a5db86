"""All templates: files of operations and of queries for each app."""

from __future__ import annotations

from selfverify_phone.templates import (
    calendar_queries,
    calendar_tasks,
    clock_pairs,
    clock_queries,
    clock_tasks,
    contacts_pairs,
    contacts_queries,
    contacts_tasks,
    maps_queries,
    maps_tasks,
    money_queries,
    money_tasks,
    music_queries,
    music_tasks,
    reader_queries,
    reader_tasks,
    settings_pairs,
    settings_queries,
    settings_tasks,
)
from selfverify_phone.templates.base import Template

TEMPLATES: dict[str, Template] = {
    template.name: template
    for module in (
        settings_tasks,
        settings_pairs,
        settings_queries,
        contacts_tasks,
        contacts_pairs,
        contacts_queries,
        clock_tasks,
        clock_pairs,
        clock_queries,
        calendar_tasks,
        calendar_queries,
        money_tasks,
        money_queries,
        music_tasks,
        music_queries,
        maps_tasks,
        maps_queries,
        reader_tasks,
        reader_queries,
    )
    for template in module.SHELF.templates
}
"""By name, in the order of the apps on the home screen."""
