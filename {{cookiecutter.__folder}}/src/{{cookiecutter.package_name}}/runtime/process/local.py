"""Start processes of this machine by torchrun's agent, without its report: the process that failed prints the last line."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from .supervise import start_again


def start(worker: Any, nproc: int | None, arguments: list[str]) -> int:
    """Run the command ``arguments`` again, in ``nproc`` processes; return the exit code."""
    options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={nproc}", "--no-python"]
    return start_again([sys.executable, "-m", __name__, *options], worker.config.train.run_dir, arguments)


def main(arguments: list[str]) -> int:
    """Start and watch the processes of this node; return the exit code of the first that failed, or 0."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    for name in ("torch.distributed.elastic.multiprocessing.api", "torch.distributed.elastic.agent.server.api"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # A store apart from the agent's survives the loss of the node that serves that, and leaves its port to the run.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    try:
        run(get_args_parser().parse_args(arguments))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            text = f"error: rank {rank} was killed by signal {-failure.exitcode}. Start again to resume."
            print(text, file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 1
    except SignalException as error:
        return 128 + error.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
