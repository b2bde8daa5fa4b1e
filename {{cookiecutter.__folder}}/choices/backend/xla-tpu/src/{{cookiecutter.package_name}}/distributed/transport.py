"""What is known of the backend without importing torch: torch_xla, the one that reaches TPUs."""

from __future__ import annotations

from ..config import Backend

NAME: Backend = "xla-tpu"
# Distributions that have to fit torch.
PACKAGES: tuple[str, ...] = ("torch_xla",)
# What may carry the tensors; and what does on a CPU.
CHOICES: tuple[Backend, ...] = (NAME,)
ON_CPU: Backend = NAME
# What to do if it is not built; whether that has to be looked at before a training starts.
FIX = "install the same version of both: python3 -m pip install -e ."
MAY_BE_MISSING = True
# torch_xla connects the processes that it has started.
RENDEZVOUS = False
