#!/usr/bin/env bash
# Start one torchrun on each node of a job; train.sbatch runs this with the arguments of python3.
# When one process ends, the others have two minutes to write what they still hold, and a tracker to receive it. torchrun ignores Slurm's signal, which
# reaches it too: it would end before its processes have written their checkpoint.
# shellcheck disable=SC2086  # several options may be in it
exec srun ${SRUN_OPTIONS:-} --kill-on-bad-exit=0 --wait=120 \
  --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" \
  bash -c 'trap "" USR1; exec "$@"' bash \
  python3 -m torch.distributed.run --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_NTASKS_PER_NODE" \
  --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$SLURM_JOB_ID" "$@"
