import json
from collections import defaultdict
from pathlib import Path

found = []
folders = list(Path(".neptune/offline").iterdir())
for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime):
    points, settings, files = defaultdict(list), {}, []
    for log in sorted(folder.glob("data-*.log")):
        for line in log.read_text().splitlines():
            operation = json.loads(line)["obj"]
            group, *rest = operation["path"]
            if operation["type"] == "LogFloats" and group in ("train", "eval"):
                of_number = points["/".join(operation["path"])]
                of_number += [[entry["step"], entry["value"]] for entry in operation["values"]]
            elif group == "settings":
                settings[".".join(rest)] = operation["value"]
            elif operation["type"] == "UploadFile":
                files.append(f"{group} {operation['file_path'] or operation['tmp_file_name']}")
    picture = any(name.startswith("curves") for name in files)
    found.append({"points": points, "settings": settings, "picture": picture, "files": files})
print(json.dumps(found))
