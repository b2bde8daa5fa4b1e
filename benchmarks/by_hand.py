"""The loop that one would write by hand: torch's own DDP, sampler and loader, around the rendered project's model.

Started by torchrun; rank 0 prints the samples per second of the epochs after the first.
"""

import argparse
import time

import torch
import torch.distributed as dist
from my_ddl_project.task.data import load
from my_ddl_project.task.model import create_model
from my_ddl_project.task.settings import TaskConfig
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Train and print one number."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    settings = TaskConfig(dataset=options.dataset, synthetic_size=options.size, width=options.width)
    data = load(settings)
    source = data.train
    # The same float images as the project's, made once: a TensorDataset is what one would write.
    images = source.images.to(torch.float32) * source.scale + source.shift
    dataset = TensorDataset(images, source.labels)
    sampler: DistributedSampler = DistributedSampler(dataset, shuffle=True)
    share = options.batch_size // dist.get_world_size()
    loader = DataLoader(dataset, batch_size=share, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(create_model(settings, data))
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)
    loss_function = torch.nn.CrossEntropyLoss()

    model.train()
    started, samples = 0.0, 0
    for epoch in range(options.epochs):
        if epoch == 1:
            dist.barrier()
            started = time.perf_counter()
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            optimizer.zero_grad()
            loss_function(model(batch), labels).backward()
            optimizer.step()
            samples += options.batch_size if epoch else 0
    dist.barrier()
    if dist.get_rank() == 0:
        print(samples / (time.perf_counter() - started))
    # A run has hung at its end while the wrapped model still held the process group.
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
