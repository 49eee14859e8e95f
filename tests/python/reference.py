"""The float64 reference in numpy: every preset and option of fired, written a second time.

Nothing here calls fired. Each function follows a formula of the documents word for word and takes
no short cut, so that a mistake in the C code and the same mistake here are unlikely to meet.

An m x n matrix has m = out and n = in; r = min(m, n); G is the Gram matrix of the short side.
"""
import dataclasses
import math

import numpy as np

CUBIC = [(1.5, -0.5, 0.0)]
MUON = [(3.4445, -4.7750, 2.0315)]
POLAR_EXPRESS = [
    (8.156555, -22.483293, 15.878770),
    (4.042930, -2.808917, 0.500018),
    (3.891668, -2.772484, 0.506065),
    (3.285754, -2.368129, 0.464490),
    (2.346541, -1.709783, 0.423236),
]
MINIMAX = [
    (15.0760146703, -148.071776982, 493.178159577, -634.186870194, 275.989397062),
    (7.1560023241, -17.4709706628, 14.6787614161, -4.77670374364, 0.52669244116),
    (5.24184450738, -11.956872036, 10.488328297, -3.65964278006, 0.43723771393),
    (2.78290960953, -4.30122693424, 3.9868060703, -1.77232760232, 0.297097954334),
    (315 / 128, -420 / 128, 378 / 128, -180 / 128, 35 / 128),
]
STEPS_MAX_DEFAULT = 100  # most steps of a named polynomial that runs to a target


@dataclasses.dataclass
class Options:
    """One field per key of `--set`; values are those of the command line, already parsed."""

    normalize: str = "auto"
    eps: float = 0.0
    polynomial: str = "auto"
    custom: tuple = ()
    steps: int = None  # None: auto
    max_steps: int = STEPS_MAX_DEFAULT
    target: float = 1e-6
    check: int = 1
    target_form: str = "short"
    scale: str = "fan-ratio"
    variance: float = 1.0
    conv: str = "tap"
    layout: str = "out_in"
    split: tuple = (1,)  # (k,) for k equal blocks, or the sizes
    stack: int = 0
    blend: float = 1.0
    min_norm: float = 0.0

    def with_keys(self, **keys):
        return dataclasses.replace(self, **keys)


_OFFICIAL = Options(normalize="frobenius", polynomial="cubic", steps=10, scale="fan-ratio")

PRESETS = {
    "fire": Options(),
    "official-vision": _OFFICIAL,
    "official-vit": _OFFICIAL,
    "official-gpt": _OFFICIAL.with_keys(steps=5),
    "official-dqn": _OFFICIAL,
    "official-sac": _OFFICIAL.with_keys(eps=1e-8, layout="in_out"),
    "review": Options(normalize="spectral", polynomial="cubic", steps=15, scale="one"),
    "rust-guide": Options(
        normalize="frobenius", polynomial="cubic", max_steps=8, target=1e-5, check=2,
        target_form="full", scale="fan-in", min_norm=1e-3),
}


def parse(preset, keys):
    """The options of a preset with `--set` keys, given as the texts of the command line."""
    options = dataclasses.replace(PRESETS[preset])
    for key, text in keys.items():
        if key == "polynomial" and text.startswith("custom:"):
            rows = text.removeprefix("custom:").split(";")
            options.custom = tuple(tuple(float(x) for x in row.split(",")) for row in rows)
            options.polynomial = "custom"
        elif key == "split":
            options.split = tuple(int(size) for size in text.split(","))
        elif key == "steps":
            options.steps = None if text == "auto" else int(text)
        elif key in ("max_steps", "check", "stack"):
            setattr(options, key, int(text))
        elif key in ("eps", "target", "variance", "blend", "min_norm"):
            setattr(options, key, float(text))
        elif key in ("normalize", "polynomial", "target_form", "scale", "conv", "layout"):
            setattr(options, key, text)
        elif key not in ("side", "compute"):  # these change how, not what
            raise ValueError(f"the reference does not know the key {key}")
    if options.steps is not None and options.polynomial == "auto":
        options.polynomial = "cubic"  # a count of steps means cubic ones unless another is named
    return options


# --- the matrices inside a tensor ---------------------------------------------------------------


