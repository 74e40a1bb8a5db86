"""Screens as XML, as a few words, as HTML and as pictures."""
