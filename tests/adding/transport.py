"""What is known of the backend without importing torch: byhand, which averages gradients over gloo without DDP."""

NAME = "byhand"
PACKAGES: tuple[str, ...] = ()  # distributions that have to fit torch
CHOICES: tuple[str, ...] = (NAME,)  # what may carry the tensors
ON_CPU = NAME  # what carries them on a CPU
MAY_BE_MISSING = False  # so that it has to be looked for before a training starts
FIX = "install a torch that was built with gloo"
COMPRESSIONS = {"byhand": ("none",)}
STRATEGIES = ("ddp",)
BUCKETS = False
RENDEZVOUS = True  # its processes find each other at MASTER_ADDR and MASTER_PORT
INTERFACE = "GLOO_SOCKET_IFNAME"  # names the network interface between nodes
LEAVES_TOGETHER = False  # whether the end of a process waits for that of all others
