"""Print a manifest with the image, the size and the options of one run, or apply it as scripts/train.sh does.

usage: manifest.py [--apply] MANIFEST [--section.field value ...]
       manifest.py --size MANIFEST    # print the number of nodes, and of processes on each

IMAGE, NNODES and NPROC_PER_NODE replace those of the file.
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
    """Change a TrainJob or a Job, and nothing else; empty values keep those of the manifest.

    Returns the number of nodes, and of processes on each; zeros for other kinds.
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
    # An option that is given twice has the later value.
    container["args"] += options
    return size


def multiply(amount: str, processes: int, before: int) -> str:
    """Return the amount for ``processes``, if ``before`` of them need ``amount``, such as 2, 1.5 or 4Gi."""

    def multiplied(number: re.Match[str]) -> str:
        if "." in number[0]:
            return f"{float(number[0]) * processes / before:g}"
        # Devices cannot be divided: round up.
        return str(-(-int(number[0]) * processes // before))

    return re.sub(r"^\d+(\.\d+)?", multiplied, amount)


def fail(message: str) -> NoReturn:
    """Print an error and exit with the code for bad usage."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def apply(manifest: str, name: str, namespace: str = "") -> int:
    """Apply the manifest with kubectl and print how to follow the run; return the exit code."""
    if "image: registry.example.com/" in manifest:
        fail("IMAGE is not set. Set it to an image that the cluster can pull, as in docs/kubernetes.md.")
    code = subprocess.run(["kubectl", "apply", "-f", "-"], input=manifest, text=True, check=False).returncode
    if not code:
        label = "job-name" if "kind: Job\n" in manifest else "jobset.sigs.k8s.io/jobset-name"
        options = f"-n {namespace} " if namespace else ""
        options += f"-f --prefix --tail=-1 --max-log-requests 99 -l {label}={name}"
        print(f"when its pods run, follow them with  kubectl logs {options}")
    return code


def main() -> int:
    """Print or apply the manifest, or print its size; return the exit code."""
    arguments = sys.argv[1:]
    mode = arguments.pop(0) if arguments[:1] in (["--size"], ["--apply"]) else ""
    file, *options = arguments or [""]
    if not Path(file).is_file():
        fault = f"{file} does not exist" if file else "MANIFEST is missing"
        fail(f"{fault}. Use scripts/trainjob.yaml or scripts/job.yaml.")
    image, nodes, processes = (os.environ.get(name, "") for name in ("IMAGE", "NNODES", "NPROC_PER_NODE"))
    for name, text in (("NNODES", nodes), ("NPROC_PER_NODE", processes)):
        if text and not re.fullmatch(r"[1-9]\d*", text):
            fail(f"{name} {text} is not a positive number. Set it to 2, for example, or unset it.")
    try:
        # A separator after the last document starts an empty one.
        documents = [part for part in yaml.safe_load_all(Path(file).read_text(encoding="utf-8")) if part is not None]
        sizes = [adapt(document, options, image, nodes, processes) for document in documents]
        names = [(part["metadata"]["name"], part["metadata"].get("namespace", "")) for part in documents]
    except yaml.YAMLError as error:
        fail(f"{file} is not valid YAML ({' '.join(str(error).split())}). Correct it.")
    except KeyError as missing:
        fail(f"{file} does not have {missing.args[0]}. Add it, as in the original of this file.")
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        fail(f"{file} does not have the expected structure ({error}). Restore that of the original file.")
    if mode and max(sizes, default=(0, 0)) == (0, 0):
        fail(f"{file} contains neither a TrainJob nor a Job. Use scripts/trainjob.yaml or scripts/job.yaml.")
    manifest = yaml.safe_dump_all(documents, sort_keys=False)
    if mode == "--apply":
        return apply(manifest, *names[-1])
    print(*max(sizes)) if mode == "--size" else print(manifest, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
