"""These tests need verl, which stands in an environment of its own: `make verl`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("verl") else ["*.py"]
