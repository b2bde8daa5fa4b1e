#!/usr/bin/env bash
# Run a command inside the folder that mpi_root.sh made:  mpi_enter.sh FOLDER DIRECTORY COMMAND [ARGUMENT ...]
#
# DIRECTORY, and VENV, the virtual environment, are meant inside the folder. What is mounted for the command goes with it.
set -euo pipefail
root=$(realpath "$1")
export root VENV=${VENV:?an environment}
shift
exec unshare --mount --propagation private bash -euo pipefail -c '
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  # Two commands may be under way: what is there already is left alone.
  provide() { cmp --silent "$1" "$root/$2" || cp --dereference "$1" "$root/$2"; }
  provide /etc/resolv.conf etc/resolv.conf
  provide "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" etc/ssl/certs/ca-certificates.crt
  # The test clusters that are up: MPI finds its place in a job there.
  for cluster in /run/ddl-template-cluster*; do
    if [[ -d "$cluster" ]]; then
      mkdir -p "$root$cluster"
      mount --rbind "$cluster" "$root$cluster"
    fi
  done
  exec chroot "$root" env HOME=/root LANG=C.UTF-8 PYTHONPATH="$1/src" PATH="$VENV/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    sh -c '\''cd "$0" && exec "$@"'\'' "$@"
' bash "$@"
