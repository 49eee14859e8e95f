"""Every number of the JSON output against numpy, from the bytes that were read and written."""
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

import reference
from tools import conditioned, firectl, gaussian, objects_of, reinit, settings, spiked

MOMENTS = ["dfi", "dfi_full", "dfi_mean", "dfi_scale_free", "norm", "participation",
           "spectral_norm", "stable_rank"]
SPECTRUM = ["effective_rank", "srank", "condition"]

# Near 0 a DfI is rounding of f32 products; everything else is known to five digits.
NEAR = {"rel": 1e-5, "abs": 1e-9}

TENSORS = {
    "square": gaussian((48, 48), 1),
    "tall": gaussian((96, 24), 2),
    "wide": gaussian((20, 70), 3),
    "ill": conditioned(40, 40, 1e4, 4),
    "spiked": spiked(64, 32, 5),
    "small": gaussian((33, 17), 6) * np.float32(0.02),
}


def check_moment(found, matrix, when, names):
    want = reference.moment(matrix.astype(np.float64))
    for name in names:
        loose = {"rel": 1e-3} if name == "condition" else NEAR
        assert found[f"{name}_{when}"] == pytest.approx(want[name], **loose), f"{name}_{when}"


@pytest.mark.parametrize("keys", [{}, {"scale": "one"}, {"scale": "keep-norm", "blend": "0.5"}],
                         ids=["default", "one", "blend"])
def test_statistics_of_one_matrix_before_and_after(tmp_path, keys):
    got, objects = reinit(tmp_path, TENSORS, "--arch", "none", "--spectrum", *settings(keys))
    for name, before in TENSORS.items():
        found, after = objects[name], got[name]
        check_moment(found, before, "before", MOMENTS + SPECTRUM)
        check_moment(found, after, "after", MOMENTS + SPECTRUM)


def test_distances_norms_and_ranks(tmp_path):
    got, objects = reinit(tmp_path, TENSORS, "--arch", "none")
    for name, before in TENSORS.items():
        found = objects[name]
        old, new = before.astype(np.float64), got[name].astype(np.float64)
        sfe = float(np.sum((new - old) ** 2))
        assert found["sfe"] == pytest.approx(sfe, rel=1e-5)
        assert found["sfe_relative"] == pytest.approx(sfe / np.sum(old ** 2), rel=1e-5)
        assert found["norm_preservation"] == pytest.approx(
            np.linalg.norm(new) / np.linalg.norm(old), rel=1e-5)
        assert found["dfi_unscaled_after"] == pytest.approx(
            reference.dfi(new / found["scale"]), **NEAR)
        assert found["rank"] == min(before.shape)
        assert found["rank_defect"] == 0
        assert found["converged"] is True
        assert found["shape"] == list(before.shape)
        assert found["dtype"].lower() == "f32"
        assert found["preset"] == "fire"
        assert found["method"] and found["path"]
        assert found["compute_ms"] >= 0


def test_without_spectrum_its_numbers_are_absent_not_zero(tmp_path):
    _, objects = reinit(tmp_path, TENSORS, "--arch", "none")
    for found in objects.values():
        for name in SPECTRUM:
            assert f"{name}_before" not in found
            assert f"{name}_after" not in found
        assert "dormant_ratio" not in found
        assert "gradient_dormant_ratio" not in found


def test_sfe_of_the_factor_is_its_formula(tmp_path):
    """For c U V^T the distance moved is ||W||^2 - 2 c sum(sigma) + c^2 r."""
    _, objects = reinit(tmp_path, TENSORS, "--arch", "none")
    for name, before in TENSORS.items():
        singular = np.linalg.svd(before.astype(np.float64), compute_uv=False)
        scale = objects[name]["scale"]
        want = np.sum(singular ** 2) - 2 * scale * singular.sum() + scale ** 2 * len(singular)
        assert objects[name]["sfe"] == pytest.approx(want, rel=1e-4), name