@dataclasses.dataclass
class View:
    """One matrix of a tensor: a writable m x n window and what the scales need to know."""

    matrix: np.ndarray
    fan_in: int
    fan_out: int
    taps: int  # k_h k_w of a convolution tap, else 1


def _row_blocks(rows, split):
    sizes = [rows // split[0]] * split[0] if len(split) == 1 else list(split)
    assert sum(sizes) == rows, f"split {split} does not add up to {rows} rows"
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return [slice(int(a), int(b)) for a, b in zip(starts[:-1], starts[1:])]


def _views_of_one(tensor, options):
    """Views of a tensor without its stack axes: (out, in) or (out, in, height, width)."""
    if options.layout == "in_out":
        # (in, out), and a convolution as JAX stores it: (height, width, in, out).
        if tensor.ndim == 4 and options.conv == "flatten":
            height, width, inner, out = tensor.shape
            flat = tensor.reshape(height * width * inner, out).T
            for block in _row_blocks(out, options.split):
                part = flat[block]
                yield View(part, part.shape[1], part.shape[0] * height * width, 1)
            return
        tensor = tensor.T if tensor.ndim == 2 else tensor.transpose(3, 2, 0, 1)
    for block in _row_blocks(tensor.shape[0], options.split):
        part = tensor[block]
        if part.ndim == 2:
            yield View(part, part.shape[1], part.shape[0], 1)
            continue
        out, inner, height, width = part.shape
        taps = height * width
        if options.conv == "flatten":
            yield View(part.reshape(out, inner * taps), inner * taps, out * taps, 1)
            continue
        for i in range(height):
            for j in range(width):
                yield View(part[:, :, i, j], inner * taps, out * taps, taps)


def views(tensor, options):
    """All matrices of `tensor`, stack-major, then row block, then tap."""
    stacked = tensor.shape[:options.stack]
    for index in np.ndindex(*stacked):
        yield from _views_of_one(tensor[index], options)


# --- one matrix ---------------------------------------------------------------------------------


def gram(matrix):
    """G of the short side, r x r."""
    return matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T


def dfi(matrix):
    g = gram(matrix)
    return float(np.sum((g - np.eye(len(g))) ** 2))


def dfi_full(matrix):
    """The n x n form, n = in: it cannot reach 0 when the matrix is wide."""
    g = matrix.T @ matrix
    return float(np.sum((g - np.eye(len(g))) ** 2))


def polar(matrix):
    """U V^T by a singular value decomposition."""
    u, _, vt = np.linalg.svd(matrix, full_matrices=False)
    return u @ vt


def polar_partial(matrix, tolerance):
    """The partial isometry of a matrix whose small singular values count as 0, and its rank."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    keep = s > tolerance * s[0] if s[0] > 0 else s > 0
    return u[:, keep] @ vt[keep], int(keep.sum())


def norm_for(matrix, kind):
    singular = np.linalg.svd(matrix, compute_uv=False)
    if kind == "frobenius":
        return math.sqrt(float(np.sum(matrix ** 2)))
    if kind == "spectral":
        return float(singular[0])
    if kind == "schatten":
        return float(np.sum(singular ** 8) ** 0.125)  # ||G^2||_F^(1/4)
    raise ValueError(f"the norm of normalize={kind} is not defined by the documents")


def coefficients(options, index):
    table = {"cubic": CUBIC, "muon": MUON, "polar-express": POLAR_EXPRESS,
             "minimax": MINIMAX, "custom": options.custom}[options.polynomial]
    return table[min(index, len(table) - 1)]


def polynomial_step(x, terms):
    """X (a I + b G + c G^2 + …) on the short side."""
    g = gram(x)
    power, p = np.eye(len(g)), np.zeros_like(g)
    for coefficient in terms:
        p += coefficient * power
        power = power @ g
    return x @ p if x.shape[0] >= x.shape[1] else p @ x


def iterate(matrix, options):
    """The unscaled factor and the steps taken."""
    if options.polynomial == "auto":
        return polar(matrix), None
    x = matrix / (norm_for(matrix, options.normalize) + options.eps)
    if options.steps is not None:
        for index in range(options.steps):
            x = polynomial_step(x, coefficients(options, index))
        return x, options.steps
    measure = dfi if options.target_form == "short" else dfi_full
    for index in range(options.max_steps):
        x = polynomial_step(x, coefficients(options, index))
        if index % options.check == 0 and measure(x) < options.target:
            return x, index + 1
    return x, options.max_steps


def scale_of(view, options):
    m, n = view.matrix.shape
    kind = options.scale
    if kind == "one":
        scale = 1.0
    elif kind == "fan-ratio":
        scale = math.sqrt(m / n) / view.taps
    elif kind == "fan-in":
        scale = math.sqrt(n)
    elif kind == "keep-norm":
        scale = math.sqrt(float(np.sum(view.matrix ** 2))) / math.sqrt(min(m, n))
    elif kind == "mean-sigma":
        scale = float(np.mean(np.linalg.svd(view.matrix, compute_uv=False)))
    else:
        deviation = {
            "kaiming": lambda: math.sqrt(2 / view.fan_in),
            "xavier": lambda: math.sqrt(2 / (view.fan_in + view.fan_out)),
            "uniform": lambda: 1 / math.sqrt(3 * view.fan_in),
        }.get(kind, lambda: float(kind.removeprefix("std:")))()
        scale = deviation * math.sqrt(max(m, n))
    return scale * options.variance


def project_view(view, options):
    """The new matrix, its unscaled factor, the scale and the steps; None when it is skipped."""
    if math.sqrt(float(np.sum(view.matrix ** 2))) < options.min_norm:
        return None
    q, steps = iterate(view.matrix, options)
    scale = scale_of(view, options)
    new = options.blend * scale * q + (1 - options.blend) * view.matrix
    return new, q, scale, steps


def project(tensor, options):
    """The projected tensor in float64 and one outcome a matrix (None: skipped)."""
    source = np.array(tensor, dtype=np.float64)
    result = source.copy()
    outcomes = []
    for old, new in zip(views(source, options), views(result, options)):
        outcome = project_view(old, options)
        outcomes.append(outcome)
        if outcome is not None:
            assert np.shares_memory(new.matrix, result), "a view must be a window, not a copy"
            new.matrix[...] = outcome[0]
    return result, outcomes


def relative_error(got, want):
    """||got - want||_F / ||want||_F."""
    size = np.linalg.norm(np.asarray(want, dtype=np.float64))
    return float(np.linalg.norm(np.asarray(got, dtype=np.float64) - want) / (size or 1.0))


# --- statistics ---------------------------------------------------------------------------------


def moment(matrix, spectrum=True):
    """Every statistic that exists before and after, by name."""
    g = gram(matrix)
    r = len(g)
    trace, square = float(np.trace(g)), float(np.sum(g * g))
    best = trace / square
    singular = np.linalg.svd(matrix, compute_uv=False)
    values = {
        "dfi": dfi(matrix),
        "dfi_full": dfi_full(matrix),
        "dfi_mean": dfi(matrix) / r,
        "dfi_scale_free": float(np.sum((best * g - np.eye(r)) ** 2)),
        "norm": float(np.linalg.norm(matrix)),
        "participation": trace ** 2 / square,
        "spectral_norm": float(singular[0]),
        "stable_rank": float(np.sum(singular ** 2) / singular[0] ** 2),
    }
    if spectrum:
        share = singular / singular.sum()
        share = share[share > 0]
        values["effective_rank"] = float(np.exp(-np.sum(share * np.log(share))))
        running = np.cumsum(singular)
        values["srank"] = int(np.argmax(running >= 0.99 * running[-1])) + 1
        values["condition"] = float(singular[0] / singular[-1])
    return values


def polar_residual(weights, q):
    """||H - H^T||_F / ||W||_F with H = Q^T W on the short side."""
    h = q.T @ weights if weights.shape[0] >= weights.shape[1] else q @ weights.T
    return float(np.linalg.norm(h - h.T) / np.linalg.norm(weights))


def dormant_ratio(unit_means, tau, eps):
    score = unit_means / (unit_means.mean() + eps)
    if tau == 0:
        return float(np.mean(np.isclose(score, 0.0)))
    return float(np.mean(score <= tau))
