"""Answer the command lines of a project in one process, which has imported torch once: JSON in, JSON out, line by line.

    python3 answering.py PACKAGE

A line holds ``arguments``, the ``folder`` to be in, and ``variables`` of the environment; the answer has the exit code
(null for an exception that reached the top) and what was written to standard error.
"""

import importlib
import io
import json
import os
import resource
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout

# A setting may ask for more memory than there is; that is to fail here, not to take the machine with it.
MEMORY = 8 << 30


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    package = importlib.import_module(f"{sys.argv[1]}.__main__")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    environment = dict(os.environ)
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(environment | asked["variables"])
        os.chdir(asked["folder"])
        code: object = None
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
            try:
                code = package.main(asked["arguments"])
            except SystemExit as left:
                code = left.code
            except BaseException:  # noqa: BLE001 - whatever it is, it is the answer
                traceback.print_exc()
        print(json.dumps({"code": code, "errors": errors.getvalue()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
