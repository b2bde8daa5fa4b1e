"""Facts about the backend, without importing torch: nccl, which comes with torch for NVIDIA GPUs."""

NAME = "nccl"
PACKAGES: tuple[str, ...] = ()  # distributions that must match torch
CHOICES: tuple[str, ...] = (NAME, "gloo")  # values of distributed.backend
ON_CPU = "gloo"  # the backend on a CPU
FIX = "install a torch with CUDA, or try --distributed.device cpu"
TYPES: tuple[str, ...] = ()  # dtypes that it can send, if not all
RENDEZVOUS = True  # processes meet at MASTER_ADDR and MASTER_PORT
LEAVES_TOGETHER = False  # whether a process that exits waits for all others
EXPORTED = ("GLOO_", "NCCL_", "UCX_")  # prefixes of variables that other nodes need
BOUND_TO_DEVICE = True  # whether a process group belongs to one device
CHECKED_IN_LAUNCH = True  # whether it may be missing, so that scripts/train.sh checks it
RANK_VARIABLES: tuple[tuple[str, ...], ...] = ()  # set by a launcher of the backend itself
