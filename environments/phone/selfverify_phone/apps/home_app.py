"""The home screen, and the question by which an app interrupts."""

from __future__ import annotations

from functools import partial

from selfverify_phone.system.device import HOME, App, Frame, Phone
from selfverify_phone.system.widgets import View, Widget, button


def root(phone: Phone, frame: Frame) -> View:
    apps = [app for name, app in phone.apps.items() if name != HOME]
    body = [Widget(app.name, "app", app.title, tap=partial(phone.start, app.name)) for app in apps]
    return View("Home", body, style="home")


def popup(phone: Phone, frame: Frame) -> View:
    body = [button("rate", "Rate", phone.close), button("later", "Later", phone.close)]
    return View("Do you like this app?", body, style="dialog")


APP = App(HOME, "Home", "#37474f", (), {"root": root, "popup": popup})
