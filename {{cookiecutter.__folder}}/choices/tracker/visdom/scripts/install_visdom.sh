#!/usr/bin/env bash
# Build Visdom 0.2.4 and install it: there are no wheels, and the newest setuptools cannot build it.
set -euo pipefail
python3 -m pip install "setuptools<81" wheel
python3 -m pip install --no-build-isolation visdom==0.2.4
