"""The page at ``/``: its files, the settings it begins with, and example problems."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from typing import Any

from aiohttp import web

from selfverify.core.images import image_url
from selfverify.serving.schemas import ApiError, invalid_value, json_response

EXAMPLES = 100
"""Example problems on offer."""

PAGE_PATHS = frozenset({"/", "/page/page.js", "/page/page.css", "/page/settings", "/page/example"})
"""The paths of the page, which need no key: nothing on them is secret, and keys are typed in there."""

Example = Callable[[int], dict[str, Any]]
"""Returns the example problem with a number."""

_FILES = {
    "/": ("index.html", "text/html"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/page.css": ("page.css", "text/css"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def add_page(app: web.Application, begin: dict[str, Any], example: Example | None) -> None:
    """Add the page's routes.

    Args:
        app: The application that gets them.
        begin: What the page begins with: the fields of ``best_of`` where a request does not set them, the
            ``most`` candidates, whether it ``needs_key`` and ``looks``, and the limits of images.
        example: Makes example problems; None offers none.
    """
    folder = files("selfverify.serving") / "static"
    bodies = {path: (folder / name).read_bytes() for path, (name, _) in _FILES.items()}

    async def show(request: web.Request) -> web.Response:
        kind = f"{_FILES[request.path][1]}; charset=utf-8"
        return web.Response(body=bodies[request.path], headers=_HEADERS | {"Content-Type": kind})

    async def settings(request: web.Request) -> web.Response:
        examples = 0 if example is None else EXAMPLES
        return json_response(begin | {"examples": examples}, headers=_HEADERS)

    async def show_example(request: web.Request) -> web.Response:
        wanted = request.query.get("index", "0")
        if example is None:
            raise ApiError(404, "there are examples for the built-in model only", "not_found")
        if not (wanted.isascii() and wanted.isdigit() and len(wanted) < 9 and int(wanted) < EXAMPLES):
            raise invalid_value("index", f"a number below {EXAMPLES}")
        return json_response(await asyncio.to_thread(example, int(wanted)), headers=_HEADERS)

    for path in _FILES:
        app.router.add_get(path, show)
    app.router.add_get("/page/settings", settings)
    app.router.add_get("/page/example", show_example)


@lru_cache(EXAMPLES)
def digits_example(index: int) -> dict[str, Any]:
    """Return a held-out problem of ``digits-pick``: its question, its image as a data URL, and how answers to
    it are compared."""
    from selfverify.tasks.digits_pick import DigitsPick

    problem = DigitsPick().problem("test", 0, index)
    return {
        "name": f"example {index + 1}",
        "image": image_url(problem.images[0]),
        "question": problem.meta["question"],
        "answers": "set",
    }
