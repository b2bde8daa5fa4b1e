#!/usr/bin/env bash
# Make a folder with a torch that was built with MPI:  tests/facilities/mpi_root.sh FOLDER
#
# PyPI's torch has no MPI; that of Debian trixie has. It takes about two minutes, once.
set -euo pipefail
root=$(realpath --canonicalize-missing "${1:?folder to make}")

if [[ ! -e $root/ready ]]; then
  # automake: debootstrap does not see that it is the automake-1.17 which one of the others needs.
  "$(dirname "$0")/debian.sh" "$root" trixie python3-torch,python3-venv,openmpi-bin,automake,ca-certificates
  touch "$root/ready"
fi
