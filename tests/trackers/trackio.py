import json
import os
import subprocess
from pathlib import Path


def ask(*command):
    output = subprocess.run(
        ["trackio", *command, "--json"], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(output)


found = []
for project in ask("list", "projects")["projects"]:
    for run in ask("list", "runs", "--project", project)["runs"]:
        which = ["--project", project, "--run", run]
        about = ask("get", "run", *which)
        points = {
            name: [
                [entry["step"], entry["value"]]
                for entry in ask("get", "metric", *which, "--metric", name)["values"]
            ]
            for name in about["metrics"]
            if "/" in name
        }
        # What it keeps of a file is its content.
        stored = [
            path.read_bytes()
            for path in Path(os.environ["TRACKIO_DIR"], "artifacts").rglob("*")
            if path.is_file()
        ]
        checkpoints = Path("runs/default/checkpoints").glob("best_*.pt")
        files = [path.name for path in checkpoints if path.read_bytes() in stored]
        found.append(
            {
                "points": points,
                "settings": about["config"],
                "picture": "curves" in about["metrics"],
                "files": files,
            }
        )
print(json.dumps(found))
