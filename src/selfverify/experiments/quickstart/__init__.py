"""`selfverify quickstart`: a paper's effect in minutes, and what qualifies it."""
