"""A platform of verl without an accelerator. It has to be registered before verl's workers are imported."""

import contextlib
from types import SimpleNamespace

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NAMES = ("synchronize", "current_device", "set_device", "device_count", "is_available")
MODULE = SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in NAMES},
    empty_cache=lambda: None,
    max_memory_allocated=lambda *device: 0,
    max_memory_reserved=lambda *device: 0,
    memory_allocated=lambda *device: 0,
    memory_reserved=lambda *device: 0,
    mem_get_info=lambda *device: (2**34, 2**35),
    reset_peak_memory_stats=lambda *device: None,
    ipc_collect=lambda: None,
    get_device_name=lambda *device: "CPU",
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    device_name, vendor_name, device_module = "cpu", "none", MODULE

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, message):
        return contextlib.nullcontext()

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"  # a logical resource of Ray's: ray.init(num_gpus=N) has it on any machine

    def ray_resource_options(self, num_gpus):
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None
