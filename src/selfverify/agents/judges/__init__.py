"""Judges say whether evidence proves that a task is done."""
