"""Builds the simulated device of `device.cpp` and makes it known to PyTorch as ``sim:0`` and ``sim:1``.

Once loaded it is in the process for good: PyTorch takes it for the machine's accelerator, as it would take
CUDA. So it belongs into a process of its own: `tests/policy/test_device_discipline.py` starts one, in which
pytest runs `check_rules.py` and `check_library.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torchgen
from torch import nn

SOURCE = Path(__file__).with_name("device.cpp")
NAME = "sim"


def compiler() -> str | None:
    """The C++ compiler, or None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build() -> Path:
    """Return the compiled device; it is compiled once for each PyTorch and each state of its source."""
    torch_folder = Path(torch.__file__).parent
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"selfverify-tests-{os.getuid()}"
    library = folder / f"simulated-device-{key}.so"
    if library.exists():
        return library
    folder.mkdir(mode=0o700, exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [
        compiler() or "g++",
        "-std=c++20",
        "-O0",
        "-fPIC",
        "-shared",
        str(SOURCE),
        "-o",
        str(unfinished),
    ]
    command += [f"-I{torch_folder}/include", f"-I{torch_folder}/include/torch/csrc/api/include"]
    command += [f"-L{torch_folder}/lib", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True)
    unfinished.replace(library)  # another process may be compiling it, too
    return library


def takes_numbers() -> list[str]:
    """Return the operations that take a number of the CPU as a tensor without axes, by PyTorch's table.

    CUDA refuses all tensors of other devices but in those that the table leaves to `TensorIterator`.
    """
    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    entries = path.read_text(encoding="utf-8").split("\n- func: ")[1:]
    unchecked = [entry for entry in entries if re.search(r"device_check: NoCheck.*TensorIterator", entry)]
    return ["aten::" + entry.partition("(")[0] for entry in unchecked]


class Module(ModuleType):
    """``torch.sim``: what PyTorch and its users ask ``torch.cuda`` for."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return int(torch.ops.simulated.current_device())

    def set_device(self, device: torch.device | int | str) -> None:
        torch.ops.simulated.set_device(self._index(device))

    def _index(self, device: torch.device | int | str | None) -> int:
        index = device if device is None or isinstance(device, int) else torch.device(device).index
        return self.current_device() if index is None else int(index)

    def manual_seed_all(self, seed: int) -> None:
        for index in range(self.device_count()):
            torch.ops.simulated.seed(index, seed)

    def manual_seed(self, seed: int) -> None:
        torch.ops.simulated.seed(self.current_device(), seed)

    def get_rng_state(self, device: torch.device | int | str | None = None) -> torch.Tensor:
        return torch.ops.simulated.state(self._index(device))

    def set_rng_state(self, state: torch.Tensor, device: torch.device | int | str | None = None) -> None:
        torch.ops.simulated.set_state(self._index(device), state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state(index) for index in range(self.device_count())]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        for index, state in enumerate(states):
            self.set_rng_state(state, index)

    def synchronize(self, device: torch.device | int | str | None = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        return True


def _moving_in_place(apply: Any) -> Any:
    """``nn.Module._apply`` that keeps parameters the same objects, as it does between the CPU and CUDA.

    To devices from outside PyTorch, it makes new parameters, and tied weights come apart.
    """

    def moving(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(self, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return moving


def load() -> None:
    """Make the device known to this process."""
    if hasattr(torch, NAME):
        return
    torch.utils.rename_privateuse1_backend(NAME)
    torch.ops.load_library(str(build()))
    torch._register_device_module(NAME, Module("torch.sim"))
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.ops.simulated.take_numbers(takes_numbers())
    nn.Module._apply = _moving_in_place(nn.Module._apply)


def waits() -> int:
    """How often the host has waited so far, for values or for shapes that depend on values."""
    return int(torch.ops.simulated.waits())
