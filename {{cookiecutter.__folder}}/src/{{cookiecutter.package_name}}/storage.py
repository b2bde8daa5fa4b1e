"""Files that are whole or absent, whatever happens while they are written; and the lock of a folder."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import logging
import math
import os
import platform
import re
import shutil
import sys
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from .errors import UsageError

# The file of a run directory that is locked while a training writes there.
LOCK = ".lock"
# The file of a checkpoint that is a folder, with those of all others.
CHECKSUMS = "checksums.json"
# How long to wait for a process that still holds a lock, such as one that is being ended.
LOCK_LIMIT_S = 10.0


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write; when it is on the disk, at the end of the ``with`` block, it takes the place of ``path``.

    Neither a reader nor a machine that loses its power ever meets half of it.

    Raises:
        UsageError: if it cannot be written; ``path`` is as it was before.
    """
    # Others may be writing it too.
    draft = draft_of(path.with_name(f"{path.name}.{platform.node()}.{os.getpid()}"))
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _flush_folder(path.parent)
    except (OSError, RuntimeError) as error:
        # torch.save turns the error of a file into a RuntimeError.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        draft.unlink(missing_ok=True)
        raise unwritable(path, cause) from None


def draft_of(path: Path) -> Path:
    """Return where a file or folder is written until it is whole."""
    return path.with_name(f".{path.name}.part")


def open_folder(path: Path) -> None:
    """Make a folder, with those above it, unless it is there.

    Raises:
        UsageError: if it is none, or cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be a folder ({error.strerror}): choose another one", 1) from None


def make_folder(path: Path) -> None:
    """Make an empty folder, in the place of one that may be there.

    Raises:
        UsageError: if it cannot be written.
    """
    try:
        remove(path)
        path.mkdir()
    except OSError as error:
        raise unwritable(path, error) from None


def read_settings(file: Path) -> dict[str, Any]:
    """Return the settings in a file that a command has written.

    Raises:
        UsageError: if it is damaged.
    """
    try:
        return dict(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        raise UsageError(f"{file} is damaged: restore it, or choose another --train.run_dir", 1) from None


def replace_folder(draft: Path, path: Path) -> None:
    """Let a folder whose files are on the disk take the place of ``path``.

    Raises:
        UsageError: if it cannot be written.
    """
    try:
        _flush_folder(draft)
        remove(path)
        draft.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def to_json(record: dict[str, Any], indent: int | None = None) -> str:
    """Return JSON, with lists for arrays and tensors; it has no word for what is not a number: null."""

    def valid(value: Any) -> Any:
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, dict):
            return {name: valid(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [valid(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(valid(record), indent=indent, allow_nan=False)


def from_json(line: str) -> dict[str, Any]:
    """Return what ``to_json`` has written in one line; null is not a number.

    Raises:
        ValueError, AttributeError: if it is something else.
    """
    return {name: math.nan if value is None else value for name, value in json.loads(line).items()}


def write(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, as ``replacing`` does.

    Raises:
        UsageError: if it cannot be written.
    """
    with replacing(path) as file:
        file.write(text.encode())


def write_table(path: Path, names: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as CSV, below their names, as ``replacing`` does.

    Raises:
        UsageError: if it cannot be written.
    """
    lines = io.StringIO()
    csv.writer(lines).writerows([names, *rows])
    write(path, lines.getvalue())


def _flush_folder(folder: Path) -> None:
    """Wait until the names in the folder are on the disk too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def unwritable(path: Path, error: OSError) -> UsageError:
    """Return the sentence for a file that cannot be written in the middle of a training."""
    fix = "make room for it there, or choose another folder; what was written before is whole"
    if not path.parent.exists():
        fix = "somebody has removed its folder; start again"
    return UsageError(f"{path} cannot be written ({error.strerror}): {fix}", 1)


class LogFile(logging.FileHandler):
    """Writes log.txt; where it cannot, the training ends as for any other file of the run."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            raise unwritable(Path(self.baseFilename), error) from None
        super().handleError(record)


def remove_drafts(folder: Path) -> None:
    """Remove what was being written when a process was killed."""
    for draft in folder.glob(".*.part"):
        remove(draft)


def checksum(file: Path) -> int:
    """Return the CRC-32 of a file."""
    value = 0
    with file.open("rb") as content:
        while piece := content.read(2**20):
            value = zlib.crc32(piece, value)
    return value


def is_checkpoint(path: Path) -> bool:
    """Tell whether there is a file, or a folder that is a checkpoint and not a run directory."""
    return os.path.isfile(path) or os.path.isfile(path / CHECKSUMS)


def damage(path: Path) -> str:
    """Return in what a checkpoint differs from what was written, or nothing; all of it is read."""
    try:
        if path.is_dir():
            checksums = json.loads((path / CHECKSUMS).read_text())
            changed = [name for name, value in checksums.items() if checksum(path / name) != value]
            return f"its file {changed[0]} is not what was written" if changed else ""
        # Its parts have checksums, at which torch itself does not look.
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError, AttributeError) as error:
        return str(error)
    return f"its part {part} is not what was written" if part else ""


def holder(path: Path) -> int | None:
    """Return the process of this machine that holds the lock of ``path``, or None."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        words = path.read_text().split()
        return int(words[1]) if words[-1:] == [platform.node()] else None
    except OSError:
        return None
    return None


def lock(path: Path, limit_s: float | None = None) -> tuple[IO[str], str]:
    """Lock a file until it is closed, at the latest by the kernel when this process ends.

    Returns the file, and why it could not be locked where the file system has no locks, or nothing.

    Raises:
        UsageError: if another process holds the lock, after ten seconds, or ``limit_s``.
    """
    file = path.open("a+")
    deadline = time.monotonic() + (LOCK_LIMIT_S if limit_s is None else limit_s)
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.seek(0)
                writer = file.read().strip() or "another training"
                file.close()
                fix = "wait for it, end it, or choose another train.run_dir"
                raise UsageError(
                    f"{path.parent} is being written by {writer}: {fix}; remove {path} if there is no such process", 1
                ) from None
            time.sleep(0.1)
        except OSError as error:
            return file, str(error.strerror)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}")
    file.flush()
    return file, ""


def saved_checkpoints(folder: Path, kind: str) -> list[Path]:
    """Return the checkpoints of a kind, ``last`` or ``best``, the oldest first; a copy with a name of its own is none."""
    files = [file for file in folder.glob(f"{kind}_*") if re.fullmatch(r"[a-z]+_\d+(\.pt)?", file.name)]
    return sorted(files, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was written, as its name says."""
    return int(checkpoint.stem.rpartition("_")[2])
