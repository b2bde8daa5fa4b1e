#!/usr/bin/env bash
# Make a folder that is a small Debian:  tests/facilities/debian.sh FOLDER SUITE [PACKAGE,PACKAGE,...]
#
# To be entered with chroot, or to become an image: nothing of this machine changes. Needs root and debootstrap.
set -euo pipefail
root=$1 suite=$2 packages=${3:-}

if [[ $(id -u) != 0 ]] || ! command -v debootstrap >/dev/null; then
  echo "a Debian of its own needs root and debootstrap: apt-get install debootstrap" >&2
  exit 1
fi
# Where this machine gets its own packages; elsewhere than on Debian, debootstrap's default.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m 1 '/debian/\?$' || true)
make_root() {
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase ${packages:+--include="$packages"} "$suite" "$root" ${mirror:+"$mirror"}
}
# debootstrap gives up at the first download that fails.
make_root || make_root
rm -rf "$root"/var/cache/apt/archives/*.deb
