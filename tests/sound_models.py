"""Twenty-three models with initialisations that are in order, each with a batch, and five with a known defect."""

from __future__ import annotations

import copy
import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention with query, key and value in one Linear layer."""

    def __init__(self, d, heads=4, causal=False):
        super().__init__()
        self.qkv, self.out, self.heads, self.causal = nn.Linear(d, 3 * d), nn.Linear(d, d), heads, causal

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(n, t, d))


class Encoder(nn.Module):
    def __init__(self, d=64, causal=False, pre=True, norm=nn.LayerNorm):
        super().__init__()
        self.attend, self.norm1, self.norm2, self.pre = Attention(d, causal=causal), norm(d), norm(d), pre
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.branch_multiplier = 1.0

    def forward(self, x):
        if self.pre:
            x = x + self.branch_multiplier * self.attend(self.norm1(x))
            return x + self.branch_multiplier * self.down(F.gelu(self.up(self.norm2(x))))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Decoder(nn.Module):
    """A small language model; with `std`, the initialisation of GPT-2, and an output tied to the embedding."""

    def __init__(self, d=64, layers=4, tied=True, std=0.02, vocabulary=97):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, d), nn.Parameter(0.01 * torch.randn(16, d))
        self.blocks = nn.ModuleList([Encoder(d, causal=True) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocabulary, bias=False)
        if std:
            for name, value in self.named_parameters():
                if value.dim() == 2:
                    scale = 1 / math.sqrt(2 * layers) if name.endswith(("out.weight", "down.weight")) else 1.0
                    nn.init.normal_(value, std=std * scale)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Cross(nn.Module):
    """A decoder block with cross-attention by torch's own layer, its packed projection drawn piece by piece."""

    def __init__(self, d=64):
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(3)])
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        with torch.no_grad():
            for layer in (self.own, self.other):
                for piece in layer.in_proj_weight.chunk(3):
                    nn.init.xavier_uniform_(piece)

    def forward(self, x, memory):
        x = self.norms[0](x + self.own(x, x, x, need_weights=False)[0])
        x = self.norms[1](x + self.other(x, memory, memory, need_weights=False)[0])
        return self.norms[2](x + self.mlp(x))


class BasicBlock(nn.Module):
    def __init__(self, a, b, stride=1, zero=False):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.norm2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)) if a != b else None
        if zero:
            nn.init.zeros_(self.norm2.weight)

    def forward(self, x):
        skip = x if self.down is None else self.down(x)
        return self.act(self.norm2(self.conv2(self.act(self.norm1(self.conv1(x))))) + skip)


class ResNet(nn.Module):
    def __init__(self, widths=(16, 32, 64), blocks=2, zero=False, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        parts, before = [], widths[0]
        for width in widths:
            for i in range(blocks):
                parts.append(BasicBlock(before, width, 2 if i == 0 and width != before else 1, zero))
                before = width
        self.body, self.head = nn.Sequential(*parts), nn.Linear(before, classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Mixer(nn.Module):
    def __init__(self, patches=16, d=64, layers=3):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 8, 8)

        def mlp(a, b):
            return nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, a))

        self.tokens = nn.ModuleList([mlp(patches, 32) for _ in range(layers)])
        self.channels = nn.ModuleList([mlp(d, 4 * d) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2 * layers)])
        self.head = nn.Linear(d, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for i, (token, channel) in enumerate(zip(self.tokens, self.channels, strict=True)):
            x = x + token(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + channel(self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


class UNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()

        def double(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.BatchNorm2d(b), nn.ReLU(inplace=True), nn.Conv2d(b, b, 3, 1, 1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))  # fmt: skip

        self.one, self.two, self.low = double(3, c), double(c, 2 * c), double(2 * c, 4 * c)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2), nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.back2, self.back1, self.head = double(4 * c, 2 * c), double(2 * c, c), nn.Conv2d(c, 2, 1)

    def forward(self, x):
        a = self.one(x)
        b = self.two(F.max_pool2d(a, 2))
        x = self.back2(torch.cat([b, self.up2(self.low(F.max_pool2d(b, 2)))], 1))
        return self.head(self.back1(torch.cat([a, self.up1(x)], 1)))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM, d=32):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(50, d), kind(d, 64, 2, batch_first=True), nn.Linear(64, 50)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU())
        self.up = nn.Sequential(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(16, 3, 4, 2, 1))

    def forward(self, x):
        return self.up(self.down(x))


class ViT(nn.Module):
    def __init__(self, d=64, layers=3):
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, d, 8, 8), nn.Parameter(torch.zeros(1, 1, d))
        self.place = nn.Parameter(torch.empty(1, 17, d).normal_(std=0.02))
        self.blocks, self.norm = nn.Sequential(*[Encoder(d) for _ in range(layers)]), nn.LayerNorm(d)
        self.head = nn.Linear(d, 10)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


