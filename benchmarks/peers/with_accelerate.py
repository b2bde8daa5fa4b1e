"""Hugging Face's Accelerate."""

import itertools

import torch
from accelerate import Accelerator
from common import LR, print_lap, print_step, read_work
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def main() -> None:
    """Train without end."""
    accelerator = Accelerator(cpu=True)
    work = read_work(accelerator.num_processes)
    writes = accelerator.is_main_process
    plain = DataLoader(work.train, work.share, shuffle=True, drop_last=True, **work.loader)
    model, optimizer, loader, val_loader = accelerator.prepare(
        work.model,
        torch.optim.AdamW(work.model.parameters(), LR),
        plain,
        DataLoader(work.val, 256, **work.loader),
    )
    for epoch in itertools.count():
        model.train()
        for number, (batch, targets) in enumerate(loader):
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(batch), targets))
            optimizer.step()
            if writes and epoch == number == 0:
                print_step()
        if work.evaluates:
            model.eval()
            loss = right = samples = 0.0
            with torch.no_grad():
                for batch, targets in val_loader:
                    scores, known = accelerator.gather_for_metrics((model(batch), targets))
                    loss += float(cross_entropy(scores, known)) * len(known)
                    right += float((scores.argmax(1) == known).sum())
                    samples += len(known)
        if writes:
            print_lap(epoch + 1, work)


if __name__ == "__main__":
    main()
