"""Readers of the files that data sets come in."""

from __future__ import annotations

from selfverify.data.formats import FORMATS
from selfverify.data.images import ImageRef
from selfverify.data.rows import BadRow, Rows, open_rows, validated

__all__ = ["FORMATS", "BadRow", "ImageRef", "Rows", "open_rows", "validated"]
