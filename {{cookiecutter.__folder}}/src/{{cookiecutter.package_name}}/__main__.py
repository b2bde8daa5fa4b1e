"""Commands: ``python3 -m {{ cookiecutter.package_name }} train | evaluate | predict | export | doctor | shards | scaling
| sweep | seeds | launch``."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jsonargparse import ArgumentParser

from . import distributed, early_signals, storage
from .command_line import add_settings, parse
from .distributed import hardware, starter
from .errors import UsageError
from .launch import launch

COMMANDS = {
    "train": "Train in this process, or in those that the launcher starts.",
    "evaluate": "Measure a checkpoint on the validation set.",
    "predict": "Print what a checkpoint makes of new inputs.",
    "export": "Write a checkpoint as a program that requires torch alone, and as plain weights.",
    "doctor": "Is this machine ready? One line for each check, and the fix for the first one that fails.",
    "launch": "Start a training with the project's launcher, as scripts/train.sh does.",
    "scaling": "From which batch on are more processes faster, and how many are worth it? Trains with several numbers of both.",
    "sweep": "Search for good settings: many trainings, each with others, proposed by optuna.",
    "seeds": "Train with several seeds: what the results spread over, mean and standard deviation.",
    "shards": "Which samples does each rank get? Needs no processes, so the world may be thousands.",
}
# That of a program which Ctrl-C has ended, as shells give it.
EXIT_INTERRUPTED = 130
FROM_CHECKPOINT = ("evaluate", "predict", "export")
# They start trainings, one after another.
OF_MANY = ("sweep", "seeds")
USAGE = f"usage: python3 -m {__package__} COMMAND [--help]\n\ncommands:\n"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code.

    0 done, 1 failed, 2 bad usage, 85 stopped after a checkpoint, 130 interrupted before the first step.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE + "".join(f"  {name:9} {text}\n" for name, text in COMMANDS.items()), end="")
        return 0 if arguments else 2
    try:
        return run_command(arguments[0], arguments[1:])
    except UsageError as refused:
        print(f"error: {refused}", file=sys.stderr)
        return refused.exit_code
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def run_command(command: str, arguments: list[str]) -> int:
    """Read the options of ``command`` and run it.

    Raises:
        UsageError: for an unknown command or setting, a bad value, or a machine that is not ready.
    """
    if command not in COMMANDS:
        raise UsageError(f"there is no command {command}: the valid ones are {', '.join(COMMANDS)}")
    if command == "launch":
        return launch(arguments)
    if starter.DIES_WITH_PARENT and distributed.launched():
        early_signals.die_with_parent()
    program = f"python3 -m {__package__} {command}"
    parser = ArgumentParser(prog=program, description=COMMANDS[command], exit_on_error=False, allow_abbrev=False)
    add_settings(parser)
    if command in FROM_CHECKPOINT:
        parser.add_argument("--checkpoint", type=str, required=True, help="a file, or a run directory for its best one")
        arguments = with_settings_of_the_run(arguments)
    if command == "predict":
        parser.add_argument("inputs", nargs="+", help="what the task predicts from, such as files")
    elif command == "export":
        parser.add_argument("--folder", help="where to write it; by default the folder export of the run")
    elif command == "doctor":
        parser.add_argument("--quiet", action="store_true", help="say only what is wrong, in one sentence")
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        nnodes = "run it on each of so many nodes: can they reach each other at MASTER_ADDR and MASTER_PORT?"
        parser.add_argument("--nnodes", type=int, default=1, help=nnodes)
        parser.add_argument("--exchange", action="store_true", help="only exchange tensors between the processes")
    elif command == "scaling":
        parser.add_argument("--processes", type=str, default="1,2", help="of each node, such as 1,2,4")
        parser.add_argument("--nodes", type=str, default="", help="for the launcher to start, such as 1,2")
        parser.add_argument("--batches", type=str, default="16,64,256", help="global batches, such as 64,128,256")
        parser.add_argument("--steps", type=int, default=50, help="of each training")
        wide = "batches from 2 to 6144, as far as there are samples, instead of --batches"
        parser.add_argument("--simulate", action="store_true", help="one rank of a world that is not there: its memory")
        parser.add_argument("--world-size", type=int, help="ranks of that world (default: 512)")
        parser.add_argument("--preset", choices=["batch-crossover"], help=wide)
        arguments = ["--train.run_dir", "runs/scaling", *arguments]
    elif command == "sweep":
        tried = "settings and what they may be: optim.lr=1e-4..1e-1,log or data.batch_size=32,64; or files of them"
        parser.add_argument("ranges", nargs="*", type=str, help=tried)
        parser.add_argument("--trials", type=int, default=20, help="of the whole sweep, whoever trains them")
        parser.add_argument("--pruner", choices=["median", "none"], default="median", help="it stops hopeless trials")
        where = "of a new sweep: journal, where the file system does not suit SQLite"
        parser.add_argument("--storage", choices=["sqlite", "journal"], default="sqlite", help=where)
        arguments = ["--train.run_dir", "runs/sweep", *arguments]
    elif command == "seeds":
        parser.add_argument("seeds", nargs="?", type=str, help="such as 0-4; none: a table of those there are")
        arguments = ["--train.run_dir", "runs/seeds", *arguments]
    elif command == "shards":
        parser.add_argument("--world-size", type=int, default=2, help="number of processes")
    if command in OF_MANY:
        parser.add_argument("--here", action="store_true", help="train in processes of this machine alone")
    config, options = parse(parser, arguments)
    if command in OF_MANY and config.train.resume != "auto":
        raise UsageError(f"leave out train.resume: each training of {command} resumes in a folder of its own")

    # What these start sets its own; a job that they submit would inherit this instead of what its script says.
    if command in OF_MANY:
        early_signals.remember()
    else:
        # Read when torch is imported, which is why that comes after; ``launch`` has set them for some launchers already.
        for name, value in hardware.ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # Its sockets warn of every address that has no name; errors are still said.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    config = distributed.resolve(config)
    for name in ("world_size", "nnodes"):
        if (number := options.get(name)) is not None and number < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {number}")
    if command == "train":
        early_signals.remember()
        with importing():
            from .training import training
        if not distributed.launched():
            from .doctor import preflight

            preflight(config)
        return distributed.run(training, config)
    with importing():
        from . import connectivity, doctor, evaluation, export, scaling, seeds, shards

    if command in FROM_CHECKPOINT:
        given = options["checkpoint"]
        if command == "evaluate":
            return distributed.run(evaluation.evaluation, config, best_of(given))
        # These two take this process alone, whatever the launcher.
        if command == "predict":
            return export.prediction(config, best_of(given), options["inputs"])
        folder = options["folder"] or run_directory_of(given) / "export"
        return export.export(config, best_of(given), Path(str(folder)))
    if command == "scaling":
        asked = {name: str(options[name]) for name in ("processes", "batches", "steps", "nodes")}
        if options["simulate"]:
            # What it imports takes torch a second.
            from . import simulation

            return simulation.simulate(config, options["world_size"] or 512)
        if options["world_size"]:
            raise UsageError("--world-size is of a world that is not there: add --simulate, or choose --processes")
        if options["preset"]:
            asked["batches"] = scaling.batches_of_crossover(config)
        return scaling.scaling(config, settings_among(arguments), asked)
    if command == "sweep":
        if not importlib.util.find_spec("optuna"):
            raise UsageError("a sweep requires optuna: pip install -e '.[sweep]'", 1)
        from . import sweep

        return sweep.sweep(config, arguments, options["ranges"] or [], options)
    if command == "seeds":
        return seeds.seeds(config, arguments, options["seeds"] or "", options["here"])
    if command == "shards":
        return shards.shards(config, options["world_size"])
    if options["nnodes"] > 1:
        return connectivity.meet(options["nnodes"], config.distributed.timeout_s)
    if options["exchange"]:
        return distributed.run(doctor.exchange, config)
    return doctor.doctor(config, as_json=options["json"], quiet=options["quiet"])


@contextmanager
def importing() -> Iterator[None]:
    """Let Python look for no garbage inside the ``with`` block, nor ever among what is made there.

    Modules stay, and to look through all of torch's again and again takes a fifth of the time of its import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settings_among(arguments: list[str]) -> list[str]:
    """Return the arguments that are settings of a training."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # The folder is that of the study: each training has its own in it.
    for name in ("--processes", "--nodes", "--batches", "--steps", "--preset", "--train.run_dir"):
        finder.add_argument(name)
    return finder.parse_known_args(arguments)[1]


def with_settings_of_the_run(arguments: list[str]) -> list[str]:
    """Put the settings that the checkpoint was trained with first, so that the options given here can change them.

    Raises:
        UsageError: if they are not beside the checkpoint, and none are given: others would measure something else.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--checkpoint", nargs="?")
    finder.add_argument("--config", nargs="?", const="")
    given, _ = finder.parse_known_args(arguments)
    file = run_directory_of(given.checkpoint or "") / "config.yaml"
    if given.config is not None or not given.checkpoint or not os.path.exists(given.checkpoint):
        return arguments
    if not file.exists():
        raise UsageError(f"there is no {file}, which says how {given.checkpoint} was trained: give one by --config")
    here = ["--distributed.nproc_per_node", "null", "--distributed.backend", "auto"]
    return ["--config", str(file), *here, *arguments]


def run_directory_of(checkpoint: str) -> Path:
    """Return the folder of the run that a checkpoint belongs to, or that folder itself."""
    path = Path(checkpoint).absolute()
    return path.parent.parent if storage.is_checkpoint(path) or not os.path.isdir(path) else path


def best_of(checkpoint: str) -> str:
    """Return the best checkpoint if a run directory is given, else the checkpoint itself.

    Raises:
        UsageError: if it is not there, or the folder has none.
    """
    if not os.path.exists(checkpoint):
        raise UsageError(f"there is no checkpoint {checkpoint}: choose one in the checkpoints folder of a run")
    if storage.is_checkpoint(Path(checkpoint)) or not os.path.isdir(checkpoint):
        return checkpoint
    found = storage.saved_checkpoints(Path(checkpoint) / "checkpoints", "best")
    if not found:
        fix = "choose one of its checkpoints, or the folder of a run that has one"
        why = "which only an evaluation with a score that is a number writes"
        raise UsageError(f"{checkpoint} holds no checkpoints/best_*, {why}: {fix}")
    return str(max(found, key=lambda file: file.stat().st_mtime))


if __name__ == "__main__":
    sys.exit(main())
