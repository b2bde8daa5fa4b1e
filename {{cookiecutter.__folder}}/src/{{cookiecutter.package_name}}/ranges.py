"""What a sweep tries: settings, and for each of them a range of numbers or a choice."""

from __future__ import annotations

import re
import tempfile
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonargparse import ArgumentParser

from . import distributed
from .checks import batch_check, require
from .command_line import SETTINGS, add_settings, check_file, parse, unknown_setting
from .config import SECTIONS, Config, to_dict
from .errors import UsageError
from .tracking import flat

EXAMPLE = "optim.lr=1e-4..1e-1,log"
# So many of a range of whole numbers are tried before the first training; each takes some hundredths of a second.
FIRST_ONES = 20
NUMBERS = re.compile(r"(\S+?)\s*\.\.\s*(\S+?)\s*(,\s*log)?")


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``, both among them; ``log``: each order of magnitude as often as any other."""

    low: float
    high: float
    log: bool
    whole: bool

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{',log' if self.log else ''}"


Values = Range | tuple[str, ...]


def read_ranges(words: Sequence[str]) -> dict[str, Values]:
    """Return what each setting may be, from words such as ``optim.lr=1e-4..1e-1,log``, and files of settings like them.

    Raises:
        UsageError: for what is no setting, or no range.
    """
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if equals:
            given[name] = text
        elif Path(word).is_file():
            check_file(word)
            # Every value as it is written.
            given |= flat(yaml.BaseLoader(Path(word).read_text(encoding="utf-8")).get_single_data())
        else:
            raise UsageError(f"{word} is neither a setting and its values, such as {EXAMPLE}, nor a file of them")
    if not given:
        raise UsageError(f"say which settings to try, such as {EXAMPLE}, or name a file of them")
    return {name: values_of(name, value) for name, value in given.items()}


def plain(ranges: dict[str, Values]) -> dict[str, str | list[str]]:
    """Return the ranges as a file of them holds them."""
    return {name: str(one) if isinstance(one, Range) else [*one] for name, one in ranges.items()}


def values_of(name: str, given: Any) -> Values:
    """Return what a setting may be: a range, if it is a number and ``given`` looks like one, else a choice.

    Raises:
        UsageError: if there is no such setting, or it is the sweep's own, or its range holds no numbers.
    """
    if name not in SETTINGS:
        raise UsageError(unknown_setting(name))
    if name in ("train.run_dir", "train.resume"):
        raise UsageError(f"{name} is the sweep's own for each trial: leave it out of the settings to try")
    if isinstance(given, list):
        return tuple(dict.fromkeys(map(str, given)))
    section, _, field = name.partition(".")
    kind = typing.get_type_hints(SECTIONS[section])[field]
    kinds = typing.get_args(kind) or (kind,)
    found = NUMBERS.fullmatch(given.strip())
    if not found or not (int in kinds or float in kinds):
        return tuple(dict.fromkeys(choice.strip() for choice in given.split(",")))
    number = int if int in kinds else float
    try:
        values = Range(number(found[1]), number(found[2]), bool(found[3]), number is int)
    except ValueError:
        raise UsageError(f"{name} has no {'whole ' * (number is int)}numbers in {given}: compare {EXAMPLE}") from None
    if not values.low < values.high or (values.log and values.low <= 0):
        raise UsageError(f"{name} {given} must go up{', from more than 0' * values.log}: compare {EXAMPLE}")
    return values


def check_ranges(config: Config, ranges: dict[str, Values], world_sizes: Sequence[int]) -> None:
    """Try each choice, and of each range both ends, with the parser that a training has; train nothing.

    Of whole numbers, it tries the first ones: a model may refuse all but the multiples of some number.

    Raises:
        UsageError: with the first one that a training in one of ``world_sizes`` would refuse.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(to_dict(config), file)
        file.flush()
        for name, values in ranges.items():
            ends = (values.low, values.high) if isinstance(values, Range) else values
            for value in ends:
                check_value(file.name, name, value, world_sizes)
            if isinstance(values, Range) and values.whole:
                for value in range(int(values.low) + 1, min(int(values.low) + FIRST_ONES, int(values.high))):
                    try:
                        check_value(file.name, name, value, world_sizes)
                    except UsageError as error:
                        fix = f"list those that are not refused, such as {name}={values.low},{values.high}"
                        raise UsageError(f"{name} may not be {value}, which is in {values} ({error}): {fix}") from None


def check_value(settings: str, name: str, value: float | str, world_sizes: Sequence[int]) -> None:
    """Refuse a value that a training with a file of settings would refuse.

    Raises:
        UsageError: with the reason.
    """
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_settings(parser)
    tried, _ = parse(parser, ["--config", settings, f"--{name}={value}"])
    tried = distributed.resolve(tried)
    if world_sizes:
        require([batch_check(tried.data.batch_size, world_sizes, tried.optim.accumulation_steps)])
