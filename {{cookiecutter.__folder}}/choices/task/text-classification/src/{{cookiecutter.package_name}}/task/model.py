"""The model: the encoder of Vaswani et al., "Attention is all you need" (2017), and a mean over the words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .data import PADDING, Data
from .settings import TaskConfig


class Classifier(nn.Module):
    """Scores of the classes, for each text; they do not depend on its padding."""

    def __init__(self, settings: TaskConfig, num_classes: int) -> None:
        super().__init__()
        width, heads, dropout = settings.width, settings.heads, settings.dropout
        self.words = nn.Embedding(settings.vocabulary, width)
        self.places = nn.Embedding(settings.length, width)
        # From the usual standard deviation, 1, they learn more slowly.
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.1)
        self.dropout = nn.Dropout(dropout)
        # Not nn.TransformerEncoder, whose layers begin with equal weights.
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, "gelu", batch_first=True, norm_first=True)
            for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores (batch, classes) for tokens (batch, words), at most ``length`` of them and at least one each."""
        padding = tokens == PADDING
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.words(tokens) + self.places(places))
        for layer in self.blocks:
            x = layer(x, src_key_padding_mask=padding)
        x = self.norm(x).masked_fill(padding[:, :, None], 0.0)
        scores: Tensor = self.scores(x.sum(dim=1) / (~padding).sum(dim=1, keepdim=True))
        return scores


def create_model(settings: TaskConfig, data: Data) -> nn.Module:
    """Return a network from tokens (batch, words) to scores (batch, len(data.classes))."""
    return Classifier(settings, len(data.classes))
