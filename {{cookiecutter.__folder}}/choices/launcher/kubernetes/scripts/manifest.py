"""Print a manifest with the image, the size and the options of one training, or apply it as scripts/train.sh does.

usage: manifest.py [--apply] MANIFEST [--section.field value ...]
       manifest.py --size MANIFEST prints its nodes and its processes on each of them

IMAGE, NNODES and NPROC_PER_NODE change what the file says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml


def adapt(document: dict[str, Any], options: list[str], image: str, nodes: str, processes: str) -> tuple[int, int]:
    """Change a TrainJob or a Job; an empty text leaves what it says. Other kinds stay as they are.

    Returns the nodes, and the processes on each of them; zeros for other kinds.
    """
    if document["kind"] == "TrainJob":
        container = document["spec"]["trainer"]
        resources = container["resourcesPerNode"]
        container["numNodes"] = int(nodes or container["numNodes"])
        before = container["numProcPerNode"]
        container["numProcPerNode"] = int(processes or before)
        size = container["numNodes"], container["numProcPerNode"]
    elif document["kind"] == "Job":
        spec = document["spec"]
        container = spec["template"]["spec"]["containers"][0]
        resources = container["resources"]
        variables = {variable["name"]: variable for variable in container["env"]}
        before = int(variables["NPROC_PER_NODE"]["value"])
        size = int(nodes or spec["completions"]), int(processes or before)
        spec["completions"] = spec["parallelism"] = size[0]
        variables["NNODES"]["value"], variables["NPROC_PER_NODE"]["value"] = map(str, size)
    else:
        return 0, 0
    if image:
        container["image"] = image
    for amounts in resources.values():
        for name, amount in amounts.items():
            amounts[name] = multiply(str(amount), size[1], before)
    # Of two of the same name, the later one counts.
    container["args"] += options
    return size


def multiply(amount: str, processes: int, before: int) -> str:
    """Return what so many processes need, where those before need ``amount``, such as 2, 1.5 or 4Gi."""

    def multiplied(number: re.Match[str]) -> str:
        if "." in number[0]:
            return f"{float(number[0]) * processes / before:g}"
        # Of whole cores and devices, there are only whole ones: rounded up.
        return str(-(-int(number[0]) * processes // before))

    return re.sub(r"^\d+(\.\d+)?", multiplied, amount)


def refuse(sentence: str) -> NoReturn:
    """End with bad usage."""
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


def apply(manifest: str, name: str, namespace: str = "") -> int:
    """Let kubectl apply the manifest, and say how to follow its training; return the exit code."""
    if "image: registry.example.com/" in manifest:
        refuse("set IMAGE to the image that the cluster pulls, as docs/kubernetes.md shows")
    code = subprocess.run(["kubectl", "apply", "-f", "-"], input=manifest, text=True, check=False).returncode
    if not code:
        label = "job-name" if "kind: Job\n" in manifest else "jobset.sigs.k8s.io/jobset-name"
        there = f" -n {namespace}" if namespace else ""
        print(
            f"when its pods run, follow them with  kubectl logs{there} -f --prefix --tail=-1 --max-log-requests 99 -l {label}={name}"
        )
    return code


def main() -> int:
    """Print or apply the manifest, or print its size; return the exit code."""
    arguments = sys.argv[1:]
    mode = arguments.pop(0) if arguments[:1] in (["--size"], ["--apply"]) else ""
    file, *options = arguments or ["MANIFEST"]
    if not Path(file).is_file():
        refuse(f"{file} is not a file: choose scripts/trainjob.yaml or scripts/job.yaml")
    image, nodes, processes = (os.environ.get(name, "") for name in ("IMAGE", "NNODES", "NPROC_PER_NODE"))
    for name, text in (("NNODES", nodes), ("NPROC_PER_NODE", processes)):
        if text and not re.fullmatch(r"[1-9]\d*", text):
            refuse(f"{name} must be a number, such as 2, not {text}")
    try:
        # A separator behind the last document begins an empty one.
        documents = [part for part in yaml.safe_load_all(Path(file).read_text(encoding="utf-8")) if part is not None]
        sizes = [adapt(document, options, image, nodes, processes) for document in documents]
        names = [(part["metadata"]["name"], part["metadata"].get("namespace", "")) for part in documents]
    except yaml.YAMLError as error:
        refuse(f"{file} is no YAML ({' '.join(str(error).split())}): correct it")
    except KeyError as missing:
        refuse(f"{file} has no {missing.args[0]}, which this command changes: write it as scripts/ had it")
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        refuse(f"{file} is no manifest that this command can change ({error}): write it as scripts/ had it")
    if mode and max(sizes, default=(0, 0)) == (0, 0):
        refuse(f"{file} holds no TrainJob and no Job: choose scripts/trainjob.yaml or scripts/job.yaml")
    manifest = yaml.safe_dump_all(documents, sort_keys=False)
    if mode == "--apply":
        return apply(manifest, *names[-1])
    print(*max(sizes)) if mode == "--size" else print(manifest, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
