"""What the batching model servers run: the official loop in PyTorch on whatever batch they made."""
import os
import sys

import numpy as np
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import official  # noqa: E402

SIDE = 64
torch.set_num_threads(len(os.sched_getaffinity(0)))
torch.set_grad_enabled(False)


def project(stack, steps):
    """A float32 array (n, SIDE, SIDE) to its projected stack, by batched products."""
    return official.newton_schulz_stack(torch.from_numpy(np.ascontiguousarray(stack)),
                                        steps).numpy()
