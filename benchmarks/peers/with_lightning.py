"""Lightning, without its logger, progress bar and checkpoints."""

import logging
import warnings
from typing import Any

import lightning
import torch
from common import LR, Work, print_lap, print_step, read_work
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

PROCESSES = 2


class Module(lightning.LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.model = work.model

    def training_step(self, batch: Any, number: int) -> Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        return cross_entropy(self.model(inputs), targets)

    def validation_step(self, batch: Any, number: int) -> None:
        """Log loss and accuracy of a batch."""
        inputs, targets = batch
        scores = self.model(inputs)
        right = (scores.argmax(1) == targets).float().mean()
        self.log_dict({"loss": cross_entropy(scores, targets), "accuracy": right}, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), LR)


class Printer(lightning.Callback):
    """Prints the first step and the laps."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def on_train_batch_end(self, trainer: lightning.Trainer, *rest: Any) -> None:
        """Print the first step."""
        if trainer.is_global_zero and trainer.global_step == 1:
            print_step()

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Print a lap."""
        if trainer.is_global_zero:
            print_lap(trainer.current_epoch + 1, self.work)


def main() -> None:
    """Train without end."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    work = read_work(PROCESSES)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=PROCESSES,
        strategy="ddp",
        max_epochs=-1,
        limit_val_batches=None if work.evaluates else 0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Printer(work)],
    )
    loader = DataLoader(work.train, work.share, shuffle=True, drop_last=True, **work.loader)
    trainer.fit(Module(work), loader, DataLoader(work.val, 256, **work.loader))


if __name__ == "__main__":
    main()
