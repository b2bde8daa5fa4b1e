"""The state of a run on disk. This file: atomic writes, JSON, and the lock of a folder."""

from __future__ import annotations

import dataclasses
import fcntl
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..report import UsageError

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
    fix = "Make room or choose another folder; earlier files are intact."
    if not path.parent.exists():
        fix = "Its folder was removed: start again."
    return UsageError(f"{path} cannot be written ({error.strerror}). {fix}", 1)


class LogFile(logging.FileHandler):
    """log.txt; an error while writing it ends the run, as for any other file."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Raise UsageError."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            raise unwritable(Path(self.baseFilename), error) from None
        super().handleError(record)


def to_json(record: dict[str, Any], indent: int | None = None) -> str:
    """Return JSON; tensors and arrays become lists, NaN and inf become null."""

    def plain(value: Any) -> Any:
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(record), indent=indent, allow_nan=False)


def lock(path: Path, limit_s: float = LOCK_LIMIT_S) -> tuple[IO[str], str]:
    """Lock a file until it is closed or this process ends.

    Returns the file, and the reason if the file system has no locks.

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
                raise UsageError(
                    f"{path.parent} is in use by {writer}. Wait for it, stop it, or choose another train.run_dir.", 1
                ) from None
            time.sleep(0.1)
        except OSError as error:
            return file, str(error.strerror)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}")
    file.flush()
    return file, ""


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


def plain(settings: Any) -> dict[str, Any]:
    """Return a dataclass of settings as dicts, lists and scalars, which YAML reads back."""

    def other(value: Any) -> Any:
        return sorted(value) if isinstance(value, set | frozenset) else getattr(value, "name", None) or str(value)

    result: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings), default=other))
    return result


def is_checkpoint(path: Path) -> bool:
    """Return whether the path is a file, or a folder in torch's format of distributed checkpoints."""
    return path.is_file() or (path / ".metadata").is_file()


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was saved, from its name."""
    return int(checkpoint.stem.rpartition("_")[2])


def saved_checkpoints(folder: Path, kind: str) -> list[Path]:
    """Return the checkpoints of a kind, ``last`` or ``best``, oldest first."""
    files = [file for file in folder.glob(f"{kind}_*") if re.fullmatch(r"[a-z]+_\d+(\.pt)?", file.name)]
    return sorted(files, key=step_of)


def damage(path: Path) -> str:
    """Return what is wrong with a checkpoint, or an empty text; the whole file is read."""
    if path.is_dir():
        return "" if is_checkpoint(path) else "it has no .metadata"
    try:
        # torch.save writes a checksum of each part, which torch.load does not verify.
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError) as error:
        return str(error)
    return f"its part {part} is corrupt" if part else ""


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
    found = saved_checkpoints(Path(path) / "checkpoints", "best")
    if not found:
        raise UsageError(f"{path} has no checkpoints/best_*. Give --checkpoint a file, or the folder of another run.")
    return max(found, key=lambda file: file.stat().st_mtime)
