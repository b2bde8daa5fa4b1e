"""The model: a Transformer encoder (Vaswani et al., "Attention is all you need", 2017) and a mean over the words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .data import PADDING, Data
from .settings import TaskConfig


class Classifier(nn.Module):
    """Returns the logits of each text, which do not depend on its padding."""

    def __init__(self, settings: TaskConfig, num_classes: int) -> None:
        super().__init__()
        width, heads, dropout = settings.width, settings.heads, settings.dropout
        self.words = nn.Embedding(settings.vocabulary, width)
        self.positions = nn.Embedding(settings.length, width)
        # With the default standard deviation, 1, it learns more slowly.
        for embedding in (self.words, self.positions):
            nn.init.normal_(embedding.weight, std=0.1)
        self.dropout = nn.Dropout(dropout)
        # The layers of nn.TransformerEncoder would have equal initial weights.
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, "gelu", batch_first=True, norm_first=True)
            for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, classes) of tokens (batch, words), with 1 to ``length`` words in each text."""
        padding = tokens == PADDING
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.words(tokens) + self.positions(positions))
        for layer in self.blocks:
            x = layer(x, src_key_padding_mask=padding)
        x = self.norm(x).masked_fill(padding[:, :, None], 0.0)
        logits: Tensor = self.logits(x.sum(dim=1) / (~padding).sum(dim=1, keepdim=True))
        return logits


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    """Return a network from tokens (batch, words) to logits (batch, len(data.classes))."""
    return Classifier(settings, len(data.classes))
