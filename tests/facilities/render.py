"""Render the template for each set of answers on standard input:  python tests/facilities/render.py TEMPLATE FOLDER

FOLDER/0, FOLDER/1 and so on then hold the projects. This runs with the Python and the cookiecutter that are to be tried, and
nothing else. This Python must read every file of a project that is one of Python's, without a warning.
"""

import json
import platform
import sys
import warnings
from importlib import metadata
from pathlib import Path

from cookiecutter.main import cookiecutter  # type: ignore[import-untyped]

template, folder = sys.argv[1], Path(sys.argv[2])
for number, answers in enumerate(json.load(sys.stdin)):
    output = str(folder / str(number))
    project = Path(cookiecutter(template, no_input=True, extra_context=answers, output_dir=output))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for file in project.rglob("*.py"):
            compile(file.read_bytes(), str(file), "exec")
print(json.dumps({"python": platform.python_version(), "cookiecutter": metadata.version("cookiecutter")}))
