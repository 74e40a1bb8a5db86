"""Only one writes into a folder at a time, and nobody waits for a dead one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from selfverify.core.errors import ConfigError
from selfverify.core.folder_lock import only_writer

HOLD = """
import sys, time
from pathlib import Path
from selfverify.core.folder_lock import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")
def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    refused = pytest.raises(ConfigError, match="another process is writing into")
    with only_writer(tmp_path), refused, only_writer(tmp_path):
        pass
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="another process is writing into"), only_writer(tmp_path):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        with only_writer(tmp_path):
            assert not any(tmp_path.iterdir())
    finally:
        holder.kill()
        holder.communicate()
