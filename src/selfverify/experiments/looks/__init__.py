"""Data of looking again: collected, branched, judged, paired, exported (VTS-V §4)."""
