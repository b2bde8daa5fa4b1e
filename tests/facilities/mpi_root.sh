#!/usr/bin/env bash
# Make a folder with a torch that was built with MPI:  tests/facilities/mpi_root.sh FOLDER
#
# PyPI's torch has no MPI; that of Debian trixie has. The folder becomes a small Debian trixie, to be entered with
# chroot: nothing of this machine changes. It takes about two minutes, once. Needs root and debootstrap.
set -euo pipefail
root=$(realpath --canonicalize-missing "${1:?folder to make}")

if [[ -e $root/ready ]]; then
  exit
fi
if [[ $(id -u) != 0 ]] || ! command -v debootstrap >/dev/null; then
  echo "an MPI-built torch needs root and debootstrap: apt-get install debootstrap" >&2
  exit 1
fi

# Where this machine gets its own packages; elsewhere than on Debian, debootstrap's default.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m 1 '/debian/\?$' || true)
make_root() {
  rm -rf "$root"
  mkdir -p "$root"
  # automake: debootstrap does not see that it is the automake-1.17 which one of the others needs.
  debootstrap --variant=minbase --include=python3-torch,python3-venv,openmpi-bin,automake,ca-certificates \
    trixie "$root" ${mirror:+"$mirror"}
}
# debootstrap gives up at the first download that fails.
make_root || make_root
rm -rf "$root"/var/cache/apt/archives/*.deb
touch "$root/ready"
