"""A page about conversations in which a model has looked again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selfverify.core.errors import DataError
from selfverify.core.files import make_folder, write_text
from selfverify.core.problem import content_text
from selfverify.reports import figures
from selfverify.reports.film_strip import Pictures
from selfverify.reports.look_film import film_of_trace
from selfverify.reports.report import templates
from selfverify.visual.traces import VisualTrace


def write_look_page(
    traces: Sequence[VisualTrace], about: str, images: Path, out: Path, more: int = 0
) -> Path:
    """Write a page with a film strip of each trace.

    Args:
        traces: What is shown.
        about: Where they come from, in a sentence.
        images: The folder of the images that they name. Those that are gone are left out, and that is said.
        out: The HTML file; its folder is created.
        more: How many others there are.

    Returns:
        The path of the file.

    Raises:
        DataError: There is no trace.
    """
    if not traces:
        raise DataError("there is no conversation to be shown")
    pictures = Pictures(images)
    cards = [
        {
            "id": trace.id,
            "question": content_text(trace.messages[0]["content"]).strip(),
            "film": film_of_trace(trace, pictures),
        }
        for trace in traces
    ]
    page = templates().get_template("look_page.html.j2").render(
        cards=cards, about=about, more=more, palette=figures.PALETTE
    )  # fmt: skip
    make_folder(out.parent)
    write_text(out, page)
    return out
