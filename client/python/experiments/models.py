"""The networks of the experiments: as plain as they come, PyTorch's default initialisation."""
from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


def seeded(seed: int) -> None:
    """Everything PyTorch draws from here on follows from `seed`."""
    torch.manual_seed(seed)


class MLP(nn.Module):
    """784-128-128-128-10 with ReLU, unless told otherwise."""

    def __init__(self, inputs: int = 784, width: int = 128, classes: int = 10,
                 bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, width, bias)
        self.fc2 = nn.Linear(width, width, bias)
        self.fc3 = nn.Linear(width, width, bias)
        self.head = nn.Linear(width, classes, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        x = functional.relu(self.fc3(x))
        return torch.as_tensor(self.head(x))


class CNN(nn.Module):
    """Two strided convolutions with batch normalisation, then two linear layers."""

    def __init__(self, channels: int = 1, size: int = 28, width: int = 16,
                 classes: int = 10) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        self.conv1 = nn.Conv2d(channels, width, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width)
        side = ((size + 1) // 2 + 1) // 2
        self.fc1 = nn.Linear(2 * width * side * side, 64)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, self.channels, self.size, self.size)
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.relu(self.bn2(self.conv2(x)))
        x = functional.relu(self.fc1(x.flatten(1)))
        return torch.as_tensor(self.head(x))


class QNetwork(nn.Module):
    """The network of MinAtar's DQN: one convolution, one hidden layer, one value an action."""

    def __init__(self, channels: int, actions: int, width: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3)
        self.fc = nn.Linear(width * 8 * 8, hidden)
        self.head = nn.Linear(hidden, actions)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv(x))
        x = functional.relu(self.fc(x.flatten(1)))
        return torch.as_tensor(self.head(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_q = nn.Linear(width, width)
        self.c_k = nn.Linear(width, width)
        self.c_v = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.c_q, self.c_k, self.c_v))
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return torch.as_tensor(self.c_proj(y.transpose(1, 2).reshape(batch, length, width)))


class MLPBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.c_proj(functional.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLPBlock(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return torch.as_tensor(x + self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    """GPT-2 at the size of a toy (2 layers, width 64, 4 heads, 64 characters); queries, keys and
    values are layers of their own."""

    def __init__(self, alphabet: int, width: int = 64, heads: int = 4, layers: int = 2,
                 length: int = 64) -> None:
        super().__init__()
        self.length = length
        self.wte = nn.Embedding(alphabet, width)
        self.wpe = nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, alphabet, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(places)
        for block in self.h:
            x = block(x)
        return torch.as_tensor(self.lm_head(self.ln_f(x)))