class Separable(nn.Module):
    def __init__(self):
        super().__init__()
        parts, c = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(inplace=True)], 32
        for out in (48, 64):
            parts += [nn.Conv2d(c, c, 3, 1, 1, groups=c, bias=False), nn.BatchNorm2d(c), nn.ReLU6(inplace=True)]
            parts += [nn.Conv2d(c, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU6(inplace=True)]
            c = out
        self.body, self.head = nn.Sequential(*parts), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Regressor(nn.Module):
    """Two recurrent layers whose small outputs, much alike on all rows, leave half of the units behind them at zero."""

    def __init__(self, h=64):
        super().__init__()
        self.rnn = nn.LSTM(5, h, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Sequential(nn.Linear(h, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1]).squeeze(-1)


class Gated(nn.Module):
    """A feed-forward block with a gate, root-mean-square normalisation and no biases."""

    def __init__(self, d=64, hidden=128):
        super().__init__()
        self.norm, self.both = nn.RMSNorm(d), nn.Linear(d, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x):
        gate, value = self.both(self.norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


def mlp(depth=3, width=128, act=nn.ReLU, init=None, inputs=20, outputs=5):
    sizes = [inputs, *[width] * (depth - 1), outputs]
    parts = []
    for a, b in itertools.pairwise(sizes):
        parts += [nn.Linear(a, b), act()]
    model = nn.Sequential(*parts[:-1])
    if init is not None:
        for part in model:
            if isinstance(part, nn.Linear):
                init(part.weight)
                nn.init.zeros_(part.bias)
    return model


def he(weight):
    return nn.init.kaiming_normal_(weight, nonlinearity="relu")


def orthogonal(weight):
    return nn.init.orthogonal_(weight)


def rows(n=32, d=20):
    return torch.randn(n, d)


def images(n=8, size=32):
    return torch.randn(n, 3, size, size)


def tokens(n=8, t=12, vocabulary=50):
    return torch.randint(0, vocabulary, (n, t))


#: Twenty: a function that makes the model, and one that makes its batch.
SOUND = {
    "mlp by default": (mlp, rows),
    "deep mlp, he": (lambda: mlp(12, 128, nn.ReLU, he), rows),
    "tanh mlp, xavier": (lambda: mlp(8, 96, nn.Tanh, nn.init.xavier_normal_), rows),
    "orthogonal mlp": (lambda: mlp(6, 96, nn.Tanh, orthogonal), rows),
    "sigmoid mlp": (lambda: mlp(3, 64, nn.Sigmoid, nn.init.xavier_uniform_), rows),
    "resnet": (ResNet, images),
    "resnet, zero gains": (lambda: ResNet(zero=True), images),
    "basic block": (lambda: BasicBlock(8, 8), lambda: torch.randn(4, 8, 8, 8)),
    "mixer": (Mixer, images),
    "pre-norm encoder": (lambda: nn.Sequential(*[Encoder() for _ in range(4)]), lambda: torch.randn(4, 10, 64)),
    "post-norm encoder": (lambda: nn.Sequential(*[Encoder(pre=False) for _ in range(3)]), lambda: torch.randn(4, 10, 64)),
    "rms encoder": (lambda: Encoder(norm=nn.RMSNorm), lambda: torch.randn(4, 10, 64)),
    "decoder as gpt-2": (Decoder, tokens),
    "decoder by default": (lambda: Decoder(tied=False, std=None), tokens),
    "cross-attention": (Cross, lambda: (torch.randn(4, 6, 64), torch.randn(4, 9, 64))),
    "u-net": (UNet, images),
    "lstm": (Recurrent, tokens),
    "gru": (lambda: Recurrent(nn.GRU), tokens),
    "lstm regressor": (Regressor, lambda: torch.randn(8, 20, 5)),
    "autoencoder": (Autoencoder, images),
    "vision transformer, zero head": (ViT, images),
    "separable convolutions": (Separable, images),
    "gated block": (Gated, lambda: torch.randn(4, 6, 64)),
}  # fmt: skip


def packed_attention():
    """Torch's own packed projection: Xavier with the fan-out of query, key and value together."""
    return nn.MultiheadAttention(64, 4, batch_first=True)


def copied_encoder():
    """Layers made by copying one, as nn.TransformerEncoder does."""
    layer = Encoder()
    return nn.Sequential(*[copy.deepcopy(layer) for _ in range(4)])


def tied_embedding():
    """An output tied to an embedding of unit variance."""
    model = Decoder(tied=True, std=None)
    nn.init.normal_(model.embed.weight)
    return model


def depth_scaled(layers=6):
    """Output projections scaled by depth, with the fan-out in place of the fan-in."""
    model = nn.Sequential(*[Encoder() for _ in range(layers)])
    for block in model:
        for weight in (block.attend.out.weight, block.down.weight):
            nn.init.normal_(weight, std=1 / math.sqrt(2 * layers * weight.shape[0]))
    return model


def symmetric_units():
    """A head filled with one constant."""
    model = mlp(3)
    nn.init.constant_(model[2].weight, 0.01)
    return model


#: Model, batch, the kind of the finding and a tensor that it must name.
SEEDED = {
    "packed projection": (packed_attention, lambda: (torch.randn(4, 6, 64),) * 3, "packed_fan", "in_proj_weight"),
    "copied encoder layers": (copied_encoder, lambda: torch.randn(4, 10, 64), "copied_layers", "1.attend.qkv.weight"),
    "tied embedding": (tied_embedding, tokens, "tied_scale", "embed.weight"),
    "depth-scaled with the wrong fan": (depth_scaled, lambda: torch.randn(4, 10, 64), "depth_scaled_fan", "0.down.weight"),
    "constant weights": (symmetric_units, rows, "constant_weights", "2.weight"),
}  # fmt: skip
