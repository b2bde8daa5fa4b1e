#!/bin/sh
# Train with the project's launcher; --dry-run only prints the command. Works by any path, and as sh scripts/train.sh.
cd "$(dirname "$(readlink -f "$0")")/.." || exit
python3 -c "import {{ cookiecutter.package_name }}" 2>/dev/null || {
  echo "error: $(command -v python3) cannot import {{ cookiecutter.package_name }}. Activate the environment where this project is installed." >&2
  exit 1
}
exec python3 -m {{ cookiecutter.package_name }} launch "$@"
