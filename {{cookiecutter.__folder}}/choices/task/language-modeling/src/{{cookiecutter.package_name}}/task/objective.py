"""What the training aims at: the loss that it minimizes, what is measured, and how the weights are updated."""

from __future__ import annotations

import math

import torch
from ignite.metrics import Loss, Metric, MetricsLambda
from torch import Tensor, nn

from .. import collectives
from ..config import Config
from ..distributed import backend
from .data import Batch

# Which metric chooses the best checkpoint, or "loss"; and whether more of it is better.
SCORE = "perplexity"
HIGHER_IS_BETTER = False
LOSS_LABEL = "cross-entropy (nats per byte)"


def forward(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return scores (batch, tokens, VOCABULARY) and the tokens that follow (batch, tokens)."""
    tokens, following = batch
    return model(tokens), following


def loss(scores: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy of all tokens of the batch, in nats."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def metrics(device: torch.device) -> dict[str, Metric]:
    """Return the perplexity: among how many equally likely bytes the model still hesitates."""
    return {"perplexity": MetricsLambda(perplexity, Loss(loss, device=device))}


def perplexity(nats: float) -> float:
    """Return e to the power of a loss: infinite for that of a model which has diverged."""
    return math.exp(nats) if nats < 700 else math.inf


def create_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Return the optimizer that ``optim.name`` asks for, with two groups: matrices, whose weights decay, and the others."""
    weights = list(model.parameters())
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": config.optim.weight_decay},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.optim.name == "sgd":
        # Torch has no such kernel for weights that are shared out.
        fused = backend.FUSED_OPTIMIZER and not collectives.is_shared_out(model)
        return torch.optim.SGD(groups, config.optim.lr, momentum=0.9, nesterov=True, fused=fused)
    return torch.optim.AdamW(groups, config.optim.lr, betas=(0.9, 0.95), fused=backend.FUSED_OPTIMIZER)
