"""The official presets through the package against the official algorithm in torch: models of the
real libraries, relative error 1e-5."""
import math

import pytest
import torch
from conftest import FULL
from torch import nn

import fired.torch


def newton_schulz(matrix, steps):
    """Frobenius norm, then cubic steps on the short side, as the public code has it; in float64,
    so that what is measured is fired's error and not torch's."""
    matrix = matrix.double()
    transposed = matrix.size(0) < matrix.size(1)
    x = matrix.T if transposed else matrix
    x = x / x.norm()
    for _ in range(steps):
        x = 1.5 * x - 0.5 * x @ (x.T @ x)
    return x.T if transposed else x


def fire_linear(weight, steps):
    out, inner = weight.shape
    return newton_schulz(weight, steps) * math.sqrt(out / inner)


def fire_conv(weight, steps):
    out, inner, height, width = weight.shape
    result = torch.empty_like(weight, dtype=torch.float64)
    for i in range(height):
        for j in range(width):
            result[:, :, i, j] = (newton_schulz(weight[:, :, i, j], steps)
                                  * math.sqrt(out / inner) / (height * width))
    return result


def trained(model):
    """As after a training: no weight is as it was drawn."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def official(model, steps, split=()):
    """{name: new weight} for every Linear and Conv2d."""
    expected = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Linear):
            if any(part in name for part in split):
                parts = [fire_linear(block, steps) for block in weight.detach().chunk(3)]
                expected[f"{name}.weight"] = torch.cat(parts)
            else:
                expected[f"{name}.weight"] = fire_linear(weight.detach(), steps)
        elif isinstance(module, nn.Conv2d):
            expected[f"{name}.weight"] = fire_conv(weight.detach(), steps)
    return expected


def compare(client, model, expected, preset):
    optimizer = torch.optim.Adam(model.parameters())
    untouched = {name: p.detach().clone() for name, p in model.named_parameters()
                 if name not in expected}
    report = client.reinit(model, optimizer=optimizer, preset=preset)
    named = dict(model.named_parameters(remove_duplicate=False))
    for name, want in expected.items():
        error = (named[name].detach().double() - want).norm() / want.norm()
        assert error < 1e-5, (name, float(error))
    tied = {id(named[name]) for name in expected}
    for name, old in untouched.items():
        if id(named[name]) not in tied:
            assert torch.equal(named[name], old), name
    assert len(report.projected) == len(tied)


def test_resnet18(client):
    from transformers import ResNetConfig, ResNetForImageClassification
    model = trained(ResNetForImageClassification(ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
        layer_type="basic", num_labels=100)))
    compare(client, model, official(model, 10), "official-vision")


def test_vit(client):
    from transformers import ViTConfig, ViTForImageClassification
    model = trained(ViTForImageClassification(ViTConfig(
        hidden_size=192, num_hidden_layers=12 if FULL else 4, num_attention_heads=3,
        intermediate_size=768, image_size=32, patch_size=4, num_labels=100)))
    compare(client, model, official(model, 10), "official-vision")


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width)
        self.ln_2, self.mlp = nn.LayerNorm(width), Mlp(width)


class Gpt(nn.Module):
    """The parameters of nanoGPT's GPT-2, whose head is the embedding."""

    def __init__(self, layers, width, words):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(words, width), "wpe": nn.Embedding(1024, width),
            "h": nn.ModuleList(Block(width) for _ in range(layers)),
            "ln_f": nn.LayerNorm(width)})
        self.lm_head = nn.Linear(width, words, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight


def test_gpt2(client):
    """GPT-2 small in width; in depth and vocabulary too when all tests are run."""
    model = trained(Gpt(12, 768, 50257) if FULL else Gpt(1, 768, 2048))
    compare(client, model, official(model, 5, split=("c_attn",)), "official-gpt")


def test_every_preset_that_projects_is_known():
    assert {"fire", "official-vision", "official-gpt"} <= set(fired.presets())
