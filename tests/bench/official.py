"""The official FIRE steps in PyTorch: what fired is measured against.

newton_schulz() is the loop of the method's public code: divide by the Frobenius norm, then
X <- 1.5 X - 0.5 X (X^T X), transposed when there are fewer rows than columns. newton_schulz_stack()
does the same to a stack with batched products, the fastest form PyTorch offers for it.
"""
import torch


def newton_schulz(matrix, steps, normalize="frobenius", eps=0.0):
    transposed = matrix.size(0) < matrix.size(1)
    x = matrix.T if transposed else matrix
    x = x / (norm(matrix, normalize) + eps)
    for _ in range(steps):
        a = x.T @ x
        x = 1.5 * x - 0.5 * x @ a
    return x.T if transposed else x


def norm(matrix, normalize):
    return torch.linalg.matrix_norm(matrix, 2) if normalize == "spectral" else matrix.norm()


def newton_schulz_stack(stack, steps, normalize="frobenius", eps=0.0):
    transposed = stack.size(-2) < stack.size(-1)
    x = stack.mT.contiguous() if transposed else stack
    size = (torch.linalg.matrix_norm(x, 2, keepdim=True) if normalize == "spectral"
            else torch.linalg.matrix_norm(x, keepdim=True))
    x = x / (size + eps)
    for _ in range(steps):
        a = torch.bmm(x.mT, x)
        x = torch.baddbmm(x, x, a, beta=1.5, alpha=-0.5)
    return x.mT if transposed else x


def newton_schulz_untransposed(matrix, steps, checks, target):
    """The rust guide's loop: never transposed, DfI of the n x n form looked at after `checks`."""
    x = matrix / matrix.norm()
    identity = torch.eye(matrix.size(1), dtype=matrix.dtype)
    for step in range(1, steps + 1):
        x = 1.5 * x - 0.5 * x @ (x.T @ x)
        if step in checks and float(((x.T @ x - identity) ** 2).sum()) < target:
            break
    return x


def steps_to_target(stack, target, most):
    """Least k with DfI <= target after k steps, for every matrix of the stack; None: over `most`.

    The products are those of the loop itself: the Gram matrix that starts step k + 1 tells the DfI
    after step k."""
    x = stack.mT.contiguous() if stack.size(-2) < stack.size(-1) else stack
    x = x / torch.linalg.matrix_norm(x, keepdim=True)
    identity = torch.eye(x.size(-1), dtype=x.dtype)
    found = [None] * len(x)
    for k in range(most + 1):
        a = torch.bmm(x.mT, x)
        values = ((a - identity) ** 2).sum(dim=(1, 2)).tolist()
        for index, value in enumerate(values):
            if found[index] is None and value <= target:
                found[index] = k
        if all(steps is not None for steps in found):
            break
        x = torch.baddbmm(x, x, a, beta=1.5, alpha=-0.5)
    return found


def conv_taps(weight):
    """(out, in, height, width) as the stack of its taps, contiguous."""
    out, inner, height, width = weight.shape
    return weight.permute(2, 3, 0, 1).reshape(height * width, out, inner).contiguous()


def conv_from_taps(taps, height, width):
    return taps.reshape(height, width, taps.size(1), taps.size(2)).permute(2, 3, 0, 1).contiguous()
