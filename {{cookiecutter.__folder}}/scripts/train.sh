#!/usr/bin/env bash
{%- set launcher = cookiecutter.__launcher %}
{%- set package = cookiecutter.package_name %}
{%- if launcher == "torchrun" %}
# Train with torchrun:  scripts/train.sh [--dry-run] [--section.field value ...]
#
# NPROC_PER_NODE  processes on this node (default: {% if cookiecutter.hardware == "gpu" %}one for each visible GPU{% else %}2{% endif %})
# NNODES          nodes; run the same command on each of them (default: 1). 1:4 is elastic: any number in between,
#                 nodes may come and go
# MASTER_ADDR, MASTER_PORT   where the nodes meet: a host name of one node, and a port that is free there
# MAX_RESTARTS    how often to go on from the last checkpoint after a process was lost (default: 0 on one node, else 3)
# RDZV_CONF       more for torchrun's rendezvous, such as last_call_timeout=5
{%- elif launcher == "spawn" and cookiecutter.hardware == "tpu" %}
# Train on the TPU chips of this machine:  scripts/train.sh [--dry-run] [--section.field value ...]
#
# PJRT_DEVICE     TPU (default), or CPU for a trial without one
{%- elif launcher == "spawn" %}
# Train in processes of this machine:  scripts/train.sh [--dry-run] [--section.field value ...]
#
# NPROC_PER_NODE  number of processes (default: {% if cookiecutter.hardware == "gpu" %}one for each visible GPU{% else %}2{% endif %})
{%- elif launcher == "slurm" %}
# Submit a training to Slurm:  scripts/train.sh [--dry-run] [--section.field value ...]
#
# NPROC_PER_NODE  processes on each node (default: {% if cookiecutter.hardware == "gpu" %}1, each with its GPU{% else %}2{% endif %})
# NNODES          nodes (default: 1)
# RUN_DIR         where the run is written (default: runs/ and the number of the job); an older one goes on
# SEEDS           such as 0-4: an array of jobs, one for each seed
{%- if cookiecutter.__backend in ("gloo", "nccl") %}
# STARTER         srun (default) starts every process; torchrun starts those of a node, one torchrun on each
{%- endif %}
# SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT and the like are sbatch's own
{%- elif launcher == "mpirun" %}
# Train with mpirun:  scripts/train.sh [--dry-run] [--section.field value ...]
#
# NPROC_PER_NODE  processes on each node (default: {% if cookiecutter.hardware == "gpu" %}one for each visible GPU{% else %}2{% endif %})
# NNODES          nodes (default: 1); for more than one, HOSTFILE names a file of hosts
{%- if cookiecutter.__backend != "mpi" %}
# MASTER_ADDR, MASTER_PORT   where the processes meet: the host of rank 0 (default: this machine, or the first host of
#                 HOSTFILE), and a port that is free there (default: any on one node, 29500 on several)
{%- endif %}
{%- elif launcher == "horovodrun" %}
# Train with horovodrun:  scripts/train.sh [--dry-run] [--section.field value ...]
#
# NPROC_PER_NODE  processes on each node (default: {% if cookiecutter.hardware == "gpu" %}one for each visible GPU{% else %}2{% endif %})
# NNODES          nodes (default: 1); for more than one, HOSTS names them, for example HOSTS=a:2,b:2
{%- elif launcher == "kubernetes" %}
# Train on Kubernetes:  scripts/train.sh [--dry-run] [--section.field value ...]
#
# MANIFEST        scripts/trainjob.yaml (default) for clusters with Kubeflow Trainer 2.3 or newer, scripts/job.yaml for others
# IMAGE, NNODES, NPROC_PER_NODE   image, nodes and processes on each of them (default: what the manifest says)
{%- endif %}
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

dry_run=false
settings=()
for argument in "$@"; do
  if [[ $argument == --dry-run ]]; then
    dry_run=true
  elif [[ $argument == -h || $argument == --help ]]; then
    exec python3 -m {{ package }} train --help
  else
    settings+=("$argument")
  fi
done
{%- if launcher in ("torchrun", "spawn", "mpirun", "horovodrun") and cookiecutter.hardware == "gpu" %}

visible_gpus() {
  if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    awk -F, '{print NF}' <<<"$CUDA_VISIBLE_DEVICES"
  else
    { nvidia-smi --list-gpus 2>/dev/null || true; } | wc -l
  fi
}
{%- endif %}
{%- if launcher != "kubernetes" and cookiecutter.hardware != "tpu" %}
{% if launcher in ("torchrun", "spawn", "mpirun", "horovodrun") and cookiecutter.hardware == "gpu" %}
gpus=$(visible_gpus)
nproc_per_node=${NPROC_PER_NODE:-$((gpus > 0 ? gpus : 1))}
{%- elif launcher == "slurm" and cookiecutter.hardware == "gpu" %}
nproc_per_node=${NPROC_PER_NODE:-1}
{%- else %}
nproc_per_node=${NPROC_PER_NODE:-2}
{%- endif %}
if [[ ! $nproc_per_node =~ ^[1-9][0-9]*$ ]]; then
  echo "error: NPROC_PER_NODE is how many processes to start on each node, such as 2, not $nproc_per_node" >&2
  exit 2
