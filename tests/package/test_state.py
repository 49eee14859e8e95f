"""Optimizer state after reinit, entry by entry: what belongs to a touched parameter is as in a new
optimizer, everything else has its old bits."""
import copy

import pytest
import torch
from torch import nn

import fired

TOUCHED = ("0.weight", "2.weight")


class Stacked(torch.optim.Optimizer):
    """One state for a group of equal shapes, kept under its first parameter: one slice each, and
    second moments by row."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params = group["params"]
            first, state = params[0], self.state[params[0]]
            if first.ndim != 2:
                continue
            if not state:
                state["momentum_buffer"] = torch.zeros(len(params), *first.shape)
                state["second_momentum_buffer"] = torch.zeros(len(params), first.shape[0], 1)
            slopes = torch.stack([p.grad for p in params])
            state["momentum_buffer"].lerp_(slopes, 0.1)
            state["second_momentum_buffer"].lerp_(slopes.square().mean(2, keepdim=True), 0.1)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(),
                         nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p),
    "adam-foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "adam-capturable-amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p),
    "rmsprop-momentum": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.5),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
}


def train(model, optimizers, steps=3):
    for step in range(steps):
        torch.manual_seed(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.randn(8, 12)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def fresh(value, slot, group):
    """What a new optimizer has there."""
    if value is None or slot == "momentum_buffer" and "nesterov" in group and "dampening" in group:
        return None
    if slot == "mu_product":
        return torch.ones_like(value)
    if slot == "sum":
        return torch.full_like(value, group["initial_accumulator_value"])
    return torch.zeros_like(value)


def check(model, optimizer, before):
    named = dict(model.named_parameters())
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in named.items():
        if id(parameter) not in groups:
            continue
        state = optimizer.state.get(parameter, {})
        assert set(state) == set(before[name]), name
        for slot, value in state.items():
            old = before[name][slot]
            want = fresh(old, slot, groups[id(parameter)]) if name in TOUCHED else old
            if want is None:
                assert value is None, (name, slot)
            else:
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(want)), (name, slot)


def snapshot(model, optimizer):
    return {name: copy.deepcopy(optimizer.state.get(p, {}))
            for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_exactly_the_touched_state_is_reset(local, kind):
    model = net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, [optimizer])
    before = snapshot(model, optimizer)
    report = local.reinit(model, optimizer=optimizer, include=list(TOUCHED))
    assert report.projected == list(TOUCHED)
    assert report["0.weight"].state == "reset"
    check(model, optimizer, before)
    train(model, [optimizer])


def test_muon_and_adam_together(local):
    model = net()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    muon = torch.optim.Muon(matrices, lr=1e-2)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2])
    train(model, [muon, adam])
    before = [snapshot(model, muon), snapshot(model, adam)]
    local.reinit(model, optimizer=[muon, adam], include=list(TOUCHED))
    for optimizer, old in zip((muon, adam), before, strict=True):
        check(model, optimizer, old)
    train(model, [muon, adam])


def test_stacked_state(local):
    model = net()
    square = [model[k].weight for k in (0, 2, 4)]
    rest = [p for p in model.parameters() if all(p is not s for s in square)]
    optimizer = Stacked([{"params": square}, {"params": rest}])
    train(model, [optimizer])
    state = optimizer.state[square[0]]
    before = {slot: value.clone() for slot, value in state.items()}
    local.reinit(model, optimizer=optimizer, include=list(TOUCHED))
    for slot, value in state.items():
        assert not value[:2].any(), slot
        assert torch.equal(value[2], before[slot][2]) and before[slot][2].any(), slot


@pytest.mark.parametrize("policy, first", [("reset", 1.0), ("zero", 3.162), ("keep", None)])
def test_the_first_adam_step_after_each_policy(local, policy, first):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, [optimizer], 200)
    step_before = optimizer.state[model[0].weight]["step"].item()
    local.reinit(model, optimizer=optimizer, state=policy)
    before = model[0].weight.detach().clone()
    train(model, [optimizer], 1)
    moved = (model[0].weight.detach() - before).abs().max().item() / 1e-3
    if first is not None:
        # sqrt(1 - b2^t)/(1 - b1^t) in front of (1 - b1)/sqrt(1 - b2).
        steps = 1 if policy == "reset" else step_before + 1
        factor = (1 - 0.999**steps) ** 0.5 / (1 - 0.9**steps) * 0.1 / 0.001**0.5
        assert moved == pytest.approx(factor, rel=1e-2)


def test_transport_keeps_what_is_tangent(local):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, [optimizer])
    second = optimizer.state[model[0].weight]["exp_avg_sq"].clone()
    local.reinit(model, optimizer=optimizer, state="transport", options={"scale": "one"})
    moment, weight = optimizer.state[model[0].weight]["exp_avg"], model[0].weight.detach()
    inner = weight.T @ moment
    assert moment.any() and (inner + inner.T).abs().max() < 1e-5 * moment.norm()
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg_sq"], second)


def test_presets_that_reset_everything(local):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, [optimizer])
    local.reinit(model, optimizer=optimizer, preset="official-vision")
    for state in optimizer.state.values():
        assert all(not value.any() for value in state.values())


def test_drop_removes_the_entry(local):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, [optimizer])
    local.reinit(model, optimizer=optimizer, state="drop", include="0.weight")
    assert model[0].weight not in optimizer.state
    assert model[2].weight in optimizer.state
    train(model, [optimizer])


class Odd(torch.optim.Adam):
    """Keeps something nobody knows."""

    def step(self, closure=None):
        super().step(closure)
        for state in self.state.values():
            state["slow_weights"] = torch.ones(3)


@pytest.mark.parametrize("make, words", [
    (lambda m: torch.optim.Adam(nn.Linear(12, 12).parameters()), "does not own 0.weight"),
    (lambda m: Odd(m.parameters()), "slow_weights"),
    (lambda m: "adam", "param_groups"),
])
def test_an_optimizer_that_does_not_fit_changes_nothing(local, make, words):
    model = net()
    optimizer = make(model)
    if hasattr(optimizer, "step"):
        torch.manual_seed(1)
        model(torch.randn(4, 12)).sum().backward()
        optimizer.step()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(fired.OptimizerError, match=words):
        local.reinit(model, optimizer=optimizer)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
