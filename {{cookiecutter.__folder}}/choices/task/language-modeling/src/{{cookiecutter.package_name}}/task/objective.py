"""The loss to minimize, the metrics of the validation set, and the optimizer."""

from __future__ import annotations

import math

import torch
from ignite.metrics import Loss, Metric, MetricsLambda
from torch import Tensor, nn

from ..config import Config
from ..optim import supports_fused
from .data import Batch

# The metric that chooses the best checkpoint, or "loss".
SCORE = "perplexity"
HIGHER_IS_BETTER = False
LOSS_LABEL = "cross-entropy (nats per byte)"


def forward(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return logits (batch, tokens, VOCABULARY) and the next tokens (batch, tokens)."""
    tokens, following = batch
    return model(tokens), following


def loss(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy over all tokens of the batch, in nats."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def metrics(device: torch.device) -> dict[str, Metric]:
    """Return the perplexity per byte."""
    return {"perplexity": MetricsLambda(perplexity, Loss(loss, device=device))}


def perplexity(nats: float) -> float:
    """Return the exponential of a loss; inf if the model has diverged."""
    return math.exp(nats) if nats < 700 else math.inf


def create_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Return the optimizer that ``optim.name`` names, with weight decay for matrices only."""
    settings, weights = config.optim, list(model.parameters())
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = supports_fused(model)
    if settings.name == "sgd":
        return torch.optim.SGD(groups, settings.lr, momentum=0.9, nesterov=True, fused=fused)
    return torch.optim.AdamW(groups, settings.lr, betas=(0.9, 0.95), fused=fused)
