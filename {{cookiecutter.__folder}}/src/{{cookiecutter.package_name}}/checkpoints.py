"""What is saved of a training, how it is read back, and which checkpoint a run resumes from."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pickle
from collections.abc import Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from ignite.handlers import Checkpoint
from ignite.handlers.checkpoint import BaseSaveHandler
from torch import nn

from . import collectives, storage
from .copies import Copies, on_cpu, save_readable
from .distributed import backend, hardware, transport
from .errors import UsageError
from .run_directory import RunDirectory, score
from .storage import saved_checkpoints, step_of
from .task import objective

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
        Saver(run),
        filename_pattern="best_{global_step}" + suffix,
        global_step_transform=step,
        score_function=lambda engine: score(run.records[-1]),
        n_saved=1,
    )
    last = Checkpoint(
        {**state, "best": best},
        Saver(run),
        filename_pattern="last_{global_step}" + suffix,
        global_step_transform=step,
        n_saved=2,
        include_self=True,
    )
    return last, best


class Score:
    """By which metric the best checkpoint of a run is chosen, which belongs to a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Return what belongs to a checkpoint."""
        return {"name": objective.SCORE, "higher_is_better": objective.HIGHER_IS_BETTER}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned.

        Raises:
            UsageError: if it is another metric now.
        """
        if state != self.state_dict():
            then = f"{state['name']}, of which {'more' if state['higher_is_better'] else 'less'} is better"
            raise UsageError(
                f"the SCORE of this run was {then}, and cannot be compared with that of task/objective.py now: choose another "
                "train.run_dir, or the SCORE from before"
            )


class Saver(BaseSaveHandler):
    """Writes the checkpoints of a run, from rank 0, and removes old ones: only when the new one is on the disk."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.outdated: list[str] = []
        self.copies = Copies()
        self.begun: Future[object] | None = None

    def __call__(self, checkpoint: Mapping[str, Any], filename: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Write ``checkpoint``, or begin to; every rank must call it.

        Raises:
            UsageError: if it cannot be written; the older ones are still there.
        """
        path = self.run.checkpoints / filename
        outdated = [path.with_name(name) for name in self.outdated if name != filename]
        self.outdated.clear()
        if not path.suffix:
            sharding().save(checkpoint, path)
            collectives.rank_zero_only(partial(remove_all, outdated))
            return
        # A rank that writes nothing may have to take part in what the weights are computed from.
        hardware.synchronize()
        if self.run.writes:
            if not self.run.config.train.async_save:
                write(on_cpu(checkpoint, {}), path, outdated)
                return
            if self.begun:
                # Its copies are still being written.
                wait([self.begun])
            content = on_cpu(checkpoint, {}, self.copies.begin())
            self.begun = self.run.background.begin(partial(write, content, path, outdated))

    def remove(self, filename: str) -> None:
        """Remember to remove ``filename``: ignite asks for that before it gives the new checkpoint."""
        self.outdated.append(filename)


def write(content: Mapping[str, Any], path: Path, outdated: list[Path]) -> None:
    """Write a checkpoint, and then remove older ones.

    Raises:
        UsageError: if it cannot be written, or could not be read back.
    """
    with storage.replacing(path) as file:
        save_readable(content, path, file)
    remove_all(outdated)


def remove_all(paths: list[Path]) -> None:
    """Remove files or folders."""
    for path in paths:
        storage.remove(path)


def checkpoint_to_resume(run: RunDirectory) -> Path | None:
    """Return the checkpoint to resume from, the same on every rank, as ``train.resume`` says.

    If that is a path, this run begins there; started again, it resumes as any other. A damaged one gets another name, and
    the one before it is taken.

    Raises:
        UsageError: if the file that was asked for is not there.
    """
    resume = run.config.train.resume
    found: Path | None = None
    if run.writes:
        if resume == "auto" or run.is_started_again:
            found = _newest(run.checkpoints)
        if not found and resume not in ("auto", "none"):
            found = Path(resume)
    # A node with an older view of the file system must not start from another one.
    name = collectives.text_of_rank_zero(str(found or ""))
    found = Path(name) if name else None
    if found == Path(resume) and not storage.is_checkpoint(found):
        raise UsageError(f"train.resume {resume} is no checkpoint: choose auto, none or a checkpoint")
    if found and found.name.startswith("best_"):
        raise UsageError(f"{found} holds weights alone, to be measured: let train.resume be a last_* of that folder")
    return found


