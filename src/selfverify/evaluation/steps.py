"""Conversations as the store keeps them: message by message, with the images in files of their own."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from PIL.Image import Image

from selfverify.core.files import make_folder, naming
from selfverify.core.images import to_rgb
from selfverify.core.trajectory import Segment, Trajectory
from selfverify.evaluation.store import StoredStep, StoredVerdict
from selfverify.tasks.base import Verdict

IMAGES = "images"
"""The folder of shown images, beside the store."""


def stored_steps(trajectory: Trajectory, store: Path | None) -> list[StoredStep]:
    """The messages behind a problem's prompt; none unless an environment has said something.

    Args:
        trajectory: The conversation.
        store: The store, beside which the images are written; without one they are left out.
    """
    # What an environment says to a served model has no tokens here.
    if not any(s.author == "environment" and (s.tokens or s.text) for s in trajectory.segments):
        return []
    messages = groupby(trajectory.segments, key=lambda segment: (segment.author, segment.turn))
    return [_step(list(segments), store) for _, segments in messages]


def _step(segments: list[Segment], store: Path | None) -> StoredStep:
    first, last = segments[0], segments[-1]
    judged = next((s.parsed for s in segments if isinstance(s.parsed, Verdict)), None)
    return StoredStep(
        author=first.author,
        turn=first.turn,
        channel=first.channel,
        text="".join(segment.text for segment in segments),
        images=[]
        if store is None
        else written_images(store.parent / IMAGES, (i for s in segments for i in s.images)),
        finish=last.finish,
        values={name: value for segment in segments for name, value in segment.values.items()},
        verdict=None if judged is None else StoredVerdict(judged.answer, judged.key, judged.correct),
        record=next((s.parsed for s in segments if isinstance(s.parsed, dict)), None),
    )


def written_images(folder: Path, images: Iterable[Image]) -> list[str]:
    """The names of images in a folder. An image that is shown again has the file that it had."""
    names = []
    for image in images:
        buffer = io.BytesIO()
        to_rgb(image).save(buffer, "PNG")
        content = buffer.getvalue()
        name = f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.png"
        path = folder / name
        if not path.exists():
            make_folder(folder)
            # Several processes may write it at the same time.
            partial = path.with_name(f"{name}.{os.getpid()}.partial")
            with naming(path):
                partial.write_bytes(content)
                partial.replace(path)
        names.append(name)
    return names
