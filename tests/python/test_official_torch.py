"""The presets that reproduce a source, against the same algorithm written in PyTorch.

The models are PyTorch modules, so the names and shapes of the files are what PyTorch makes. The
algorithms below are those of the sources, run in float64 (the definition) and in float32 (as the
sources run them), where PyTorch's own rounding is allowed for.
"""
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tools

PRECISIONS = pytest.mark.parametrize(
    "precision, tolerance", [(torch.float64, 1e-5), (torch.float32, 3e-5)], ids=["f64", "f32"])


def newton_schulz(matrix, steps, eps=0.0):
    """Frobenius norm, then cubic steps on the short side."""
    transposed = matrix.size(0) < matrix.size(1)
    x = matrix.T if transposed else matrix
    x = x / (x.norm() + eps)
    for _ in range(steps):
        a = x.T @ x
        x = 1.5 * x - 0.5 * x @ a
    return x.T if transposed else x


def fire_linear(weight, steps):
    out, inner = weight.shape
    return newton_schulz(weight, steps) * math.sqrt(out / inner)


def fire_conv(weight, steps):
    out, inner, height, width = weight.shape
    result = torch.empty_like(weight)
    for i in range(height):
        for j in range(width):
            tap = newton_schulz(weight[:, :, i, j], steps)
            result[:, :, i, j] = tap * math.sqrt(out / inner) / (height * width)
    return result


def state_of(model, seed):
    """The state of a model after an imaginary training: no weight is as it was drawn."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor = tensor + 0.02 * noise
        state[name] = tensor.clone().contiguous()
    return state


def reinit(folder, state, *arguments):
    return tools.reinit(folder, state, *arguments, save=save_file, load=load_file)


def assert_same(got, want, changed, tolerance):
    """Tensors named in `changed` lie within the tolerance, all others are bit-identical."""
    assert set(got) == set(want)
    for name, tensor in got.items():
        assert tensor.dtype == want[name].dtype or name in changed
        if name in changed:
            expected = want[name].double()
            error = float((tensor.double() - expected).norm() / expected.norm())
            assert error <= tolerance, f"{name}: {error:.2e} from the source's algorithm"
        else:
            assert torch.equal(tensor, want[name]), f"{name} must not change"


# --- vision: ResNet-18 --------------------------------------------------------------------------


class BasicBlock(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False),
                                            nn.BatchNorm2d(width))


class ResNet18(nn.Module):
    def __init__(self, width=64, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        before = width
        for stage in range(4):
            size = width * 2 ** stage
            setattr(self, f"layer{stage + 1}", nn.Sequential(
                BasicBlock(before, size, 1 if stage == 0 else 2), BasicBlock(size, size, 1)))
            before = size
        self.fc = nn.Linear(before, classes)


@PRECISIONS
def test_official_vision_projects_every_linear_and_conv(tmp_path, precision, tolerance):
    state = state_of(ResNet18(), 1)
    got, objects = reinit(tmp_path, state, "--preset", "official-vision")
    want, changed = dict(state), set()
    for name, module in ResNet18().named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            weight = state[f"{name}.weight"].to(precision)
            project = fire_conv if isinstance(module, nn.Conv2d) else fire_linear
            want[f"{name}.weight"] = project(weight, 10)
            changed.add(f"{name}.weight")
    assert "fc.weight" in changed
    for name in changed:
        assert objects[name]["action"] == "projected"
        assert objects[name]["steps"] == 10
    assert objects["conv1.weight"]["matrices"] == 49
    assert_same(got, want, changed, tolerance)


# --- ViT ----------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_k = nn.Linear(width, inner, bias=False)
        self.to_v = nn.Linear(width, inner, bias=False)
        self.to_out = nn.Linear(inner, width)


class ViT(nn.Module):
    def __init__(self, width=96, inner=64, depth=3):
        super().__init__()
        self.to_patch_embedding = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, width))
        self.pos_embedding = nn.Parameter(torch.zeros(1, 65, width))
        self.layers = nn.ModuleList(nn.ModuleList([
            Attention(width, inner),
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                          nn.Linear(4 * width, width))]) for _ in range(depth))
        self.linear_head = nn.Linear(width, 10)


@PRECISIONS
def test_official_vit_projects_only_query_and_key(tmp_path, precision, tolerance):
    state = state_of(ViT(), 2)
    got, objects = reinit(tmp_path, state, "--preset", "official-vit")
    changed = {name for name in state if name.endswith(("to_q.weight", "to_k.weight"))}
    assert len(changed) == 6
    want = {name: fire_linear(tensor.to(precision), 10) if name in changed else tensor
            for name, tensor in state.items()}
    assert_same(got, want, changed, tolerance)
    for name, found in objects.items():
        assert found["action"] == ("projected" if name in changed else "skipped"), name
        assert name in changed or found["reason"], f"{name} was skipped without a reason"


# --- GPT ----------------------------------------------------------------------------------------


class GPTBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width),
                                   "c_proj": nn.Linear(width, width)})
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width),
                                  "c_proj": nn.Linear(4 * width, width)})


class GPT(nn.Module):
    """nanoGPT's names: Linear layers are (out, in), lm_head and wte are one weight."""

    def __init__(self, width=48, depth=2, vocabulary=160):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(32, width),
            "h": nn.ModuleList(GPTBlock(width) for _ in range(depth)),
            "ln_f": nn.LayerNorm(width)})
        self.lm_head = nn.Linear(width, vocabulary, bias=False)


