import json
import os
from collections import defaultdict
from pathlib import Path

found = []
folders = [path.parent for path in Path(os.environ["CLEARML_CACHE_DIR"]).rglob("task.json")]
for folder in sorted(folders, key=lambda folder: (folder / "task.json").stat().st_mtime):
    points, picture = defaultdict(list), False
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        for event in json.loads(line):
            if event["type"] == "training_stats_scalar" and event["variant"] in ("train", "eval"):
                points[f"{event['variant']}/{event['metric']}"].append([event["iter"], event["value"]])
            picture |= event["type"] == "training_debug_image" and event["metric"] == "curves"
    task = json.loads((folder / "task.json").read_text())
    settings = {name: entry["value"] for name, entry in task["hyperparams"]["settings"].items()}
    files = [str(file) for file in (folder / "data").rglob("artifacts/*/*")]
    found.append({"points": points, "settings": settings, "picture": picture, "files": files})
print(json.dumps(found))
