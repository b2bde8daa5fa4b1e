"""Print a manifest with the image, the size and the options of one training; scripts/train.sh calls it.

usage: manifest.py MANIFEST [--section.field value ...]; IMAGE, NNODES and NPROC_PER_NODE change what the file says.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml


def adapt(document: dict[str, Any], options: list[str], image: str, nodes: str, processes: str) -> None:
    """Change a TrainJob or a Job; an empty text leaves what it says. Other kinds stay as they are."""
    if document["kind"] == "TrainJob":
        container = document["spec"]["trainer"]
{%- if cookiecutter.hardware == "gpu" %}
        resources = container["resourcesPerNode"]
{%- endif %}
        if nodes:
            container["numNodes"] = int(nodes)
        if processes:
            container["numProcPerNode"] = int(processes)
    elif document["kind"] == "Job":
        spec = document["spec"]
        container = spec["template"]["spec"]["containers"][0]
{%- if cookiecutter.hardware == "gpu" %}
        resources = container["resources"]
{%- endif %}
        if nodes:
            spec["completions"] = spec["parallelism"] = int(nodes)
        given = {"NNODES": nodes, "NPROC_PER_NODE": processes}
        for variable in container["env"]:
            variable["value"] = given.get(variable["name"]) or variable["value"]
    else:
        return
    if image:
        container["image"] = image
{%- if cookiecutter.hardware == "gpu" %}
    if processes:
        resources["limits"]["nvidia.com/gpu"] = processes
{%- endif %}
    container["args"] += options


def main() -> None:
    """Print the manifest."""
    documents = list(yaml.safe_load_all(Path(sys.argv[1]).read_text(encoding="utf-8")))
    image, nodes, processes = (os.environ.get(name, "") for name in ("IMAGE", "NNODES", "NPROC_PER_NODE"))
    for document in documents:
        adapt(document, sys.argv[2:], image, nodes, processes)
    print(yaml.safe_dump_all(documents, sort_keys=False), end="")


if __name__ == "__main__":
    main()
