"""From files and options to settings; what cannot be one is refused in one sentence, before torch is imported."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace, set_parsing_settings

from .config import SECTIONS, Config
from .errors import UsageError
from .task import settings as task_settings

DEFAULT_CONFIG = Path("configs/default.yaml")
SETTINGS = [f"{section}.{item.name}" for section, cls in SECTIONS.items() for item in fields(cls)]
TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text, in quotes", type(None): "null"}


class OnceLoader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML itself takes the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping.

        Raises:
            UsageError: if a key stands twice, with the line of the second one.
        """
        seen: list[Any] = []
        for key, _ in node.value:
            if key.value in seen:
                raise UsageError(f"line {key.start_mark.line + 1}: {key.value} stands twice: keep one of the two")
            seen.append(key.value)
        return super().construct_mapping(node, deep)


def add_settings(parser: ArgumentParser) -> None:
    """Give ``parser`` the option --config and one option --section.field for every setting."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser.add_argument("--config", action="config", help=f"YAML file of settings, on top of {DEFAULT_CONFIG}")
    for name, section in SECTIONS.items():
        parser.add_class_arguments(section, name)


def parse(parser: ArgumentParser, arguments: list[str]) -> tuple[Config, dict[str, Any]]:
    """Read the project's configs/default.yaml, then ``arguments``: a file given by --config, and the options.

    Each wins over those before; an option over a file wherever it stands.

    Returns the settings and the values of the parser's other options.

    Raises:
        UsageError: for an unknown key or a bad value, with the valid ones.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", action="append", nargs="?", const="", default=[])
    given, options = finder.parse_known_args(arguments)
    # That of this folder, or of the project to which this source belongs, wherever its command is called.
    defaults = [file for file in (DEFAULT_CONFIG, Path(__file__).parents[2] / DEFAULT_CONFIG) if file.exists()]
    files = [*(str(file) for file in defaults[:1]), *given.config]
    asks_for_help = bool({"-h", "--help"} & {*options})
    try:
        for file in files:
            check_file(file)
    except UsageError:
        if not asks_for_help:
            raise
        files = []
    if asks_for_help:
        # It shows what the files say as the defaults.
        parser.default_config_files = files
        files = []
    arguments = [text for file in files for text in ("--config", file)] + options
    try:
        namespace = parser.parse_args(arguments)
        _check_numbers(namespace)
        values = parser.instantiate(namespace).as_dict()
        config = Config(**{name: values.pop(name) for name in SECTIONS})
        # A task may refuse settings that do not fit together.
        getattr(task_settings, "validate", lambda config: None)(config)
    except (ArgumentError, ValueError) as error:
        if asks_for_help:
            parser.default_config_files = []
            parser.print_help()
            parser.exit()
        raise UsageError(_sentence(str(error))) from None
    return config, values


def check_file(name: str) -> None:
    """Refuse a file that does not hold sections of settings.

    Raises:
        UsageError: with what it holds, and where.
    """
    if not name:
        raise UsageError(f"--config needs a file of settings, such as {DEFAULT_CONFIG}")
    if not os.path.isfile(name):
        raise UsageError(f"there is no file {name}: give --config a file of settings, such as {DEFAULT_CONFIG}")
    try:
        content = OnceLoader(Path(name).read_text(encoding="utf-8")).get_single_data()
    except UsageError as error:
        raise UsageError(f"{name}, {error}") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read ({error.strerror}): check its permissions") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8 text: save it as such") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UsageError(f"{name} is not YAML of plain values ({place}{problem}): compare {DEFAULT_CONFIG}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{name} holds no sections of settings: compare {DEFAULT_CONFIG}")
    for section, settings in content.items():
        if section in SETTINGS:
            continue
        if section not in SECTIONS:
            raise UsageError(f"{name}: {unknown_setting(str(section))}")
        if not settings or not isinstance(settings, dict):
            example = fields(SECTIONS[section])[0]
            raise UsageError(f"{name}: {section} needs lines such as {example.name}: {example.default}, or none at all")
        for setting in settings:
            if f"{section}.{setting}" not in SETTINGS:
                raise UsageError(f"{name}: {unknown_setting(f'{section}.{setting}')}")


def _check_numbers(namespace: Namespace) -> None:
    """Refuse what the parser takes for a number and no setting can use: null, nan, infinity, too large for torch."""
    for section, cls in SECTIONS.items():
        for name, kind in typing.get_type_hints(cls).items():
            value = namespace[f"{section}.{name}"]
            if value is None and type(None) not in typing.get_args(kind):
                raise ValueError(f"{section}.{name} must be {_type_name(kind)}, not null")
            if isinstance(value, (int, float)) and not abs(value) < 2**63:
                size = " below 2^63" if isinstance(value, int) or math.isfinite(value) else ""
                raise ValueError(f"{section}.{name} must be a number{size}, not {value}")


def _sentence(message: str) -> str:
    """Turn a parser's message into one sentence that names the valid settings or values."""
    if unknown := re.search(r"unrecognized arguments: --([\w.-]+)", message):
        return unknown_setting(unknown[1])
    if unknown := re.search(r"unrecognized arguments: (.*)", message):
        fix = "write --section.field value, the ranges of a sweep one after another, and what begins with a minus behind --"
        return f"{unknown[1]} belongs to no option: {fix}"
    bad = re.match(r'\s*Parser key "([\w.]+)":(.*)', message, re.DOTALL)
    if bad and bad[1] in SECTIONS:
        return f"{bad[1]} is a section: set {_valid(bad[1])}"
    if bad and bad[1] in SETTINGS:
        section, _, name = bad[1].partition(".")
        value = re.search(r"(?:Got|Given) value: (.*)", bad[2], re.DOTALL)
        found = f", not {'null' if value[1] == 'None' else value[1]:.80}" if value else ""
        message = f"{bad[1]} must be {_type_name(typing.get_type_hints(SECTIONS[section])[name])}{found}"
    return " ".join(message.split())


def _type_name(kind: Any) -> str:
    """Return what people call a type."""
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if type(None) in typing.get_args(kind):
        return " or ".join(map(_type_name, typing.get_args(kind)))
    return TYPES.get(kind, str(kind))


def unknown_setting(key: str) -> str:
    """Say that there is no such setting, and which there are."""
    section, _, name = key.rpartition(".")
    # The right name in no section, or in another one.
    near = [setting for setting in SETTINGS if setting.endswith(f".{name}")]
    names = {setting if section else setting.partition(".")[2]: setting for setting in SETTINGS}
    near = near or [names[match] for match in difflib.get_close_matches(key, names, n=1, cutoff=0.85)]
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no setting {key:.80}: {hint}the valid ones are {_valid(key.partition('.')[0])}"


def _valid(section: str) -> str:
    """Return the settings of a section, or the sections if there is none of that name."""
    return ", ".join([name for name in SETTINGS if name.startswith(f"{section}.")] or SECTIONS)
