"""Tasks for agents, by the names that recipes use."""