fi
# The bash of macOS takes an empty list for an unset variable.
settings=(--distributed.nproc_per_node "$nproc_per_node" ${settings[@]+"${settings[@]}"})
{%- endif %}
{%- if launcher in ("torchrun", "slurm", "mpirun", "horovodrun") %}
NNODES=${NNODES:-1}
{%- if launcher == "torchrun" %}
if [[ ! $NNODES =~ ^[1-9][0-9]*(:[1-9][0-9]*)?$ ]]; then
  echo "error: NNODES is a number of nodes, such as 2, or 1:4 for any in between, not $NNODES" >&2
{%- else %}
if [[ ! $NNODES =~ ^[1-9][0-9]*$ ]]; then
  echo "error: NNODES is a number of nodes, such as 2, not $NNODES" >&2
{%- endif %}
  exit 2
fi
{%- endif %}
{% if launcher == "torchrun" %}
if [[ $NNODES == 1 && -z ${MASTER_PORT:-} ]]; then
  rendezvous=(--standalone)
else
  if [[ $NNODES == 1 ]]; then
    master=localhost
  elif [[ -n ${MASTER_ADDR:-} ]]; then
    master=$MASTER_ADDR
  else
    echo "error: set MASTER_ADDR to the node where all nodes meet, the same on each of them" >&2
    exit 2
  fi
  rendezvous=(
    --nnodes="$NNODES"
    --rdzv-backend=c10d
    --rdzv-endpoint="$master:${MASTER_PORT:-29500}"
    --rdzv-id="${RDZV_ID:-{{ cookiecutter.project_slug }}}"
    --rdzv-conf="${RDZV_CONF:-}"
  )
fi
# One thread for each process: as many as cores in each of them would make all of them wait.
variables=(OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}")
if [[ $NNODES != 1 ]]; then
  # A store that every node connects to anew survives the loss of one of them.
  variables+=(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1)
  MAX_RESTARTS=${MAX_RESTARTS:-3}
