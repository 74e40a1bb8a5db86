"""A phone of our own, embedded and deterministic, in which an agent acts.

Its state is plain JSON. Apps (`apps`) derive screens from it, which are laid out (`system`) and written as
XML, as a few words, as HTML or as a picture (`rendering`). Templates (`templates`) draw tasks with goals
from what is on a phone (`contents`), and an expert (`expert`) carries them out by the shortest way.
"""