def put_later_ones_aside(run: RunDirectory, iteration: int) -> None:
    """Give checkpoints of the run from after so many steps another name: the run continues without what they have learned."""
    later = [
        file
        for kind in ("last", "best")
        for file in saved_checkpoints(run.checkpoints, kind)
        if run.writes and step_of(file) > iteration
    ]
    names = ", ".join(_put_aside(file, "replaced") for file in later)
    if names:
        logger.warning("the run replaces its checkpoints from after step %s: they are kept as %s", iteration, names)


def _newest(folder: Path) -> Path | None:
    """Return the newest checkpoint that is as it was written; put newer ones out of the way, with a warning."""
    files = saved_checkpoints(folder, "last")
    damaged: list[str] = []
    while files and (damage := storage.damage(files[-1])):
        damaged.append(_put_damaged_aside(files.pop(), damage))
    if damaged:
        logger.warning("%s: this run resumes from %s", "; ".join(damaged), files[-1] if files else "its beginning")
    for file in saved_checkpoints(folder, "best"):
        if damage := storage.damage(file):
            logger.warning("%s: the best one is lost", _put_damaged_aside(file, damage))
    return files[-1] if files else None


def _put_damaged_aside(file: Path, damage: str) -> str:
    """Give a damaged checkpoint another name; return what is to be said of it."""
    return f"{file} is damaged ({damage}), and renamed to {_put_aside(file, 'damaged')}"


def _put_aside(checkpoint: Path, why: str) -> str:
    """Rename a checkpoint, in the place of an older one that was put aside; return its new name."""
    aside = checkpoint.with_name(f"{checkpoint.name}.{why}")
    storage.remove(aside)
    checkpoint.rename(aside)
    return aside.name


def load_checkpoint(path: Path, objects: dict[str, Any]) -> None:
    """Give ``objects`` their state from ``path``; every rank reads the same file.

    Raises:
        UsageError: if the file is not a checkpoint of this model, or is not as it was written.
    """
    if not storage.is_checkpoint(path):
        raise UsageError(f"there is no checkpoint {path}: choose one in the checkpoints folder of a run")
    if damage := storage.damage(path):
        raise UsageError(f"{path} is damaged, or is no checkpoint ({damage}): choose another one of a run")
    loaded = ""
    try:
        saved = read(path, objects)
        if objects.keys() == {"model"} and "average" in saved:
            # What was measured.
            saved = {"model": saved["average"]}
        if "average" in objects and "average" not in saved:
            raise UsageError(f"{path} holds no average of the weights: set optim.ema_decay null, as it was")
        # What had no state then, such as the scaling of a loss without fp16, begins anew; older checkpoints have no score.
        without = {name for name in objects if saved.get(name) == {} or (name == "score" and name not in saved)}
        for loaded in (name for name in objects if name not in without):
            if loaded not in saved:
                raise LookupError(f"it has no {loaded}")
            Checkpoint.load_objects({loaded: objects[loaded]}, {loaded: saved[loaded]})
    except UsageError:
        raise
    except pickle.UnpicklingError:
        raise UsageError(f"{path} is not a checkpoint: choose one in the checkpoints folder of a run") from None
    except Exception as error:
        reason = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])
        if loaded == "optimizer":
            fix = "keep optim.name and the groups of its training, or choose another train.run_dir"
            now = type(objects[loaded]).__name__
            raise UsageError(f"{path} is of another optimizer than this {now} ({reason}): {fix}") from error
        raise UsageError(f"{path} is not a checkpoint of this model ({reason}): choose another checkpoint") from error


def read(path: Path, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint at ``path``, which is to be loaded into ``objects``."""
    models = [part for part in objects.values() if isinstance(part, nn.Module)]
    saved: dict[str, Any]
    if path.is_dir() or any(map(collectives.is_shared_out, models)):
        saved = sharding().load(path, objects)
    else:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    return saved


def sharding() -> Any:
    """Return the module that writes and reads checkpoints of all ranks together.

    Raises:
        UsageError: if this project has none.
    """
    name = f"{__package__}.sharding"
    if importlib.util.find_spec(name) is None:
        raise UsageError(f"a folder is a checkpoint of fsdp2, which {transport.NAME} does not have: choose a file")
    return importlib.import_module(name)


def take_up_best(run: RunDirectory, best: Checkpoint) -> None:
    """Let ``best`` know of the checkpoint that followed the run's last record, which the one that is resumed does not."""
    step = run.records[-1]["iteration"]
    # Rank 0 looks: other nodes may have an older view of the folder.
    names = [file.name for file in saved_checkpoints(run.checkpoints, "best") if step_of(file) == step]
    if names := backend.all_gather_object(names)[0]:
        best.load_state_dict({**best.state_dict(), "_saved": [(score(run.records[-1]), names[0])]})
        take_stock(run.checkpoints, best)


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
