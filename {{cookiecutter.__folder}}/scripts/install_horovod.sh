#!/usr/bin/env bash
# Build Horovod 0.28.1 against the torch of this environment and install it; about two minutes, once.
#
# The wheel is kept in the folder WHEELS (default: .cache/wheels) for the next environment with the same torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

torch=$(python3 -c "import torch; print(torch.__version__.replace('+', '-'))")
wheels=${WHEELS:-.cache/wheels}/torch-$torch
if ! compgen -G "$wheels/horovod-*.whl" >/dev/null; then
  # torch's headers need C++17 and Horovod's build asks for less, after any CXXFLAGS: the compiler itself must insist.
  compiler=$(mktemp)
  trap 'rm -f "$compiler"' EXIT
  printf '#!/bin/sh\nexec "%s" "$@" -std=c++17\n' "$(command -v "${CXX:-c++}")" >"$compiler"
  chmod +x "$compiler"
  python3 -m pip install "setuptools<81" wheel "cmake<4" numpy packaging
  CXX=$compiler HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
    HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    python3 -m pip wheel --no-build-isolation --no-deps --wheel-dir "$wheels" horovod==0.28.1
fi
# pip would keep the same version, built for another torch.
python3 -m pip uninstall --yes horovod
python3 -m pip install "$wheels"/horovod-*.whl
