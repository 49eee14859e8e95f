"""A daemon killed in the middle of a call: the model and its optimizer are all old or all new."""
import copy
import random
import threading
import time

import fired
import torch
from conftest import FULL
from torch import nn

KILLS = 50 if FULL else 8


def snapshot(model, optimizer):
    return ([p.detach().clone() for p in model.parameters()],
            copy.deepcopy([dict(optimizer.state[p]) for p in model.parameters()]))


def equal(a, b):
    return (all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))
            and all(x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)
                    for x, y in zip(a[1], b[1], strict=True)))


def test_all_old_or_all_new(start):
    torch.manual_seed(0)
    daemon = start("--threads", "1")
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)])  # 12 MiB: streamed
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 512)).sum().backward()
    optimizer.step()
    old = snapshot(model, optimizer)
    with fired.Client(daemon.address) as client:
        begun = time.monotonic()
        client.reinit(model, optimizer=optimizer)
        took = time.monotonic() - begun
    new = snapshot(model, optimizer)
    assert not equal(old, new)
    dice = random.Random(7)
    outcomes = {"old": 0, "new": 0}
    for kill in range(KILLS):
        restore(model, optimizer, old)
        if daemon.process.poll() is not None:
            daemon.start()
        client = fired.Client(daemon.address, retries=0, deadline=60)
        timer = threading.Timer(dice.uniform(0, 1.1 * took) if kill else 0, daemon.process.kill)
        timer.start()
        try:
            client.reinit(model, optimizer=optimizer)
            expected = "new"
        except fired.ServiceError:
            expected = "old"
        timer.join()
        daemon.process.wait()
        client.close()
        after = snapshot(model, optimizer)
        assert equal(after, new if expected == "new" else old), expected
        outcomes[expected] += 1
    assert outcomes["old"] > 0, "no kill came in time to test anything"


def restore(model, optimizer, old):
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), old[0], strict=True):
            parameter.copy_(value)
        for parameter, slots in zip(model.parameters(), old[1], strict=True):
            for slot, value in slots.items():
                optimizer.state[parameter][slot].copy_(value)


MEMORY = """
import sys, torch, fired
from torch import nn
torch.manual_seed(0)
width, layers, atomic = 1024, 24, sys.argv[1] == "atomic"
model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
optimizer = torch.optim.Adam(model.parameters())
small = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
client = fired.Client(threads=1, deadline=500)
def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status")
                if line.startswith("VmHWM"))
client.reinit(small)
for p in model.parameters():
    p.grad = torch.ones_like(p)
optimizer.step()
open("/proc/self/clear_refs", "w").write("5")
before = peak()
report = client.reinit(model, optimizer=optimizer, arch="none", atomic=atomic,
                       options={"steps": 1})
assert len(report.projected) == layers
print(peak() - before)
"""


def test_memory(script):
    """Peak extra memory: the selected weights and 64 MiB; in windows two layers and 64 MiB."""
    layer, layers = 4 << 20, 24
    # Only the weights travel: their state is reset in place.
    assert int(script(MEMORY, "atomic")) <= layers * layer + (64 << 20)
    assert int(script(MEMORY, "windows")) <= 2 * layer + (64 << 20)
