"""Facts about the backend; importing this file does not import torch: Horovod, built against the installed torch."""

NAME = "horovod"
PACKAGES: tuple[str, ...] = ("horovod",)  # distributions that have to fit torch
CHOICES: tuple[str, ...] = (NAME,)  # what may carry the tensors
ON_CPU = NAME  # what carries them on a CPU
MAY_BE_MISSING = True  # whether it has to be looked for before a training starts
FIX = "run scripts/install_horovod.sh"
# In which types gradients can travel, and how the processes can share a training.
COMPRESSIONS = {"horovod": ("none", "fp16")}
STRATEGIES = ("ddp", "local-sgd")
BUCKETS = False  # whether DistributedDataParallel exchanges gradients, in parts of a size that can be chosen
RENDEZVOUS = True  # at MASTER_ADDR and MASTER_PORT, unless horovodrun serves it
INTERFACE = ""  # no variable names the network interface between nodes: Horovod uses that of the host name
LEAVES_TOGETHER = False  # whether the end of a process waits for that of all others
EXPORTED = ("GLOO_", "HOROVOD_", "UCX_")  # how variables begin that other nodes need too