def test_a_target_is_about_the_unscaled_factor(tmp_path):
    """Scaled by 2 the written weights are far from an isometry, and still converged."""
    _, objects = reinit(tmp_path, {"w": gaussian((64, 16), 1)}, "--arch", "none")
    assert objects["w"]["converged"] is True
    assert objects["w"]["dfi_unscaled_after"] <= 1e-6
    assert objects["w"]["dfi_after"] == pytest.approx(16 * (4 - 1) ** 2, rel=1e-4)
    assert objects["w"]["dfi_scale_free_after"] <= 1e-5


@pytest.mark.parametrize("keys, shape", [
    ({}, (12, 10, 3, 3)),
    ({"split": "3"}, (36, 20)),
    ({"split": "16,8,8"}, (32, 12)),
    ({"stack": "1"}, (4, 14, 9)),
], ids=["taps", "blocks", "unequal blocks", "stack"])
def test_numbers_of_many_matrices_are_merged(tmp_path, keys, shape):
    """DfI and SFE add up, norms are the root of the sum of squares, condition is the worst, the
    rest is the mean."""
    tensor = gaussian(shape, 7)
    got, objects = reinit(tmp_path, {"w": tensor}, "--arch", "none", "--spectrum", *settings(keys))
    found, options = objects["w"], reference.parse("fire", keys)
    for when, array in (("before", tensor), ("after", got["w"])):
        parts = [reference.moment(view.matrix.astype(np.float64))
                 for view in reference.views(array, options)]
        assert found["matrices"] == len(parts)
        for name in MOMENTS + SPECTRUM:
            values = np.array([part[name] for part in parts])
            if name in ("dfi", "dfi_full", "dfi_scale_free"):
                want = values.sum()
            elif name in ("norm", "spectral_norm"):
                want = np.sqrt(np.sum(values ** 2))
            else:
                want = values.max() if name == "condition" else values.mean()
            loose = {"rel": 1e-3} if name == "condition" else {"rel": 1e-5, "abs": 1e-8}
            assert found[f"{name}_{when}"] == pytest.approx(want, **loose), f"{name}_{when}"
    difference = got["w"].astype(np.float64) - tensor
    assert found["sfe"] == pytest.approx(np.sum(difference ** 2), rel=1e-5)


def test_per_matrix_objects_add_up(tmp_path):
    tensor = gaussian((12, 10, 3, 3), 7)
    save_file({"w": tensor}, tmp_path / "in.safetensors")
    done = firectl("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors",
                   "--local", "--json", "--arch", "none", "--per-matrix")
    whole = objects_of(done.stdout)["w"]
    parts = whole["per_matrix"]
    assert [part["matrix"] for part in parts] == list(range(9))
    assert sum(part["sfe"] for part in parts) == pytest.approx(whole["sfe"], rel=1e-6)
    assert sum(part["dfi_before"] for part in parts) == pytest.approx(whole["dfi_before"], rel=1e-6)


def test_statistics_of_narrow_weights_are_of_what_was_written(tmp_path):
    tensors = {"w": torch.from_numpy(gaussian((64, 64), 8)).to(torch.bfloat16)}
    got, objects = reinit(tmp_path, tensors, "--arch", "none", save=save_torch, load=load_torch)
    before, after = (t["w"].double().numpy() for t in (tensors, got))
    check_moment(objects["w"], before, "before", MOMENTS)
    check_moment(objects["w"], after, "after", MOMENTS)
    floor = 1.5 * 64 * 65 / 64 * 2.0 ** -18
    assert 0.5 * floor < objects["w"]["dfi_after"] < 2 * floor
    assert objects["w"]["converged"] is True


@pytest.mark.parametrize("condition", [10, 1e3, 1e5, 1e7])
def test_condition_is_known_where_f32_would_lose_it(tmp_path, condition):
    weights = conditioned(48, 48, condition, 9, np.float64)
    save_file({"w": weights}, tmp_path / "in.safetensors")
    done = firectl("analyze", tmp_path / "in.safetensors", "--local", "--json", "--arch", "none",
                   "--spectrum", "--set", "compute=f64")
    assert objects_of(done.stdout)["w"]["condition_before"] == pytest.approx(condition, rel=1e-3)


