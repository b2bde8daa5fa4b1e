"""Facts about the backend, without importing torch: gloo, which comes with torch."""

NAME = "gloo"
PACKAGES: tuple[str, ...] = ()  # distributions that must match torch
CHOICES: tuple[str, ...] = (NAME,)  # values of distributed.backend
ON_CPU = NAME  # the backend on a CPU
FIX = "install a torch that was built with it"
TYPES: tuple[str, ...] = ()  # dtypes that it can send, if not all
RENDEZVOUS = True  # processes meet at MASTER_ADDR and MASTER_PORT
LEAVES_TOGETHER = False  # whether a process that exits waits for all others
EXPORTED = ("GLOO_", "UCX_")  # prefixes of variables that other nodes need
BOUND_TO_DEVICE = False  # whether a process group belongs to one device
CHECKED_IN_LAUNCH = False  # whether it may be missing, so that scripts/train.sh checks it
RANK_VARIABLES: tuple[tuple[str, ...], ...] = ()  # set by a launcher of the backend itself
