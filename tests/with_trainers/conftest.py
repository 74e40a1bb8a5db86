"""These tests need LLaMA-Factory and ms-swift, each in an environment of its own: `make trainers`."""

collect_ignore_glob = ["*.py"]
