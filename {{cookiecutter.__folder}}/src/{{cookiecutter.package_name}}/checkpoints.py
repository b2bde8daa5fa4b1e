"""What is saved of a training, how it is read back, and which checkpoint a run resumes from."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine
from ignite.handlers import Checkpoint
from ignite.handlers.checkpoint import BaseSaveHandler
from torch import nn

from . import collectives, storage
from .distributed import backend
from .errors import UsageError
from .run_directory import RunDirectory, score
from .storage import saved_checkpoints, step_of

logger = logging.getLogger(__package__)


def create_checkpoints(
    run: RunDirectory, trainer: Engine, state: dict[str, Any], measured: nn.Module
) -> tuple[Checkpoint, Checkpoint]:
    """Return what saves ``state`` (the last two are kept) and what saves ``measured`` when it is best (one is kept).

    Both belong to the state themselves, so that a resumed run removes the old files too. Every rank must call them:
    some backends save together.
    """

    def step(engine: Engine, event: Any) -> int:
        return trainer.state.iteration

    # Weights that no rank holds as a whole are saved by all, as a folder.
    suffix = "" if collectives.is_shared_out(measured) else ".pt"
    best = Checkpoint(
        {"model": measured, "trainer": trainer},
        Saver(run.checkpoints),
        filename_pattern="best_{global_step}" + suffix,
        global_step_transform=step,
        score_function=lambda engine: score(run.records[-1]),
        n_saved=1,
    )
    last = Checkpoint(
        {**state, "best": best},
        Saver(run.checkpoints),
        filename_pattern="last_{global_step}" + suffix,
        global_step_transform=step,
        n_saved=2,
        include_self=True,
    )
    return last, best


class Saver(BaseSaveHandler):
    """Writes checkpoints to ``folder``, from rank 0, and removes old ones: only when the new one is on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outdated: list[str] = []

    def __call__(self, checkpoint: Mapping[str, Any], filename: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Write ``checkpoint``; every rank must call it.

        Raises:
            UsageError: if it cannot be written; the older ones are still there.
        """
        backend.save(checkpoint, self.folder / filename)
        for name in self.outdated if idist.get_rank() == 0 else ():
            if name != filename:
                storage.remove(self.folder / name)
        self.outdated.clear()

    def remove(self, filename: str) -> None:
        """Remember to remove ``filename``: ignite asks for that before it gives the new checkpoint."""
        self.outdated.append(filename)


def checkpoint_to_resume(run: RunDirectory) -> Path | None:
    """Return the checkpoint to resume from, the same on every rank, as ``train.resume`` says.

    A damaged one gets another name, and the one before it is taken.

    Raises:
        UsageError: if the file that was asked for is not there.
    """
    resume = run.config.train.resume
    found: Path | None = None
    if resume == "auto":
        found = _newest(run.checkpoints) if run.writes else None
    elif resume != "none":
        found = Path(resume)
        if not storage.is_checkpoint(found):
            raise UsageError(f"train.resume {resume} is no checkpoint: choose auto, none or a checkpoint")
    if idist.get_world_size() > 1:
        # A node with an older view of the file system must not start from another one.
        found = Path(str(idist.broadcast(str(found or ""), src=0, safe_mode=True) or ""))
        found = None if found == Path() else found
    return found


def _newest(folder: Path) -> Path | None:
    """Return the newest checkpoint that is as it was written; put newer ones out of the way, with a warning."""
    files = saved_checkpoints(folder, "last")
    damaged: list[str] = []
    while files and (damage := storage.damage(files[-1])):
        damaged.append(_put_aside(files.pop(), damage))
    if damaged:
        logger.warning("%s: this run resumes from %s", "; ".join(damaged), files[-1] if files else "its beginning")
    for file in saved_checkpoints(folder, "best"):
        if damage := storage.damage(file):
            logger.warning("%s: the best one is lost", _put_aside(file, damage))
    return files[-1] if files else None


def _put_aside(file: Path, damage: str) -> str:
    """Give a damaged file another name; return what is to be said of it."""
    file.rename(file.with_name(f"{file.name}.damaged"))
    return f"{file} is damaged ({damage}), and renamed to {file.name}.damaged"


def load_checkpoint(path: Path, objects: dict[str, Any]) -> None:
    """Give ``objects`` their state from ``path``; every rank reads the same file.

    Raises:
        UsageError: if the file is not a checkpoint of this model, or is not as it was written.
    """
    if not storage.is_checkpoint(path):
        raise UsageError(f"there is no checkpoint {path}: choose one in the checkpoints folder of a run")
    if damage := storage.damage(path):
        raise UsageError(f"{path} is damaged, or is no checkpoint ({damage}): choose another one of a run")
    try:
        saved = backend.load(path, objects)
        if objects.keys() == {"model"} and "average" in saved:
            # What was measured.
            saved = {"model": saved["average"]}
        Checkpoint.load_objects(objects, saved)
    except pickle.UnpicklingError:
        raise UsageError(f"{path} is not a checkpoint: choose one in the checkpoints folder of a run") from None
    except Exception as error:
        reason = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])
        raise UsageError(f"{path} is not a checkpoint of this model ({reason}): choose another checkpoint") from error


def take_stock(folder: Path, *checkpoints: Checkpoint) -> None:
    """Let ``checkpoints`` count the files that are in ``folder``, and remove those before them, which they do not know.

    A run that was killed may not have removed them, and a new folder has none of the files of another run.
    """
    for checkpoint in checkpoints:
        state = checkpoint.state_dict()
        state["_saved"] = [(priority, name) for priority, name in state["_saved"] if (folder / name).exists()]
        checkpoint.load_state_dict(state)
        known = sorted((folder / name for _, name in state["_saved"]), key=step_of)
        kind = known[0].name.partition("_")[0] if known else ""
        for file in saved_checkpoints(folder, kind) if idist.get_rank() == 0 else ():
            if step_of(file) < step_of(known[0]):
                storage.remove(file)
