"""Models of PyTorch: in place, all or nothing, whatever wraps them."""
import copy

import pytest
import torch
from torch import nn

import fired
import fired.torch
from daemons import Daemon  # noqa: F401


def net(width=32, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, 4)).to(dtype)


def distance(weight, scale=1.0):
    """Largest deviation from an isometry."""
    weight = weight.detach().double() / scale
    weight = weight if weight.shape[0] >= weight.shape[1] else weight.T
    return (weight.T @ weight - torch.eye(weight.shape[1])).abs().max().item()


def test_in_place(client):
    model = net()
    pointers = [p.data_ptr() for p in model.parameters()]
    untouched = {k: v.clone() for k, v in model.state_dict().items()}
    report = client.reinit(model)
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert report.projected == ["0.weight", "2.weight"]
    assert distance(model[0].weight, 2**0.5) < 1e-5 and distance(model[2].weight) < 1e-5
    for name in ("0.bias", "2.bias", "4.weight", "4.bias"):
        assert torch.equal(model.state_dict()[name], untouched[name])
    assert all(p.requires_grad and p.grad_fn is None for p in model.parameters())


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("layout", ["plain", "transposed", "channels_last"])
def test_memory_layouts(client, atomic, layout):
    """A weight that is no plain row-major block gets the same values."""
    conv = nn.Conv2d(8, 6, 3)
    plain = nn.Conv2d(8, 6, 3)
    plain.load_state_dict(conv.state_dict())
    if layout == "channels_last":
        conv = conv.to(memory_format=torch.channels_last)
    if layout == "transposed":
        conv.weight = nn.Parameter(conv.weight.detach().permute(1, 0, 2, 3).contiguous()
                                   .permute(1, 0, 2, 3))
    for model in (conv, plain):
        client.reinit({"w": model.weight}, arch="none", atomic=atomic)
    assert torch.equal(conv.weight, plain.weight)


