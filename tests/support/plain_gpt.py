"""A GPT in plain PyTorch, as people train it: no transformers, fused attention, dropout, a loss beside the logits."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(0.1)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        p = 0.1 if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
        return self.drop(self.c_proj(mixed.transpose(1, 2).flatten(-2)))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Embeddings, blocks, and a head that shares the embedding's weights."""

    def __init__(self, vocabulary: int = 65, width: int = 24, heads: int = 4, blocks: int = 3, longest: int = 32):
        super().__init__()
        parts = {"wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(longest, width), "drop": nn.Dropout(0.1)}
        parts["h"] = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.transformer = nn.ModuleDict(parts | {"ln_f": nn.LayerNorm(width)})
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](positions))
        for block in self.transformer["h"]:
            x = block(x)
        x = self.transformer["ln_f"](x)
        if targets is None:  # the next token alone
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