fi
rendezvous+=(--max-restarts="${MAX_RESTARTS:-0}")
command=(
  env "${variables[@]}"
  torchrun "${rendezvous[@]}" --nproc-per-node="$nproc_per_node"
  -m {{ package }} train "${settings[@]}"
)
{%- elif launcher == "spawn" and cookiecutter.hardware == "tpu" %}
command=(env PJRT_DEVICE="${PJRT_DEVICE:-TPU}" python3 -m {{ package }} train "${settings[@]}")
{%- elif launcher == "spawn" %}
# One thread for each process: as many as cores in each of them would make all of them wait.
command=(env OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" python3 -m {{ package }} train "${settings[@]}")
{%- elif launcher == "slurm" %}
if [[ " ${settings[*]}" == *" --train.run_dir"* ]]; then
  echo "error: choose the run directory with RUN_DIR=..., so that the job knows it too" >&2
  exit 2
fi
command=(
  env ${RUN_DIR:+"RUN_DIR=$RUN_DIR"}{% if cookiecutter.__backend in ("gloo", "nccl") %} ${STARTER:+"STARTER=$STARTER"}{% endif %}
  sbatch --parsable --nodes="$NNODES" --ntasks-per-node="$nproc_per_node"
{%- if cookiecutter.hardware == "gpu" %} --gpus-per-node="$nproc_per_node"
{%- endif %} ${SEEDS:+"--array=$SEEDS" "--output=slurm-%A_%a.out"}
  scripts/train.sbatch "${settings[@]}"
)
{%- elif launcher == "mpirun" %}
options=(-n "$((nproc_per_node * NNODES))")
{%- if cookiecutter.__backend != "mpi" %}
master_addr=${MASTER_ADDR:-127.0.0.1}
master_port=${MASTER_PORT:-$(python3 -c "import socket; print(socket.create_server(('', 0)).getsockname()[1])")}
{%- endif %}
if [[ $NNODES != 1 ]]; then
  if [[ ! -f ${HOSTFILE:-} ]]; then
    echo "error: set HOSTFILE to a file that names the hosts, one a line" >&2
    exit 2
  fi
  options+=(--hostfile "$HOSTFILE")
{%- if cookiecutter.__backend != "mpi" %}
  master_addr=${MASTER_ADDR:-$(awk '!/^[ \t]*#/ && NF {split($1, host, ":"); print host[1]; exit}' "$HOSTFILE")}
  master_port=${MASTER_PORT:-29500}
{%- endif %}
fi
# Open MPI refuses root and more processes than cores unless it is told; MPICH knows no such thing.
if [[ $(mpirun --version 2>/dev/null) =~ "Open MPI"|"Open RTE"|PRTE ]]; then
  # It would bind each process, and the loader processes that it starts, to one core.
  options+=(--bind-to none -x OMP_NUM_THREADS{% if cookiecutter.__backend != "mpi" %} -x MASTER_ADDR -x MASTER_PORT{% endif %})
  if [[ $(id -u) == 0 ]]; then
    options+=(--allow-run-as-root)
  fi
  if ((nproc_per_node > $(nproc))); then
    options+=(--oversubscribe)
  fi
  if [[ $NNODES != 1 ]]; then
    options+=(--map-by "ppr:$nproc_per_node:node")
    # Where programs are found, and the settings of the network, are for every node.
    for name in $(compgen -e | grep -xE 'PATH|LD_LIBRARY_PATH|PYTHONPATH') $(compgen -e GLOO_){% if cookiecutter.__backend == "nccl" %} $(compgen -e NCCL_){% endif %} $(compgen -e UCX_); do
      options+=(-x "$name")
    done
  fi
elif [[ $NNODES != 1 ]]; then
  options+=(-ppn "$nproc_per_node")
fi
# One thread for each process: as many as cores in each of them would make all of them wait.
command=(
  env OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
{%- if cookiecutter.__backend != "mpi" %} MASTER_ADDR="$master_addr" MASTER_PORT="$master_port"
{%- endif %}
  mpirun "${options[@]}" python3 -m {{ package }} train "${settings[@]}"
)
{%- elif launcher == "horovodrun" %}
options=(-np "$((nproc_per_node * NNODES))" --gloo)
if [[ $NNODES != 1 ]]; then
  if [[ -z ${HOSTS:-} ]]; then
    echo "error: set HOSTS to the hosts and their numbers of processes, such as a:2,b:2" >&2
    exit 2
  fi
  options+=(-H "$HOSTS")
fi
# One thread for each process: as many as cores in each of them would make all of them wait.
command=(
  env OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
  horovodrun "${options[@]}" python3 -m {{ package }} train "${settings[@]}"
)
{%- elif launcher == "kubernetes" %}
command=(
  env ${IMAGE:+"IMAGE=$IMAGE"} ${NNODES:+"NNODES=$NNODES"} ${NPROC_PER_NODE:+"NPROC_PER_NODE=$NPROC_PER_NODE"}
  python3 scripts/manifest.py "${MANIFEST:-scripts/trainjob.yaml}" ${settings[@]+"${settings[@]}"}
)
{%- endif %}

if $dry_run; then
  printf '%q ' "${command[@]}"
  echo{% if launcher == "kubernetes" %} "| kubectl apply -f -"{% endif %}
  exit
fi
{%- if launcher in ("torchrun", "mpirun", "horovodrun") %}
# What cannot work is said here, in one sentence, before any process of the training starts.
NNODES=$NNODES python3 -m {{ package }} doctor --quiet "${settings[@]}"
{%- endif %}
{%- if launcher == "slurm" %}
# A setting that cannot work is refused here, not in a job that has waited for its turn.
NNODES=$NNODES python3 -m {{ package }} doctor --elsewhere "${settings[@]}"
if ! command -v sbatch >/dev/null; then
  echo "error: sbatch is not on the PATH: log in to the cluster" >&2
  exit 1
fi
job=$("${command[@]}")
job=${job%%;*}
echo "job $job is submitted; it writes ${RUN_DIR:-runs/$job}"
echo "follow it with  tail -F slurm-$job${SEEDS:+_*}.out  and  squeue --job $job, end it with  scancel $job"
{%- elif launcher == "kubernetes" %}
# A setting that cannot work is refused here, not in a pod.
size=$(python3 scripts/manifest.py --size "${MANIFEST:-scripts/trainjob.yaml}")
read -r nodes processes <<<"$size"
NNODES=$nodes python3 -m {{ package }} doctor --elsewhere --distributed.nproc_per_node "$processes" ${settings[@]+"${settings[@]}"}
if ! command -v kubectl >/dev/null; then
  echo "error: kubectl is not on the PATH: install it, and point it to your cluster" >&2
  exit 1
fi
manifest=$("${command[@]}")
kubectl apply -f - <<<"$manifest"
echo "follow it with  kubectl logs -f -l jobset.sigs.k8s.io/jobset-name={{ cookiecutter.project_slug | lower | replace("_", "-") }}  (a plain Job: -l job-name=...)"
{%- else %}
exec "${command[@]}"
{%- endif %}
