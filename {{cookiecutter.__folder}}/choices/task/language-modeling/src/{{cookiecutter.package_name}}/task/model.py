"""The model: a small GPT (Radford et al., "Language models are unsupervised multitask learners", 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .data import VOCABULARY, Data
from .settings import TaskConfig


class Attention(nn.Module):
    """Causal self-attention: each token attends to itself and those before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, tokens, width) for (batch, tokens, width)."""
        batch, tokens, width = x.shape
        parts = self.inputs(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        dropout = self.dropout if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        result: Tensor = self.outputs(attended.transpose(1, 2).reshape(batch, tokens, width))
        return result


class Block(nn.Module):
    """Attention and a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, dropout), nn.Dropout(dropout))
        self.network = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, tokens, width) for (batch, tokens, width)."""
        x = x + self.attention(x)
        result: Tensor = x + self.network(x)
        return result


class GPT(nn.Module):
    """Returns the logits of the next token, for each token of a window."""

    def __init__(self, settings: TaskConfig) -> None:
        super().__init__()
        width = settings.width
        self.context = settings.context
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(settings.context, width)
        self.blocks = nn.Sequential(*(Block(width, settings.heads, settings.dropout) for _ in range(settings.layers)))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, tokens, VOCABULARY) of at most ``context`` tokens (batch, tokens)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.tokens(tokens) + self.positions(positions)))
        # The output layer shares the weights of the embedding.
        return nn.functional.linear(x, self.tokens.weight)


def create_model(settings: TaskConfig, data: Data) -> GPT:
    """Return a network from tokens (batch, tokens) to logits (batch, tokens, VOCABULARY)."""
    return GPT(settings)
