"""Facts about the backend, without importing torch: torch_xla, the only one for TPUs."""

NAME = "xla-tpu"
PACKAGES: tuple[str, ...] = ("torch_xla",)  # distributions that must match torch
CHOICES: tuple[str, ...] = (NAME,)  # values of distributed.backend
ON_CPU = NAME  # the backend on a CPU
FIX = "install matching versions with python3 -m pip install -e ."
TYPES: tuple[str, ...] = ()  # dtypes that it can send, if not all
RENDEZVOUS = False  # torch_xla connects the processes that it starts
LEAVES_TOGETHER = False  # whether a process that exits waits for all others
EXPORTED: tuple[str, ...] = ()  # prefixes of variables that other nodes need
BOUND_TO_DEVICE = False  # whether a process group belongs to one device
CHECKED_IN_LAUNCH = True  # whether it may be missing, so that scripts/train.sh checks it
RANK_VARIABLES: tuple[tuple[str, ...], ...] = ()  # set by a launcher of the backend itself
