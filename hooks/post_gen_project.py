"""Remove what the answers leave out, then say the next two commands. Needs no network and installs nothing."""

import json
import shutil
from pathlib import Path

ANSWERS = json.loads({{cookiecutter | jsonify(indent=None) | jsonify}})
LAUNCHER = ANSWERS["__launcher"]

# Every path of the template that only some answers keep.
KEEP_IF = {
    "scripts/train.sbatch": LAUNCHER == "slurm",
    "scripts/trainjob.yaml": LAUNCHER == "kubernetes",
    "scripts/job.yaml": LAUNCHER == "kubernetes",
    "scripts/volume.yaml": LAUNCHER == "kubernetes",
    "scripts/manifest.py": LAUNCHER == "kubernetes",
    "scripts/install_horovod.sh": ANSWERS["__backend"] == "horovod",
    "LICENSE": ANSWERS["license"] != "none",
    "Dockerfile": ANSWERS["use_docker"],
    ".dockerignore": ANSWERS["use_docker"],
    ".github": ANSWERS["use_github_actions"],
    "notebooks": ANSWERS["use_notebook"],
}

for name, keep in KEEP_IF.items():
    path = Path(name)
    if keep:
        continue
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()

print(f"""
{ANSWERS["project_slug"]} is ready ({ANSWERS["hardware"]}, {ANSWERS["__backend"]}, {LAUNCHER}). Next:

  cd {ANSWERS["project_slug"]} && python3 -m pip install -e ".[dev]"
  scripts/train.sh
""")
