"""What is known of the backend without importing torch: Horovod, built against the installed torch."""

from __future__ import annotations

from ..config import Backend

NAME: Backend = "horovod"
# Distributions that have to fit torch.
PACKAGES: tuple[str, ...] = ("horovod",)
# What may carry the tensors; and what does on a CPU.
CHOICES: tuple[Backend, ...] = (NAME,)
ON_CPU: Backend = NAME
# What to do if it is not built; whether that has to be looked at before a training starts.
FIX = "run scripts/install_horovod.sh"
MAY_BE_MISSING = True
# Where horovodrun did not start the processes, rank 0 serves their rendezvous at MASTER_ADDR and MASTER_PORT.
RENDEZVOUS = True
# How the names of variables begin that the processes on other nodes need too.
EXPORTED = ("GLOO_", "HOROVOD_", "UCX_")
