#!/usr/bin/env bash
# Build and install Visdom 0.2.4: it has no wheel, and the newest setuptools cannot build it.
set -euo pipefail
python3 -m pip install "setuptools<81" wheel
python3 -m pip install --no-build-isolation visdom==0.2.4
