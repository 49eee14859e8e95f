"""Optimizer state: the first real Adam step after each policy, and the algebra of transport."""
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import reference
from tools import firectl, objects_of

RATE = 1e-3
STEPS_BEFORE = 100
STEP_COUNT = 20000  # as if it had been longer: Adam's bias corrections are gone


def trained():
    """A small net and an Adam that has worked on it for a while."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(STEPS_BEFORE):
        optimizer.zero_grad()
        loss = ((model(torch.randn(32, 24)) - torch.randn(32, 16)) ** 2).mean()
        loss.backward()
        optimizer.step()
    for state in optimizer.state.values():
        state["step"].fill_(STEP_COUNT)
    return model, optimizer


def state_tensors(model, optimizer):
    """The state as fired takes it: <parameter>.<slot>."""
    return {f"{name}.{slot}": value.clone().contiguous()
            for name, parameter in model.named_parameters()
            for slot, value in optimizer.state[parameter].items()}


def run(folder, policy):
    """(model, optimizer, state before, state after, objects) with new weights and state loaded."""
    model, optimizer = trained()
    before = state_tensors(model, optimizer)
    save_file(model.state_dict(), folder / "in.safetensors")
    save_file(before, folder / "state.safetensors")
    done = firectl("reinit", folder / "in.safetensors", "-o", folder / "out.safetensors",
                   "--local", "--json", "--arch", "none", "--state", folder / "state.safetensors",
                   "--state-out", folder / "new.safetensors", "--state-policy", policy)
    model.load_state_dict(load_file(folder / "out.safetensors"))
    after = load_file(folder / "new.safetensors")
    for name, parameter in model.named_parameters():
        for slot in optimizer.state[parameter]:
            optimizer.state[parameter][slot] = after[f"{name}.{slot}"].clone()
    return model, optimizer, before, after, objects_of(done.stdout)


def first_step(model, optimizer):
    """Largest move of any projected weight in the next step, in units of the learning rate, for a
    gradient of one size everywhere."""
    weights = [module.weight for module in model if isinstance(module, nn.Linear)]
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2.0 - 1
        parameter.grad = 0.1 * sign
    old = [weight.detach().clone() for weight in weights]
    optimizer.step()
    return max(float((weight.detach() - before).abs().max()) / RATE
               for weight, before in zip(weights, old))


# Moments 0 and a late step count: (1 - b1) / sqrt(1 - b2) = 0.1 / sqrt(0.001) = 3.16.
@pytest.mark.parametrize("policy, move", [("reset", 1.0), ("zero", 3.16)])
def test_the_first_adam_step_is_as_long_as_promised(tmp_path, policy, move):
    model, optimizer, before, after, objects = run(tmp_path, policy)
    for name in ("0.weight", "2.weight"):
        assert not after[f"{name}.exp_avg"].any()
        assert not after[f"{name}.exp_avg_sq"].any()
        assert float(after[f"{name}.step"]) == (0 if policy == "reset" else STEP_COUNT)
        assert objects[name]["state"], "what was done to the state must be said"
    for name, tensor in before.items():
        if ".bias." in name:
            assert torch.equal(after[name], tensor), f"{name}: its parameter was not touched"
    assert first_step(model, optimizer) == pytest.approx(move, rel=0.01)


def test_keep_changes_nothing(tmp_path):
    _, _, before, after, _ = run(tmp_path, "keep")
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name


def test_transport_moves_the_first_moment_to_the_tangent_space(tmp_path):
    """M - Q sym(Q^T M), mirrored for wide matrices; then Q^T M is antisymmetric."""
    model, optimizer, before, after, _ = run(tmp_path, "transport")
    for name in ("0.weight", "2.weight"):
        weights = model.state_dict()[name].double().numpy()
        old = before[f"{name}.exp_avg"].double().numpy()
        new = after[f"{name}.exp_avg"].double().numpy()
        q = reference.polar(weights)
        if weights.shape[0] < weights.shape[1]:
            q, old, new = q.T, old.T, new.T
        h = q.T @ old
        want = old - q @ (h + h.T) / 2
        assert np.linalg.norm(new - want) <= 1e-5 * np.linalg.norm(old), name
        inner = q.T @ new
        assert np.linalg.norm(inner + inner.T) <= 1e-5 * np.linalg.norm(old), name
        assert torch.equal(after[f"{name}.exp_avg_sq"], before[f"{name}.exp_avg_sq"])
        assert torch.equal(after[f"{name}.step"], before[f"{name}.step"])
    assert first_step(model, optimizer) <= 10.0, "no policy may send weights flying"


def test_an_unknown_slot_is_refused_by_name(tmp_path):
    save_file({"w": torch.randn(8, 8)}, tmp_path / "in.safetensors")
    save_file({"w.hessian": torch.zeros(8, 8)}, tmp_path / "state.safetensors")
    done = firectl("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors",
                   "--local", "--arch", "none", "--state", tmp_path / "state.safetensors", expect=1)
    assert "hessian" in done.stderr and "exp_avg" in done.stderr
    assert not (tmp_path / "out.safetensors").exists()