def gpt_state(seed):
    state = state_of(GPT(), seed)
    state["transformer.wte.weight"] = state["lm_head.weight"].clone()  # tied
    return state


@PRECISIONS
def test_official_gpt_splits_the_fused_attention_and_takes_the_tied_head(tmp_path, precision,
                                                                         tolerance):
    state = gpt_state(3)
    got, objects = reinit(tmp_path, state, "--preset", "official-gpt")
    want, changed = dict(state), set()
    for name, module in GPT().named_modules():
        if isinstance(module, nn.Linear):
            weight = state[f"{name}.weight"].to(precision)
            parts = weight.chunk(3) if name.endswith("c_attn") else [weight]
            want[f"{name}.weight"] = torch.cat([fire_linear(part, 5) for part in parts])
            changed.add(f"{name}.weight")
    want["transformer.wte.weight"] = want["lm_head.weight"]
    changed.add("transformer.wte.weight")
    assert_same(got, want, changed, tolerance)
    assert torch.equal(got["transformer.wte.weight"], got["lm_head.weight"])
    assert objects["transformer.h.0.attn.c_attn.weight"]["matrices"] == 3


def test_official_gpt_understands_weights_stored_in_out(tmp_path):
    """The published GPT-2 files keep every layer transposed; the result is the transpose too."""
    state = gpt_state(4)
    turned = {name: tensor.T.contiguous() if ".h." in name and tensor.ndim == 2 else tensor
              for name, tensor in state.items()}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    got, _ = reinit(tmp_path / "a", state, "--preset", "official-gpt")
    got_turned, _ = reinit(tmp_path / "b", turned, "--preset", "official-gpt")
    for name, tensor in got.items():
        other = got_turned[name]
        other = other.T if ".h." in name and tensor.ndim == 2 else other
        assert torch.allclose(tensor, other, rtol=0, atol=1e-6), name


# --- DQN ----------------------------------------------------------------------------------------


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 128), nn.ReLU(),
            nn.Linear(128, 6))


@PRECISIONS
def test_official_dqn_resets_linear_layers_and_copies_the_target(tmp_path, precision, tolerance):
    online, target, initial = (state_of(QNetwork(), seed) for seed in (5, 6, 7))
    state = {f"q_network.{name}": tensor for name, tensor in online.items()}
    state |= {f"target_network.{name}": tensor for name, tensor in target.items()}
    save_file({f"q_network.{name}": tensor for name, tensor in initial.items()},
              tmp_path / "initial.safetensors")
    got, objects = reinit(tmp_path, state, "--preset", "official-dqn",
                          "--init", tmp_path / "initial.safetensors")
    want, changed = {}, set()
    for name, tensor in online.items():
        module = QNetwork().get_submodule(name.rsplit(".", 1)[0])
        projected = isinstance(module, nn.Conv2d) and name.endswith("weight")
        new = initial[name] if isinstance(module, nn.Linear) else tensor
        new = fire_conv(tensor.to(precision), 10) if projected else new
        for network in ("q_network", "target_network"):
            want[f"{network}.{name}"] = new
            if projected:
                changed.add(f"{network}.{name}")
    assert len(changed) == 6
    assert_same(got, want, changed, tolerance)
    assert objects["q_network.network.0.weight"]["matrices"] == 64


