"""Looking again: visual tools, the loop that calls them, and what stops it (VTS-V)."""
