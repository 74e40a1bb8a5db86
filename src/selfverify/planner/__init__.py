"""What a run will take, before it is started: memory, tokens, time, without loading weights."""
