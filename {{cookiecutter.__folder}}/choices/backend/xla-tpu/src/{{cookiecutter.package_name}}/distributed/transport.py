"""Facts about the backend; importing this file does not import torch: torch_xla, the one that reaches TPUs."""

NAME = "xla-tpu"
PACKAGES: tuple[str, ...] = ("torch_xla",)  # distributions that have to fit torch
CHOICES: tuple[str, ...] = (NAME,)  # what may carry the tensors
ON_CPU = NAME  # what carries them on a CPU
MAY_BE_MISSING = True  # whether it has to be looked for before a training starts
FIX = "install the same version of both: python3 -m pip install -e ."
# In which types gradients can travel, and how the processes can share a training.
COMPRESSIONS = {"xla-tpu": ("none",)}
STRATEGIES = ("ddp",)
RENDEZVOUS = False  # torch_xla connects the processes that it starts
INTERFACE = "GLOO_SOCKET_IFNAME"  # names the network interface that doctor looks at
LEAVES_TOGETHER = False  # whether the end of a process waits for that of all others
BUCKETS = False  # whether DistributedDataParallel exchanges gradients, in parts of a size that can be chosen
