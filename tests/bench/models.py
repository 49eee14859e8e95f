"""Checkpoints in the shapes of well-known models, with the random values of a fresh model.

Each maker gives {name: array} and the plan of what is projected, as PyTorch must do it:
{name: {"layout", "split", "conv", "scale"}}.
"""
import json
import math

import numpy as np
from safetensors.numpy import save_file

import inputs


def gpt2(layers=12, width=768, vocabulary=50257, positions=1024, seed=11):
    """GPT-2 small as it is published: linear layers are (in, out), query, key, value fused."""
    generator = np.random.default_rng(seed)

    def normal(shape, deviation):
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    tensors = {"wte.weight": normal((vocabulary, width), 0.02),
               "wpe.weight": normal((positions, width), 0.01)}
    plan = {}
    residual = 0.02 / math.sqrt(2 * layers)
    shapes = {"attn.c_attn": (width, 3 * width, 0.02, 3),
              "attn.c_proj": (width, width, residual, 1),
              "mlp.c_fc": (width, 4 * width, 0.02, 1),
              "mlp.c_proj": (4 * width, width, residual, 1)}
    for layer in range(layers):
        for norm in ("ln_1", "ln_2"):
            tensors[f"h.{layer}.{norm}.weight"] = np.ones(width, np.float32)
            tensors[f"h.{layer}.{norm}.bias"] = np.zeros(width, np.float32)
        for part, (inner, out, deviation, split) in shapes.items():
            name = f"h.{layer}.{part}.weight"
            tensors[name] = normal((inner, out), deviation)
            tensors[f"h.{layer}.{part}.bias"] = np.zeros(out, np.float32)
            plan[name] = {"layout": "in_out", "split": split, "conv": False,
                          "scale": math.sqrt(out / split / inner)}
    tensors["ln_f.weight"] = np.ones(width, np.float32)
    tensors["ln_f.bias"] = np.zeros(width, np.float32)
    return tensors, plan


def resnet18(seed=12):
    """ResNet-18: Kaiming-normal convolutions, batch norms with their counters, a head."""
    generator = np.random.default_rng(seed)
    tensors, plan = {}, {}
    for name, out, inner, kernel in inputs.RESNET18:
        deviation = math.sqrt(2 / (out * kernel * kernel))
        weight = generator.standard_normal((out, inner, kernel, kernel), dtype=np.float32)
        tensors[f"{name}.weight"] = weight * np.float32(deviation)
        plan[f"{name}.weight"] = {"layout": "out_in", "split": 1, "conv": True,
                                  "scale": math.sqrt(out / inner) / (kernel * kernel)}
        norm = (name.replace("conv", "bn") if "downsample" not in name
                else name.replace("downsample.0", "downsample.1"))
        for slot, value in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            tensors[f"{norm}.{slot}"] = np.full(out, value, np.float32)
        tensors[f"{norm}.num_batches_tracked"] = np.array(1000, np.int64)
    tensors["fc.weight"] = (generator.random((1000, 512), dtype=np.float32) - 0.5) / 11
    tensors["fc.bias"] = np.zeros(1000, np.float32)
    return tensors, plan


def save(path, tensors):
    save_file(tensors, path, metadata={"format": "pt"})


def llama_block(layer, width=1024, inner=4096):
    """One block of a llama-shaped model: 64 MB, its largest tensor 16 MB."""
    generator = np.random.default_rng(1000 + layer)
    prefix = f"model.layers.{layer}"
    shapes = {f"{prefix}.self_attn.{part}_proj.weight": (width, width) for part in "qkvo"}
    shapes |= {f"{prefix}.mlp.gate_proj.weight": (inner, width),
               f"{prefix}.mlp.up_proj.weight": (inner, width),
               f"{prefix}.mlp.down_proj.weight": (width, inner)}
    block = {name: generator.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
             for name, shape in shapes.items()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        block[f"{prefix}.{norm}.weight"] = np.ones(width, np.float32)
    return block


def save_llama_shards(folder, blocks, blocks_per_shard):
    """A sharded checkpoint with its index; gives its size in bytes."""
    folder.mkdir()
    shards = math.ceil(blocks / blocks_per_shard)
    weight_map, total = {}, 0
    for shard in range(shards):
        tensors = {}
        for layer in range(shard * blocks_per_shard, min(blocks, (shard + 1) * blocks_per_shard)):
            tensors |= llama_block(layer)
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save(folder / name, tensors)
        weight_map |= {tensor: name for tensor in tensors}
        total += sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total
