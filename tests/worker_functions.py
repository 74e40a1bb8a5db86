"""What workers are asked to do in tests. Imports nothing heavy: worker processes import it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any


def add(a: int, b: int) -> int:
    print("this goes to standard error, not between the replies")
    return a + b


def raises(text: str) -> None:
    raise ValueError(f"not {text}")


def leaves() -> None:
    sys.exit(0)


def modules() -> list[str]:
    """What a worker has imported."""
    return sorted({name.split(".")[0] for name in sys.modules})


def pid(marker: int = 0) -> int:
    return os.getpid()


def large(size: int) -> str:
    return "x" * size


def greedy(mb: int) -> int:
    return len(bytearray(mb << 20))


def first(folder: str, kind: str, key: str) -> str:
    """Misbehaves at the first call for ``key`` and answers at the second."""
    seen = Path(folder) / key
    if not seen.exists():
        seen.touch()
        misbehave(kind)
    return key


def misbehave(kind: str) -> Any:
    match kind:
        case "sleep":
            time.sleep(1000)
        case "spin":
            while True:
                pass
        case "hold the lock":
            return len(str(9**9**8))  # one long operation in C
        case "crash":
            os._exit(3)
        case "silent":
            os.closerange(3, 100)
            time.sleep(1000)
        case "leave a child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            time.sleep(1000)


def judge_sum(text: str, target: int, faults: str | None) -> dict[str, Any]:
    """Reads a sum. With a folder for ``faults`` every third answer hangs the first time it is judged."""
    read = text.strip()
    right = read == str(target)
    if faults is not None:
        key = str(zlib.crc32(json.dumps([read, target]).encode()))
        (Path(faults) / f"pid-{os.getpid()}").touch()
        if int(key) % 3 == 0:
            first(faults, "sleep", key)
    return {"right": right, "read": read}


def math_verdict(gold: str, answer: str) -> dict[str, Any]:
    """Like `math_worker.compare`, but 7, 8 and 9 in an expression sleep, die and raise."""
    if "7" in gold + answer:
        time.sleep(1000)
    if "8" in answer:
        os._exit(3)
    if "9" in answer:
        raise ValueError(answer)
    return {"read": True, "equal": sorted(gold) == sorted(answer), "gold": None, "answer": None}
