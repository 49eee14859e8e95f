"""What fired itself says about a network: raw DfI, effective rank and dormant units over tasks."""
from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fired.torch import Watch

from .methods import client

# Name in the results and statistic of fired; means over the layers that fired measures.
STATISTICS = {"dfi": "dfi_before", "effective_rank": "effective_rank_before",
              "dormant_ratio": "dormant_ratio"}


@torch.no_grad()
def of_model(model: nn.Module, x: Tensor, place: int) -> dict[str, float]:
    """Means over the hidden layers (the head has no activation function), after one pass of `x`;
    names are `dfi/PLACE` and so on."""
    model.eval()
    with Watch(model, activation=functional.relu) as watch:
        model(x)
    report = client().analyze(model, activations=watch, arch="none", exclude="head.*",
                              statistics="spectrum")
    found: dict[str, float] = {}
    for name, statistic in STATISTICS.items():
        values = [value for result in report if (value := result.get(statistic)) is not None]
        if values:
            found[f"{name}/{place:02}"] = sum(values) / len(values)
    return found
