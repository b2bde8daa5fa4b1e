"""The state of a run on disk. This file: atomic writes, JSON, settings, file locks, checkpoint names."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import IO, Any

import yaml

from ..report import UsageError, logger

# The file of a run directory that is locked while a run writes there.
LOCK = ".lock"
# How long to wait for a process that still holds the lock, such as one that is exiting.
LOCK_LIMIT_S = 10.0


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that replaces ``path`` once it is complete and synced to disk.

    Raises:
        UsageError: if it cannot be written; ``path`` is unchanged.
    """
    draft = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        # The name must be on disk too.
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except (OSError, RuntimeError) as error:
        # torch.save turns the OSError of a file into a RuntimeError.
        cause = error if isinstance(error, OSError) else error.__context__
        draft.unlink(missing_ok=True)
        if not isinstance(cause, OSError):
            raise
        raise unwritable(path, cause) from None


def write(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    with replacing(path) as file:
        file.write(text.encode())


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError) -> UsageError:
    """Return the error for a file that cannot be written."""
    return UsageError(f"{path} cannot be written ({error.strerror}). Make room or choose another folder.", 1)


def to_json(record: dict[str, Any], indent: int | None = None) -> str:
    """Return JSON; tensors and arrays become lists, NaN and inf become null."""
    text = json.dumps(record, default=lambda value: value.tolist())
    return json.dumps(json.loads(text, parse_constant=lambda name: None), indent=indent)


def plain(settings: Any) -> dict[str, Any]:
    """Return a dataclass of settings as dicts, lists and scalars, which YAML reads back."""

    def convert(value: Any) -> Any:
        if isinstance(value, set | frozenset):
            return sorted(value)
        return value.name if isinstance(value, Enum) else str(value)

    result: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings), default=convert))
    return result


def changed_settings(file: Path, new: dict[str, Any]) -> dict[str, str]:
    """Return the settings that differ from those in a file, by name; none if it is missing or damaged."""
    try:
        old = dict(yaml.safe_load(file.read_text(errors="replace")))
        return {
            f"{section}.{name}": f"{section}.{name} {old[section].get(name)} -> {value}"
            for section, values in new.items()
            for name, value in values.items()
            if old[section].get(name) != value
        }
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def lock(path: Path, limit_s: float = LOCK_LIMIT_S) -> IO[str]:
    """Lock a file until it is closed or this process ends. A file system without locks is a warning.

    Raises:
        UsageError: if another process holds the lock for longer than ``limit_s``.
    """
    file = path.open("a+")
    deadline = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.seek(0)
                writer = file.read().strip() or "another run"
                file.close()
                fix = "Wait for it, stop it, or choose another train.run_dir."
                raise UsageError(f"{path.parent} is in use by {writer}. {fix}", 1) from None
            time.sleep(0.1)
        except OSError as error:
            text = "%s cannot be locked (%s); make sure that no other run writes there"
            logger.warning(text, path.parent, error.strerror)
            return file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}")
    file.flush()
    return file


def lock_holder(path: Path) -> int | None:
    """Return the pid of the process on this machine that holds the lock, or None."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        words = path.read_text().split()
        return int(words[1]) if words[-1:] == [platform.node()] else None
    except OSError:
        return None
    return None


def is_checkpoint(path: Path) -> bool:
    """Return whether the path is a file, or a folder in torch's format of distributed checkpoints."""
    return path.is_file() or (path / ".metadata").is_file()


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was saved, from its name."""
    return int(checkpoint.stem.rpartition("_")[2])


def saved_checkpoints(folder: Path, kind: str) -> list[Path]:
    """Return the checkpoints of a kind, ``last``, ``best`` or ``*``, oldest first."""
    files = [file for file in folder.glob(f"{kind}_*") if re.fullmatch(r"[a-z]+_\d+(\.pt)?", file.name)]
    return sorted(files, key=step_of)


def run_directory_of(checkpoint: str) -> Path:
    """Return the run directory that a checkpoint belongs to, or the run directory itself."""
    path = Path(checkpoint).absolute()
    return path.parent.parent if is_checkpoint(path) or not path.is_dir() else path


def best_checkpoint(path: str) -> Path:
    """Return the best checkpoint of a run directory; a checkpoint is returned as it is.

    Raises:
        UsageError: if there is none.
    """
    if is_checkpoint(Path(path)):
        return Path(path)
    checkpoints = saved_checkpoints(Path(path) / "checkpoints", "best")
    if not checkpoints:
        raise UsageError(f"{path} has no checkpoints/best_*. Give --checkpoint a file, or the folder of another run.")
    return max(checkpoints, key=lambda file: file.stat().st_mtime)
