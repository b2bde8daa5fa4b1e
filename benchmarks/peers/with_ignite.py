"""PyTorch-Ignite as its code-generator writes it: auto_model, auto_dataloader, ``.item()`` in every step."""

from typing import Any

import ignite.distributed as idist
import torch
from common import LR, print_lap, print_step, read_work
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.handlers import ProgressBar
from ignite.metrics import Accuracy, Loss, RunningAverage
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler


def training(local_rank: int) -> None:
    """Train without end."""
    processes, writes = idist.get_world_size(), idist.get_rank() == 0
    work = read_work(processes)
    # auto_dataloader divides the batch and the workers by the processes.
    workers = {**work.loader, "num_workers": work.loader["num_workers"] * processes}
    loader = idist.auto_dataloader(
        work.train, batch_size=work.share * processes, shuffle=True, drop_last=True, **workers
    )
    val_loader = idist.auto_dataloader(work.val, batch_size=256 * processes, **workers)
    model = idist.auto_model(work.model)
    optimizer = idist.auto_optim(torch.optim.AdamW(model.parameters(), LR))

    def step(engine: Engine, batch: Any) -> dict[str, float]:
        model.train()
        inputs, targets = (part.to(idist.device(), non_blocking=True) for part in batch)
        loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"train_loss": loss.item()}

    trainer = Engine(step)
    RunningAverage(output_transform=lambda output: output["train_loss"]).attach(trainer, "loss")
    if writes:
        ProgressBar(persist=False).attach(trainer, ["loss"])
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=1), print_step)
    evaluator = create_supervised_evaluator(
        model, {"accuracy": Accuracy(), "loss": Loss(cross_entropy)}, device=idist.device()
    )

    @trainer.on(Events.EPOCH_STARTED)
    def shuffle() -> None:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(trainer.state.epoch)

    @trainer.on(Events.EPOCH_COMPLETED)
    def after_epoch() -> None:
        if work.evaluates:
            evaluator.run(val_loader)
        if writes:
            print_lap(trainer.state.epoch, work)

    trainer.run(loader, max_epochs=10**9)


if __name__ == "__main__":
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(training)
