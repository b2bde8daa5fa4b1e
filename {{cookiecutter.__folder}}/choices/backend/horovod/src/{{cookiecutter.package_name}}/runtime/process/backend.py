"""Facts about the backend, without importing torch: Horovod, built for the installed torch."""

NAME = "horovod"
PACKAGES: tuple[str, ...] = ("horovod",)  # distributions that must match torch
CHOICES: tuple[str, ...] = (NAME,)  # values of distributed.backend
ON_CPU = NAME  # the backend on a CPU
FIX = "run scripts/install_horovod.sh"
TYPES: tuple[str, ...] = ()  # dtypes that it can send, if not all
RENDEZVOUS = True  # processes meet at MASTER_ADDR and MASTER_PORT, unless horovodrun serves the rendezvous
LEAVES_TOGETHER = False  # whether a process that exits waits for all others
EXPORTED = ("GLOO_", "HOROVOD_", "UCX_")  # prefixes of variables that other nodes need
BOUND_TO_DEVICE = False  # whether a process group belongs to one device
CHECKED_IN_LAUNCH = True  # whether it may be missing, so that scripts/train.sh checks it
RANK_VARIABLES: tuple[tuple[str, ...], ...] = ()  # set by a launcher of the backend itself
