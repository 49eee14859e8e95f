"""Inputs from named seeds, and how far a result is from the float64 truth."""
import numpy as np

SEEDS = (101, 102, 103, 104, 105)  # the five draws
DFI_TARGET = 1e-6
POLAR_ERROR_MAX = 1e-5
STEPS_MAX = 60

# ResNet-18: (name, out, in, kernel side) of every convolution.
RESNET18 = [("conv1", 64, 3, 7)] + [
    (f"layer{stage}.{block}.conv{conv}", width, width if conv == 2 or block == 1 else before, 3)
    for stage, (before, width) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], 1)
    for block in (0, 1) for conv in (1, 2)
] + [(f"layer{stage}.0.downsample.0", 2 ** (5 + stage), 2 ** (4 + stage), 1) for stage in (2, 3, 4)]


def gaussian(shape, seed, deviation=1.0):
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return values if deviation == 1.0 else values * np.float32(deviation)


def dfi(q):
    """||G - I||_F^2 in float64 of every matrix of a stack (or of one), the worst of them."""
    q = np.asarray(q, dtype=np.float64)
    q = q if q.ndim == 3 else q[None]
    worst = 0.0
    for part in np.array_split(q, max(1, len(q) // 256)):
        g = (part.transpose(0, 2, 1) @ part if part.shape[1] >= part.shape[2]
             else part @ part.transpose(0, 2, 1))
        worst = max(worst, float(((g - np.eye(g.shape[1])) ** 2).sum(axis=(1, 2)).max()))
    return worst


def polar(w):
    """U V^T in float64; a long matrix goes through QR first, which is exact and far cheaper."""
    w = np.asarray(w, dtype=np.float64)
    if w.ndim == 3:
        u, _, vt = np.linalg.svd(w, full_matrices=False)
        return u @ vt
    if w.shape[0] < w.shape[1]:
        return polar(w.T).T
    if w.shape[0] >= 2 * w.shape[1]:
        q, r = np.linalg.qr(w)
        return q @ polar(r)
    u, _, vt = np.linalg.svd(w, full_matrices=False)
    return u @ vt


def polar_error(q, reference):
    """||Q - U V^T||_F / sqrt(r), the worst of a stack."""
    difference = np.asarray(q, dtype=np.float64) - reference
    rank = min(difference.shape[-2:])
    return float((np.sqrt((difference ** 2).sum(axis=(-2, -1))) / np.sqrt(rank)).max())


def taps(weight):
    """(out, in, height, width) as the stack of its taps."""
    out, inner, height, width = weight.shape
    return np.ascontiguousarray(weight.transpose(2, 3, 0, 1)).reshape(height * width, out, inner)
