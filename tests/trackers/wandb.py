import json
import struct
import sys
from collections import defaultdict
from pathlib import Path

from wandb.proto import wandb_internal_pb2

BLOCK, HEADER = 32768, 7


def records(path):
    """Yield the records of an offline run: a log of LevelDB, whose blocks hold whole records or parts of one."""
    data, at, whole = path.read_bytes(), HEADER, b""
    while at < len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEADER])
        whole += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # a whole one, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


# Each start writes a folder of its own; they are one run when their identity is the same.
runs = defaultdict(lambda: {"points": defaultdict(list), "settings": {}, "picture": False, "files": []})
for file in sorted(Path(sys.argv[1], "wandb").glob("offline-run-*/*.wandb")):
    run = runs[file.stem]
    for record in records(file):
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if name.startswith(("train/", "eval/")):
                run["points"][name].append([record.history.step.num, json.loads(item.value_json)])
            run["picture"] |= name.startswith("curves")
        for item in record.config.update:
            run["settings"][item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
        if record.HasField("exit"):
            run["end"] = record.exit.exit_code
        run["files"] += [entry.path for entry in record.artifact.manifest.contents]
print(json.dumps(list(runs.values())))
