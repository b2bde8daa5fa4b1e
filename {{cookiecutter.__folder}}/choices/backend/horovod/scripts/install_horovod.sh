#!/usr/bin/env bash
# Build Horovod 0.28.1 against the torch of this environment and install it; about two minutes, once.
#
# The wheel is kept in the folder WHEELS (default: .cache/wheels) for the next environment with the same torch and Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

versions=$(python3 -c "import sys, torch; print(f'torch-{torch.__version__}-python-{sys.version_info[0]}.{sys.version_info[1]}')")
wheels=${WHEELS:-.cache/wheels}/${versions/+/-}
if ! compgen -G "$wheels/horovod-*.whl" >/dev/null; then
  # torch's headers need a newer C++ than the one that Horovod's build asks for behind any CXXFLAGS: what stands for the compiler
  # puts it last. From g++ 13 on it has to be given what Horovod forgets to include, too.
  for program in "${CXX:-c++}" make; do
    command -v "$program" >/dev/null || {
      echo "error: building Horovod requires $program: install g++ and make, or load a module that brings them" >&2
      exit 1
    }
  done
  compiler=$(mktemp)
  trap 'rm -f "$compiler"' EXIT
  {
    echo '#!/bin/sh'
    echo "exec '$(command -v "${CXX:-c++}")' \"\$@\" -std=c++20 -include cstdint -include span -include stdexcept -include string"
  } >"$compiler"
  chmod +x "$compiler"
  python3 -m pip install "setuptools<81" wheel "cmake<4" numpy packaging
  CXX=$compiler HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
    HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    python3 -m pip wheel --no-build-isolation --no-deps --wheel-dir "$wheels" horovod==0.28.1
fi
# pip would keep the same version, built for another torch.
python3 -m pip uninstall --yes horovod
python3 -m pip install "$wheels"/horovod-*.whl
