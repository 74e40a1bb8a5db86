"""MiniWoB++'s pages in Chromium for selfverify: the task ``browser``."""

from pathlib import Path

from selfverify_miniwob.task import BrowserAgents

TASKS = (BrowserAgents,)
RECIPES = Path(__file__).parent / "recipes"
