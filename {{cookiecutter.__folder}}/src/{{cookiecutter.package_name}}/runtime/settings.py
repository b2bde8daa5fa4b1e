"""Commands and settings: from the command line and YAML files to dataclasses, without importing torch."""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import os
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings

from . import process
from .process import hardware, launcher, start
from .report import UsageError
from .state import best_checkpoint, run_directory_of

PACKAGE = str(__package__).rpartition(".")[0]
SOURCE = Path(__file__).parents[1]
# The exit code of a program that Ctrl-C ended.
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """A command of ``python3 -m PACKAGE``."""

    help: str
    function: str
    """``module:function`` of the package, imported when the command runs. Called with (config, options); with
    ``in_every_process``, with (local_rank, config, options) in every process of a run"""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """options beside the settings: name to arguments of add_argument"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """settings whose default differs for this command"""
    in_every_process: bool = False
    of_checkpoint: bool = False
    """whether it takes --checkpoint, and the settings of the run that wrote it"""


def run_command(commands: Mapping[str, Command], config_type: type, arguments: list[str]) -> int:
    """Run one command; return its exit code.

    0 done, 1 failed, 2 bad usage, 85 stopped after a checkpoint, 130 interrupted.
    """
    commands = dict(commands)
    for pack in start.find_packs():
        commands |= getattr(pack, "COMMANDS", {})
    try:
        return _run(commands, config_type, *arguments)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(commands: Mapping[str, Command], config_type: type, name: str = "", *given: str) -> int:
    if name in ("", "-h", "--help"):
        usage = "".join(f"  {name:9} {command.help}\n" for name, command in commands.items())
        print(f"usage: python3 -m {PACKAGE} COMMAND [--help]\n\ncommands:\n{usage}", end="")
        return 0 if name else 2
    if name not in commands:
        raise UsageError(f"unknown command {name}. Use one of {', '.join(commands)}.")
    require_own_source()
    if name == "launch":
        if {"-h", "--help"} & {*given}:
            print(f"usage: scripts/train.sh [--dry-run] [--section.field value ...]\n\n{launcher.__doc__}")
            print(f"settings: python3 -m {PACKAGE} train --help")
            return 0
        return start.launch(PACKAGE, lambda options: parse(config_type, Command("", ""), options)[0], [*given])
    # Before torch is imported: a launcher that dies meanwhile would leave this process behind.
    if launcher.ENDS_WITH_LAUNCHER and start.ranks():
        process.end_with_parent()
    command = commands[name]
    config, options = parse(config_type, command, [*given], f"python3 -m {PACKAGE} {name}")
    # Read when torch is imported.
    for variable, value in {**hardware.ENVIRONMENT, "TORCH_CPP_LOG_LEVEL": "ERROR"}.items():
        os.environ.setdefault(variable, value)
    config = start.resolve(config)
    if command.in_every_process:
        process.keep_early_signals()
        return start.run(partial(imported, command.function), config, options, [name, *given])
    function = imported(command.function)
    if command.of_checkpoint:
        start.configure_packs(config)
    return int(function(config, options))


def imported(name: str) -> Callable[..., Any]:
    """Return a function of the package by ``module:function``."""
    module, _, function = name.partition(":")
    # Garbage collection takes a fifth of the time that the import of torch takes.
    gc.disable()
    found: Callable[..., Any] = getattr(importlib.import_module(f"{PACKAGE}.{module}"), function)
    gc.freeze()
    gc.enable()
    return found


def require_own_source() -> None:
    """Raise UsageError in the folder of another copy of this project: its settings would apply to this source.

    Python imports the copy that was installed last, whatever the current folder is.
    """
    here = Path("src", PACKAGE)
    if here.is_dir() and here.resolve() != SOURCE.resolve():
        raise UsageError(
            f"Python imports {PACKAGE} from {SOURCE}, not from {here.resolve()}. Run python3 -m pip install -e . here, or "
            "change to the other folder."
        )


def default_file() -> list[Path]:
    """Return configs/default.yaml of this project, or the copy that was installed with the package."""
    files = (SOURCE.parents[1] / "configs/default.yaml", SOURCE / "configs/default.yaml")
    return [file for file in files if file.is_file()][:1]


def parse(
    config_type: type, command: Command, arguments: list[str], program: str | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return the settings and the command's own options.

    Precedence: option > --config file > configs/default.yaml > default in config.py. ``~`` and variables are expanded.

    Raises:
        UsageError: for an unknown setting, a bad value or a file that cannot be read.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(prog=program, description=command.help, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="YAML file of settings, on top of configs/default.yaml")
    sections = typing.get_type_hints(config_type)
    for pack in start.find_packs():
        sections |= getattr(pack, "SECTIONS", {})
    for name, section in sections.items():
        parser.add_class_arguments(section, name)
    for name, keywords in command.options.items():
        parser.add_argument(name, **keywords)
    if command.of_checkpoint:
        parser.add_argument("--checkpoint", required=True, help="a file, or a run directory for its best checkpoint")
    try:
        if not {"-h", "--help"} & {*arguments}:
            arguments = with_files(command, arguments)
        values = parser.instantiate(parser.parse_args(arguments)).as_dict()
        config = config_type(**{name: expanded(values.pop(name)) for name in sections})
    except (ArgumentError, ValueError, TypeError, OSError) as error:
        raise UsageError(" ".join(str(error).split())) from None
    return config, values


def with_files(command: Command, arguments: list[str]) -> list[str]:
    """Return the arguments, preceded by the files and settings that they override."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--config", action="append", default=[])
    finder.add_argument("--checkpoint")
    given, others = finder.parse_known_args(arguments)
    files = [*default_file(), *given.config]
    defaults = dict(command.settings)
    if given.checkpoint and command.of_checkpoint:
        run = run_directory_of(given.checkpoint) / "config.yaml"
        if Path(given.checkpoint).exists() and not run.exists() and not given.config:
            raise UsageError(
                f"{run} is missing, so the settings of {given.checkpoint} are unknown. Give --config a file."
            )
        files += [] if given.config else [run]
        defaults |= {"distributed.nproc_per_node": "null", "distributed.backend": "auto"}
        others += ["--checkpoint", str(best_checkpoint(given.checkpoint))]
    elif given.checkpoint:
        others += ["--checkpoint", given.checkpoint]
    settings = [word for name, value in defaults.items() for word in (f"--{name}", value)]
    return [*(word for file in files for word in ("--config", str(file))), *settings, *others]


def expanded(section: Any) -> Any:
    """Return a section of settings with ``~`` and variables expanded in its texts.

    Raises:
        ValueError: for null, or a number that torch cannot use.
    """
    changes = {}
    for item in fields(section):
        value = getattr(section, item.name)
        # jsonargparse accepts null in a file for every type.
        if value is None and not re.search("None|Optional", str(item.type)):
            raise ValueError(f"{item.name} must not be null.")
        limit = 2**63 if isinstance(value, int) else math.inf
        if isinstance(value, int | float) and not abs(value) < limit:
            raise ValueError(f"{item.name} {value} is too large. Its default is {item.default}.")
        if isinstance(value, str):
            changes[item.name] = os.path.expandvars(os.path.expanduser(value))
    return replace(section, **changes)
