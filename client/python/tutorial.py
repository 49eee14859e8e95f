"""A tour of fired in PyTorch: a small network is spoiled by random labels and then put right.

Run it: python tutorial.py. It needs torch and takes seconds on one core."""

import torch
from torch import nn

import fired
import fired.torch


def train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
    steps: int = 300,
) -> float:
    """Fits labels; the share that is right in the end."""
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return float((net(x).argmax(1) == y).float().mean())


def main() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    x = torch.randn(256, 32)

    # 1. A client. Without an address it starts a daemon of its own and stops it in the end.
    client = fired.Client(run="tutorial")

    # 2. What would be projected, and why.
    selection = fired.torch.select(net)

    # 3. A task of random labels, with activations watched on the way.
    watch = fired.torch.Watch(net, every=10)
    print("task 1:", train(net, optimizer, x, torch.randint(10, (256,))))
    health = client.analyze(selection, activations=watch, statistics="spectrum")
    for layer in health:
        if layer.action == "analyzed":
            print(
                f"{layer.name}: DfI {layer.dfi_before:.1f}, dormant {layer.dormant_ratio:.2f}, "
                f"effective rank {layer.effective_rank_before:.1f}"
            )

    # 4. Between two tasks: new weights, and no memory of the old task in the optimizer.
    report = client.reinit(selection, optimizer=optimizer, step=300)
    print(report)
    assert report["0.weight"].state == "reset"

    # 5. The next task.
    print("task 2:", train(net, optimizer, x, torch.randint(10, (256,))))

    # 6. The same numbers as a published algorithm, or other options.
    client.reinit(net, optimizer=optimizer, preset="official-vision")
    client.reinit(net, optimizer=optimizer, options={"scale": "one", "0.*:scale": "kaiming"})

    # 7. Bad input names the parameter and changes nothing.
    with torch.no_grad():
        net[2].weight[0, 0] = float("nan")
    try:
        client.reinit(net, optimizer=optimizer)
    except fired.ParameterError as error:
        print("refused:", error)


if __name__ == "__main__":
    main()
