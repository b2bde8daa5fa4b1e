#!/usr/bin/env bash
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python3 -c "import {{ cookiecutter.package_name }}" 2>/dev/null || {
  echo "error: $(command -v python3) does not find this project: activate the environment where it is installed" >&2
  exit 1
}
exec python3 -m {{ cookiecutter.package_name }} launch "$@"