# --- SAC ----------------------------------------------------------------------------------------


@PRECISIONS
@pytest.mark.parametrize("scale", ["fan-ratio", "one"], ids=["muon", "ortho_init"])
def test_official_sac_projects_ensembles_of_in_out_kernels(tmp_path, scale, precision, tolerance):
    generator = torch.Generator().manual_seed(8)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    state = {"actor.Dense_0.kernel": draw(17, 64), "actor.Dense_0.bias": draw(64),
             "actor.Dense_1.kernel": draw(64, 12), "actor.Dense_1.bias": draw(12),
             "critic.Dense_0.kernel": draw(2, 23, 64), "critic.Dense_0.bias": draw(2, 64),
             "critic.Dense_1.kernel": draw(2, 64, 64), "critic.Dense_1.bias": draw(2, 64)}
    got, objects = reinit(tmp_path, state, "--preset", "official-sac", "--set", f"scale={scale}")
    want, changed = dict(state), set()
    for name, tensor in state.items():
        if not name.endswith("kernel"):
            continue
        members = tensor.to(precision).reshape(-1, *tensor.shape[-2:])
        factor = math.sqrt(tensor.size(-1) / tensor.size(-2)) if scale == "fan-ratio" else 1.0
        done = [factor * newton_schulz(member, 10, eps=1e-8) for member in members]
        want[name] = torch.stack(done).reshape(tensor.shape)
        changed.add(name)
    assert_same(got, want, changed, tolerance)
    assert objects["critic.Dense_0.kernel"]["matrices"] == 2


# --- the review and the Rust guide --------------------------------------------------------------


def review(weight):
    x = weight / torch.linalg.matrix_norm(weight, 2)
    for _ in range(15):
        x = 1.5 * x - 0.5 * x @ (x.T @ x)
    return x


@PRECISIONS
def test_review_projects_2d_weights_but_embedding_and_head(tmp_path, precision, tolerance):
    state = gpt_state(9)
    got, _ = reinit(tmp_path, state, "--preset", "review")
    skipped = {"transformer.wte.weight", "lm_head.weight"}
    changed = {name for name, tensor in state.items() if tensor.ndim == 2} - skipped
    want = {name: review(tensor.to(precision)) if name in changed else tensor
            for name, tensor in state.items()}
    assert_same(got, want, changed, tolerance)


def test_review_computes_bf16_weights_in_f32(tmp_path):
    state = {name: tensor.to(torch.bfloat16) for name, tensor in gpt_state(10).items()}
    got, _ = reinit(tmp_path, state, "--preset", "review")
    name = "transformer.h.0.mlp.c_fc.weight"
    want = review(state[name].double())
    error = float((got[name].double() - want).norm() / want.norm())
    assert got[name].dtype == torch.bfloat16
    assert error <= 2.0 ** -8, f"{error:.2e}: bf16 rounds once, at the end"


def rust_guide(weight):
    if float(weight.norm()) < 1e-3:
        return weight
    x = weight / weight.norm()
    identity = torch.eye(weight.size(1), dtype=weight.dtype)
    for step in range(8):
        x = 1.5 * x - 0.5 * x @ (x.T @ x)
        if step % 2 == 0 and float(((x.T @ x - identity) ** 2).sum()) < 1e-5:
            break
    return x * math.sqrt(weight.size(1))


@PRECISIONS
def test_rust_guide_follows_its_loop(tmp_path, precision, tolerance):
    state = state_of(nn.Sequential(nn.Linear(24, 64), nn.Linear(64, 16), nn.Linear(16, 2)), 11)
    state["tiny.weight"] = 1e-6 * torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    got, objects = reinit(tmp_path, state, "--preset", "rust-guide", "--arch", "none")
    changed = {name for name, tensor in state.items() if tensor.ndim == 2} - {"tiny.weight"}
    want = {name: rust_guide(tensor.to(precision)) if name in changed else tensor
            for name, tensor in state.items()}
    assert_same(got, want, changed, tolerance)
    assert objects["tiny.weight"]["action"] == "skipped"
