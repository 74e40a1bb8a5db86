"""SmartSnap's world for selfverify: a phone of our own, embedded and deterministic, in which an agent acts.

Its state is plain JSON. Apps (`apps`) derive screens from it, which are laid out (`system`) and written as
XML, as a few words or as a picture (`rendering`). Templates (`templates`) draw tasks with goals from what is
on a phone (`contents`), and an expert (`expert`) carries them out by the shortest way.
"""

from pathlib import Path

from selfverify_phone.judging import PhoneJudging
from selfverify_phone.task import PhoneAgents

TASKS = (PhoneAgents, PhoneJudging)
RECIPES = Path(__file__).parent / "recipes"
WEIGHTS = Path(__file__).parent / "weights"
