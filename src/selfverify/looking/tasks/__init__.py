"""Tasks that cannot be answered without looking again."""
