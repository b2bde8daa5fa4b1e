"""What a sweep tries: for each setting, a range of numbers or a list of values."""

from __future__ import annotations

import re
import tempfile
import typing
from collections.abc import Iterable
from typing import Any

import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ...config import Config
from ...runtime import Command, UsageError, state
from ...runtime.process import start
from ...runtime.process.start import setting_checks
from ...runtime.report import require
from ...runtime.settings import parse
from .trials import world_sizes

EXAMPLE = "optim.lr=1e-4..1e-1,log"
NUMBERS = re.compile(r"(\S+?)\.\.([^\s,]+)(,log)?")


def read_ranges(words: Iterable[str], config: Config) -> dict[str, BaseDistribution]:
    """Return what each setting may be, from words such as ``optim.lr=1e-4..1e-1,log`` or ``data.batch_size=32,64``.

    Raises:
        UsageError: for an unknown setting, a bad range, or a value that a run with ``config`` would refuse.
    """
    ranges = {name: distribution(name, text, config) for name, _, text in (word.partition("=") for word in words)}
    if not ranges:
        raise UsageError(f"sweep has nothing to try. Name settings and their values, such as {EXAMPLE}.")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(state.plain(config), file)
        file.flush()
        for name, among in ranges.items():
            for value in samples_of(among):
                tried, _ = parse(Config, Command("", ""), ["--config", file.name, f"--{name}={value}"])
                require(setting_checks(start.resolve(tried), world_sizes(config)))
    return ranges


def distribution(name: str, text: str, config: Config) -> BaseDistribution:
    """Return a range, if the setting is a number and the text is like 1..2 or 1..2,log, else a choice of values.

    Raises:
        UsageError: for an unknown setting, one that the sweep sets itself, or an empty range.
    """
    section, _, field = name.partition(".")
    kind = typing.get_type_hints(type(getattr(config, section, None))).get(field)
    if kind is None:
        raise UsageError(f"{name} is not a setting. Name one and its values, such as {EXAMPLE}.")
    if name in ("train.run_dir", "train.resume"):
        raise UsageError(f"{name} differs in each trial of a sweep. Leave it out.")
    found, kinds = NUMBERS.fullmatch(text), typing.get_args(kind) or (kind,)
    try:
        if found and int in kinds:
            return IntDistribution(int(found[1]), int(found[2]), bool(found[3]))
        if found and float in kinds:
            return FloatDistribution(float(found[1]), float(found[2]), bool(found[3]))
    except ValueError as error:
        raise UsageError(f"{name}={text}: {str(error).rstrip('.')}. Compare {EXAMPLE}.") from None
    return CategoricalDistribution([*dict.fromkeys(text.split(","))])


def samples_of(among: BaseDistribution) -> list[Any]:
    """Return the values to check: each choice, or both ends and, of whole numbers, the second, which may be odd."""
    if isinstance(among, CategoricalDistribution):
        return [*among.choices]
    assert isinstance(among, IntDistribution | FloatDistribution)
    return [among.low, among.high, *([among.low + 1] if isinstance(among, IntDistribution) else [])]