@pytest.mark.parametrize("dtype, tolerance", [
    (torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_dtypes(client, dtype, tolerance):
    model = net(dtype=dtype)
    client.reinit(model)
    assert model[2].weight.dtype == dtype
    assert distance(model[2].weight) < tolerance


def test_atomic_and_windows_give_the_same(client):
    first, second = net(), net()
    client.reinit(first)
    client.reinit(second, atomic=False)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_compiled(client):
    model = net()
    compiled = torch.compile(model, backend="eager")
    compiled(torch.randn(2, 16))
    optimizer = torch.optim.Adam(compiled.parameters())
    report = client.reinit(compiled, optimizer=optimizer)
    assert report.projected == ["0.weight", "2.weight"]
    x = torch.randn(2, 16)
    assert torch.equal(compiled(x), model(x))


def test_tied_weights_are_projected_once(client):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    report = client.reinit(model)
    assert report.projected == ["0.weight"]
    assert model[1].weight is model[0].weight


def test_mirrors_get_the_new_weights(client):
    model = net()
    target = copy.deepcopy(model).requires_grad_(False)
    average = torch.optim.swa_utils.AveragedModel(model)
    with torch.no_grad():
        target[0].weight.add_(1.0)
    head = target[4].weight.clone()
    client.reinit(model, mirrors=[target, average])
    assert torch.equal(target[0].weight, model[0].weight)
    assert torch.equal(average.module[2].weight, model[2].weight)
    assert torch.equal(target[4].weight, head)
    with pytest.raises(fired.ParameterError, match="mirror"):
        client.reinit(model, mirrors=[nn.Linear(3, 3)])


def test_presets_that_reset_take_initial_weights(client):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 4))
    initial = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    with pytest.raises(fired.ParameterError, match="init="):
        client.reinit(model, preset="official-dqn")
    report = client.reinit(model, preset="official-dqn", init=initial)
    assert report["2.weight"].action == "reset" and report["0.weight"].action == "projected"
    assert torch.equal(model[2].weight, initial["2.weight"])
    assert torch.equal(model[2].bias, initial["2.bias"])


@pytest.mark.parametrize("spoil, kind, words", [
    (lambda m: m[0].weight.data.fill_(float("nan")), fired.ParameterError, "0.weight"),
    (lambda m: m[2].weight.data.fill_(float("inf")), fired.ParameterError, "2.weight"),
    (lambda m: setattr(m[2].weight, "_sharded_size", (1,)), fired.ShardError, "2.weight"),
    (lambda m: setattr(m[2].weight, "ds_id", 3), fired.ShardError, "gather"),
    (lambda m: setattr(m[2].weight, "tensor_model_parallel", True), fired.ShardError, "DTensor"),
])
@pytest.mark.parametrize("where", ["daemon", "local"])
def test_bad_parameters_change_nothing(client, local, spoil, kind, words, where):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    spoil(model)
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    with pytest.raises(kind, match=words) as caught:
        (client if where == "daemon" else local).reinit(model, optimizer=optimizer)
    assert caught.value.parameter in ("0.weight", "2.weight")
    after = [model.state_dict(), optimizer.state_dict()]
    assert same(before, after)


def same(a, b):
    """Equal to the bit, NaN included."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a.view(torch.uint8) if a.ndim else a, b.view(torch.uint8)
                           if b.ndim else b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_meta_parameters_are_refused(client):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(fired.ParameterError, match="meta"):
        client.reinit(model)


def test_a_daemon_that_is_away_is_skipped(tmp_path):
    model = net()
    before = copy.deepcopy(model.state_dict())
    away = fired.Client(f"unix:{tmp_path}/nobody", on_error="skip", retries=0, deadline=5)
    with pytest.warns(fired.FiredWarning):
        report = away.reinit(model, optimizer=torch.optim.Adam(model.parameters()))
    assert report.skipped and same(before, model.state_dict())


def test_wrong_arguments(client):
    model = net()
    selection = fired.torch.select(model, verbose=False)
    with pytest.raises(fired.ParameterError, match="select"):
        client.reinit(selection, include="0.*")
    with pytest.raises(fired.ParameterError, match="state must be"):
        client.reinit(model, state="forget", optimizer=torch.optim.Adam(model.parameters()))
    with pytest.raises(fired.OptimizerError, match="optimizer="):
        client.reinit(model, state="zero")
    with pytest.raises(fired.ParameterError, match="reinit_arrays"):
        client.reinit(3)


def test_a_selection_can_be_used_again(client):
    model = net()
    selection = fired.torch.select(model, include="2.*", verbose=False)
    assert client.reinit(selection).projected == ["2.weight"]
    assert client.analyze(selection)["2.weight"].dfi_before < 1e-5


def test_watch_finds_dead_units(client):
    model = net()
    with torch.no_grad():
        model[0].weight[:8] = 0
        model[0].bias[:8] = -1  # eight of 32 units never get through the ReLU
        model[2].bias[:] = 1
    with fired.torch.Watch(model) as watch:
        model(torch.randn(64, 16))
        model(torch.randn(64, 16))
    report = client.analyze(model, activations=watch, arch="none")
    assert report["0.weight"].dormant_ratio == 0.25
    assert report["2.weight"].dormant_ratio == 0.0
    means = watch.means()["0.weight"]
    assert means[:8] == [0.0] * 8 and len(means) == 32


def test_watch_knows_functions_norms_and_convolutions(client):
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.act = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU()
            self.line = nn.Linear(6, 5)

        def forward(self, x):
            return torch.relu(self.line(self.act(self.norm(self.conv(x))).mean((2, 3))))

    torch.manual_seed(0)
    model = Functional()
    with torch.no_grad():
        model.norm.weight[2], model.norm.bias[2] = 0, -1
        model.line.weight[1], model.line.bias[1] = 0, -1
    with fired.torch.Watch(model, activation=torch.relu) as watch:
        model(torch.randn(8, 1, 6, 6))
    means = watch.means()
    assert means["conv.weight"][2] == 0 and means["line.weight"][1] == 0
    assert sum(mean == 0 for mean in means["conv.weight"]) == 1


def test_watch_looks_at_some_passes_only():
    model = net()
    expected = [model[0](torch.full((1, 16), float(n))).relu() for n in (0, 3)]
    with fired.torch.Watch(model, every=3) as watch:
        for number in range(6):
            model(torch.full((1, 16), float(number)))
    means = torch.tensor(watch.means()["0.weight"])
    assert torch.allclose(means, (sum(expected) / 2)[0].detach(), atol=1e-5)


def test_gradient_scores(client):
    model = net()
    model(torch.randn(8, 16)).square().sum().backward()
    model[0].weight.grad[:16] = 0
    model[0].weight.grad[16:] = 1
    report = client.analyze(model, gradients=True)
    assert report["0.weight"].gradient_dormant_ratio == 0.5
