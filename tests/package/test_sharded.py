"""Sharded models in real processes: every rank ends with the bits of the others, and with the
numbers of the model that is not sharded."""
import copy
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import fired
import fired.torch
from conftest import SOURCE, WAIT_S


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Widths that no number of processes divides."""

    def __init__(self, width=35):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 7)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def wrap_fsdp(model, size):
    from torch.distributed.fsdp import fully_shard
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def wrap_tensor_parallel(model, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    mesh = init_device_mesh("cpu", (size,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def wrap_both(model, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tensor"))
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"],
                           {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    return model


def wrap_ddp(model, size):
    return nn.parallel.DistributedDataParallel(model)


WRAPS = {"fsdp": wrap_fsdp, "tensor": wrap_tensor_parallel, "both": wrap_both, "ddp": wrap_ddp}


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train(model, optimizer):
    torch.manual_seed(1)
    optimizer.zero_grad()
    model(torch.randn(4, 35)).square().mean().backward()
    optimizer.step()


def full_state(model):
    return {name: whole(p.detach()).clone() for name, p in
            fired.torch._model.unwrap(model).named_parameters()}


def same_on_all(tensors, size):
    for name, tensor in tensors.items():
        others = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(others, tensor.contiguous())
        assert all(torch.equal(other, tensor) for other in others), name


def run_rank(rank, size, kinds, meeting, address):
    """One process; it does all kinds, since starting torch takes longer than the rest."""
    sys.path.insert(0, str(SOURCE))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=size)
    for kind in kinds:
        run_kind(rank, size, kind, address)
    dist.destroy_process_group()


def run_kind(rank, size, kind, address):
    try:
        plain = Model()
        plain_optimizer = torch.optim.Adam(plain.parameters())
        train(plain, plain_optimizer)
        # The same training step, sharded: its gradients differ in rounding, so weights are copied.
        model = WRAPS[kind](copy.deepcopy(plain), size)
        optimizer = torch.optim.Adam(model.parameters())
        client = fired.Client(address, deadline=WAIT_S)
        client_plain = fired.Client("local")
        if kind != "both":  # torch 2.13 trains that combination on GPUs only
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
            with torch.no_grad():
                for name, p in fired.torch._model.unwrap(plain).named_parameters():
                    p.copy_(full_state(model)[name])
        report = client.reinit(model, optimizer=optimizer)
        expected = client_plain.reinit(plain)
        assert report.projected == expected.projected and len(report.projected) == 6
        new = full_state(model)
        same_on_all(new, size)
        for name, parameter in plain.named_parameters():
            assert torch.allclose(new[name], parameter, atol=1e-6, rtol=1e-6), name
        if kind != "both":
            inner = dict(fired.torch._model.unwrap(model).named_parameters())
            for name, p in inner.items():
                moment = whole(optimizer.state[p]["exp_avg"])
                assert bool(moment.any()) == (name not in report.projected), name
        refused_together(client, model, rank, size)
    except Exception as error:
        raise AssertionError(f"{kind} on {size} processes, rank {rank}: {error}") from error


def refused_together(client, model, rank, size):
    """One rank's NaN is everybody's error, and nobody's weights change."""
    before = full_state(model)
    first = next(p for p in model.parameters() if p.ndim == 2)
    local = first.to_local() if hasattr(first, "to_local") else first
    saved = local.detach().clone()
    with torch.no_grad():
        local.fill_(float("nan"))
    try:
        client.reinit(model)
    except fired.ParameterError as error:
        assert "NaN" in str(error), error
    else:
        raise AssertionError("a NaN was projected")
    with torch.no_grad():
        local.copy_(saved)
    after = full_state(model)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("size, kinds", [
    (2, ("fsdp", "tensor", "ddp")), (4, ("fsdp", "tensor", "both"))])
def test_ranks_agree(size, kinds, start, tmp_path):
    address = start("--threads", "1").address
    mp.spawn(run_rank, (size, kinds, tmp_path / "meeting", address), nprocs=size)


def test_owners_share_the_work():
    from fired.torch._team import flops_of, owners_of
    tensors = [torch.empty(n, n) for n in (64, 512, 512, 256, 128, 512, 512)]
    owners = owners_of(tensors, 2)
    load = [sum(flops_of(t) for t, o in zip(tensors, owners, strict=True) if o == rank)
            for rank in (0, 1)]
    assert max(load) < 1.1 * min(load)


