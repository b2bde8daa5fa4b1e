#!/usr/bin/env bash
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
exec python3 -m {{ cookiecutter.package_name }} launch "$@"
