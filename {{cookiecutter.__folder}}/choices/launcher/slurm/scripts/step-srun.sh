#!/usr/bin/env bash
# Start every process of a job by srun; train.sbatch runs this with the arguments of python3.
# Ranks are counted node by node, as a ring of them then crosses the network least.
# When one process ends, the others have two minutes to write what they still hold, and a tracker to receive it.
# shellcheck disable=SC2086  # several options may be in it
exec srun --distribution=block{{ cookiecutter._srun_options.get(cookiecutter.__backend, "") }} ${SRUN_OPTIONS:-} --kill-on-bad-exit=0 --wait=120 python3 "$@"
