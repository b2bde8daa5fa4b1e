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

# What README.md has to say before the first command.
FIRST = {
    "mpi": "after a torch that was built with MPI, see README.md:",
    "kubernetes": "after an image and a volume, see README.md:",
}
first = FIRST.get(ANSWERS["__backend"], FIRST.get(LAUNCHER, "Next:"))
horovod = "\n  scripts/install_horovod.sh" if ANSWERS["__backend"] == "horovod" else ""

print(f"""
{ANSWERS["project_slug"]} is ready ({ANSWERS["hardware"]}, {ANSWERS["__backend"]}, {LAUNCHER}). {first[0].upper() + first[1:]}

  cd {ANSWERS["project_slug"]} && python3 -m pip install -e ".[dev]"{horovod}
  scripts/train.sh
""")
