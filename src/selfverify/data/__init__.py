"""Readers of the files that data sets come in."""