def test_analyze_gives_the_same_numbers_as_reinit(tmp_path):
    _, objects = reinit(tmp_path, TENSORS, "--arch", "none", "--spectrum")
    done = firectl("analyze", tmp_path / "in.safetensors", "--local", "--json", "--arch", "none",
                   "--spectrum")
    for name, found in objects_of(done.stdout).items():
        assert not any(field.endswith("_after") for field in found)
        for field in MOMENTS + SPECTRUM:
            assert found[f"{field}_before"] == pytest.approx(objects[name][f"{field}_before"],
                                                             rel=1e-6)


@pytest.mark.parametrize("arguments", [("--set", "compute=fast"), ("--residual",)],
                         ids=["fast", "asked for"])
def test_polar_residual_is_the_asymmetry_of_h(tmp_path, arguments):
    got, objects = reinit(tmp_path, TENSORS, "--arch", "none", "--set", "scale=one", *arguments)
    for name, before in TENSORS.items():
        want = reference.polar_residual(before.astype(np.float64), got[name].astype(np.float64))
        assert objects[name]["polar_residual"] == pytest.approx(want, rel=0.05, abs=2e-6), name


# --- units --------------------------------------------------------------------------------------


def activations(samples, units, dormant, seed):
    """Activity around 1, except for the first `dormant` units."""
    values = np.abs(gaussian((samples, units), seed))
    values[:, :dormant] *= np.float32(1e-4)
    return values


@pytest.mark.parametrize("dormant", [0, 5, 31])
def test_dormant_ratio_from_activations_and_from_unit_means(tmp_path, dormant):
    values = activations(100, 32, dormant, 1)
    means = np.abs(values.astype(np.float64)).mean(axis=0)
    save_file({"a.weight": gaussian((32, 16), 2), "b.weight": gaussian((32, 16), 3),
               "none.weight": gaussian((32, 16), 4)}, tmp_path / "in.safetensors")
    save_file({"a.weight.activations": values, "b.weight.unit_means": means.astype(np.float32)},
              tmp_path / "activations.safetensors")
    done = firectl("analyze", tmp_path / "in.safetensors", "--local", "--json", "--arch", "none",
                   "--activations", tmp_path / "activations.safetensors")
    found = objects_of(done.stdout)
    want = reference.dormant_ratio(means, 0.025, 1e-9)
    assert want == dormant / 32
    assert found["a.weight"]["dormant_ratio"] == pytest.approx(want)
    assert found["b.weight"]["dormant_ratio"] == pytest.approx(want)
    assert "dormant_ratio" not in found["none.weight"]


@pytest.mark.parametrize("tau", [0.0, 0.3, 0.9])
def test_dormant_ratio_at_other_thresholds(tmp_path, tau):
    values = activations(50, 40, 0, 5)
    values[:, 3] = 0.0
    means = values.astype(np.float64).mean(axis=0) * np.linspace(0.05, 2, 40)
    save_file({"w": gaussian((40, 8), 6)}, tmp_path / "in.safetensors")
    save_file({"w.unit_means": means}, tmp_path / "activations.safetensors")
    done = firectl("analyze", tmp_path / "in.safetensors", "--local", "--json", "--arch", "none",
                   "--set", f"dormant_tau={tau}",
                   "--activations", tmp_path / "activations.safetensors")
    want = reference.dormant_ratio(means, tau, 1e-9)
    assert 0 < want < 1
    assert objects_of(done.stdout)["w"]["dormant_ratio"] == pytest.approx(want)


@pytest.mark.parametrize("shape", [(32, 16), (32, 8, 3, 3)], ids=["linear", "conv"])
def test_gradient_dormant_ratio_is_per_output_unit(tmp_path, shape):
    gradient = gaussian(shape, 1)
    gradient[:7] *= np.float32(1e-4)
    save_file({"w": gaussian(shape, 2)}, tmp_path / "in.safetensors")
    save_file({"w.grad": gradient}, tmp_path / "gradients.safetensors")
    done = firectl("analyze", tmp_path / "in.safetensors", "--local", "--json", "--arch", "none",
                   "--gradients", tmp_path / "gradients.safetensors")
    means = np.abs(gradient.astype(np.float64)).reshape(shape[0], -1).mean(axis=1)
    want = reference.dormant_ratio(means, 0.01, 1e-8)
    assert want == 7 / 32
    assert objects_of(done.stdout)["w"]["gradient_dormant_ratio"] == pytest.approx(want)
