"""Facts about the backend, without importing torch: mpi, for a torch that was built with MPI."""

NAME = "mpi"
PACKAGES: tuple[str, ...] = ()  # distributions that must match torch
CHOICES: tuple[str, ...] = (NAME,)  # values of distributed.backend
ON_CPU = NAME  # the backend on a CPU
FIX = "install a torch that was built with MPI, or render the project with backend=auto"
TYPES = ("float32", "float64", "uint8", "int8", "int16", "int32", "int64")  # dtypes that it can send, if not all
RENDEZVOUS = False  # MPI connects the processes that its launcher has started
LEAVES_TOGETHER = True  # whether a process that exits waits for all others
EXPORTED = ("GLOO_", "UCX_")  # prefixes of variables that other nodes need
BOUND_TO_DEVICE = False  # whether a process group belongs to one device
CHECKED_IN_LAUNCH = True  # whether it may be missing, so that scripts/train.sh checks it
# Set by a launcher of the backend itself, whatever the launcher of the project is.
RANK_VARIABLES = (tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),)
