"""The package's commands in float64: ``python3 tests/in_float64.py train``.

On one process and on two, sums are rounded differently. An optimizer may amplify that: AdamW where a gradient is almost 0, a
line search where the loss is almost linear. In float64 the two still agree to ten decimals, and a real difference shows.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from {{ cookiecutter.package_name }}.__main__ import main

engine: Any = import_module("{{ cookiecutter.package_name }}.runtime.engine")
to_device = engine.convert_tensor


def to_float64(batch: Any, *arguments: Any, **options: Any) -> Any:
    """Return a batch on the device, with floating-point tensors in float64."""
    batch = to_device(batch, *arguments, **options)
    return tree_map_only(Tensor, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, batch)


# Here, because processes that this one starts import this file too.
torch.set_default_dtype(torch.float64)
engine.convert_tensor = to_float64

if __name__ == "__main__":
    sys.exit(main())
