"""What `make vllm` puts into its environment, where every process runs it: two repairs for a CPU.

- vLLM's CPU build goes with the CPU build of torch, and torchvision may have been built for CUDA. Its
  compiled library then does not load, and already ``import torchvision`` fails, because it describes
  operators that do not exist. vLLM needs torchvision's Python code only, so that their schemas are enough; a
  call of one is an error still.
- On a CPU vLLM packs the weights of linear layers for oneDNN when it has loaded them. It drops the unpacked
  ones, so that no new weights can be loaded, and keeps those of a tied head, which is then stale. Without
  oneDNN it computes with the weights themselves.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path


class Repairs(MetaPathFinder):
    """Repairs each of two modules when it is looked for."""

    library = None
    """The operators' schemas; their end would take the operators along."""

    def find_spec(self, name, path=None, target=None):
        if name not in ("torchvision", "vllm._custom_ops"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and name == "torchvision":
            if self.library is None:
                self.define_operators(spec)
        elif spec is not None:
            run = spec.loader.exec_module

            def run_without_onednn(module):
                run(module)
                module._supports_onednn = False

            spec.loader.exec_module = run_without_onednn
        return spec

    def define_operators(self, spec):
        import torch

        try:
            for folder in spec.submodule_search_locations:
                for file in Path(folder).glob("_C.*"):
                    torch.ops.load_library(file)
        except OSError:
            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, Repairs())
