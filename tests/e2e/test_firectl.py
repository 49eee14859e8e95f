"""firectl as people use it: real files in, real files out, messages and exit codes."""

import json
import os
import resource
import signal
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from build import BUILD, sanitized

FIRECTL = BUILD / "bin" / "firectl"
TIMEOUT_S = 300


def run(*arguments, code=0, **options):
    """Runs firectl; its exit code must be `code`."""
    assert FIRECTL.exists(), f"{FIRECTL} is missing: cmake --build --preset release"
    options.setdefault("text", True)
    done = subprocess.run([str(FIRECTL), *map(str, arguments)], capture_output=True,
                          timeout=TIMEOUT_S, **options)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stderr}"
    return done


def rows(done):
    """The objects of --json by name, and the summary."""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["summary"] is True
    return {line["name"]: line for line in lines[:-1]}, lines[-1]


def gaussian(*shape, seed=0, dtype="f4"):
    return (0.1 * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def polar(matrix):
    """U V^T of each matrix in the last two axes, in float64."""
    u, _, vt = np.linalg.svd(matrix.astype("f8"), full_matrices=False)
    return u @ vt


def isometry(matrix):
    """What the fire preset makes of an (out, in) matrix."""
    out, into = matrix.shape[-2:]
    return np.sqrt(out / into) * polar(matrix)


def close(got, want, tolerance=1e-5):
    return np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)


def reinit(folder, tensors, *arguments, metadata=None, **options):
    """The new tensors, the rows and the summary of one run."""
    save_file(tensors, folder / "in.safetensors", metadata=metadata)
    done = run("reinit", folder / "in.safetensors", "-o", folder / "out.safetensors", "--json",
               *arguments, **options)
    return (load_file(folder / "out.safetensors"), *rows(done))


@pytest.fixture
def net(tmp_path):
    """A small plain net on disk."""
    path = tmp_path / "net.safetensors"
    save_file({"fc1.weight": gaussian(32, 16), "fc1.bias": gaussian(32, seed=1),
               "fc2.weight": gaussian(24, 32, seed=2), "fc3.weight": gaussian(4, 24, seed=3),
               "steps": np.arange(3)}, path, metadata={"format": "pt", "note": "kept"})
    return path


# --- what is written ------------------------------------------------------------------------------


def test_what_is_not_selected_is_byte_identical_and_metadata_is_kept(net, tmp_path):
    """Header and all untouched tensors are the same bytes, so the file has the same size."""
    before = net.read_bytes()
    out = tmp_path / "out.safetensors"
    run("reinit", net, "-o", out)
    after = out.read_bytes()
    header = 8 + struct.unpack("<Q", before[:8])[0]
    assert after[:header] == before[:header] and len(after) == len(before)
    old, new = load_file(net), load_file(out)
    for name in ("fc1.bias", "fc3.weight", "steps"):
        assert old[name].tobytes() == new[name].tobytes()
    for name in ("fc1.weight", "fc2.weight"):
        assert close(new[name], isometry(old[name]))
    with safe_open(out, "np") as file:
        assert file.metadata() == {"format": "pt", "note": "kept"}
    assert net.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.safetensors", "out.safetensors"]


def test_rows_have_the_promised_fields_in_order(net, tmp_path):
    done = run("reinit", net, "-o", tmp_path / "out.safetensors", "--json", "--spectrum",
               "--residual")
    objects, summary = rows(done)
    row = objects["fc1.weight"]
    promised = """name shape dtype action reason preset method steps converged rank rank_defect
        scale dfi_before dfi_after dfi_full_before dfi_full_after dfi_scale_free_before
        dfi_scale_free_after dfi_unscaled_after polar_residual path dfi_mean_before dfi_mean_after
        sfe sfe_relative norm_before norm_after norm_preservation spectral_norm_before
        spectral_norm_after stable_rank_before stable_rank_after effective_rank_before
        effective_rank_after srank_before srank_after condition_before condition_after
        participation_before participation_after dormant_ratio gradient_dormant_ratio state
        compute_ms""".split()
    absent = {"reason", "dormant_ratio", "gradient_dormant_ratio"}  # cannot be known here
    assert list(row) == [name for name in promised if name not in absent]
    old = load_file(net)["fc1.weight"].astype("f8")
    new = load_file(tmp_path / "out.safetensors")["fc1.weight"].astype("f8")
    assert row["shape"] == [32, 16] and row["dtype"] == "F32" and row["converged"] is True
    assert row["sfe"] == pytest.approx(np.sum((old - new) ** 2), rel=1e-5)
    assert row["dfi_before"] == pytest.approx(np.sum((old.T @ old - np.eye(16)) ** 2), rel=1e-5)
    assert row["condition_before"] == pytest.approx(np.linalg.cond(old), rel=1e-4)
    assert row["scale"] == pytest.approx(np.sqrt(2))
    assert row["dfi_unscaled_after"] <= 1e-6
    assert summary["tensors"] == 5 and summary["projected"] == 2 and summary["skipped"] == 3
    assert summary["refused"] == 0 and summary["written"] is True
    assert summary["parameters"] == 32 * 16 + 24 * 32
    assert summary["threads"] >= 1 and summary["path"] and summary["seconds"] > 0


def test_skipped_tensors_say_why(net, tmp_path):
    objects, _ = rows(run("reinit", net, "--dry-run", "--json"))
    reasons = {name: row["reason"] for name, row in objects.items() if row["action"] == "skipped"}
    assert "I64" in reasons["steps"]
    assert reasons["fc1.bias"] == "1-D" and reasons["fc3.weight"] == "head"
    assert "dfi_before" not in objects["fc3.weight"]


def test_a_dry_run_writes_nothing_and_reports_the_same(net, tmp_path):
    wet, _ = rows(run("reinit", net, "-o", tmp_path / "out.safetensors", "--json"))
    (tmp_path / "out.safetensors").unlink()
    dry, summary = rows(run("reinit", net, "-o", tmp_path / "out.safetensors", "--json",
                            "--dry-run"))
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]
    assert summary["written"] is False
    for name, row in wet.items():
        for timing in ("compute_ms",):
            row.pop(timing, None)
            dry[name].pop(timing, None)
        assert row == dry[name]


def test_standard_input_and_output(net, tmp_path):
    run("reinit", net, "-o", tmp_path / "want.safetensors")
    with open(net, "rb") as file:
        done = run("reinit", "-", "-o", "-", stdin=file, text=False)
    assert done.stdout == (tmp_path / "want.safetensors").read_bytes()
    piped = run("reinit", "-", "-o", "-", input=net.read_bytes(), text=False)
    assert piped.stdout == done.stdout


def test_a_sharded_directory_keeps_its_shards(tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    shards = [{"model.layers.0.mlp.up_proj.weight": gaussian(32, 16)},
              {"model.layers.1.mlp.up_proj.weight": gaussian(32, 16, seed=1),
               "model.norm.weight": gaussian(16)}]
    index = {"metadata": {"total_size": 1}, "weight_map": {}}
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05}-of-00002.safetensors"
        save_file(tensors, source / name)
        index["weight_map"].update({key: name for key in tensors})
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    done = run("reinit", source, "-o", out, "--json", "--arch", "llama")
    objects, summary = rows(done)
    assert summary["projected"] == 2
    assert {p.name for p in out.iterdir()} == {p.name for p in source.iterdir()}
    for i, tensors in enumerate(shards):
        got = load_file(out / f"model-{i + 1:05}-of-00002.safetensors")
        for name, old in tensors.items():
            want = old if old.ndim == 1 else isometry(old)
            assert close(got[name], want)


# --- tensors as they come -------------------------------------------------------------------------


def test_a_convolution_is_projected_tap_by_tap(tmp_path):
    weight = gaussian(12, 8, 3, 3)
    new, objects, _ = reinit(tmp_path, {"conv": weight})
    want = np.moveaxis(isometry(np.moveaxis(weight, (2, 3), (0, 1))), (0, 1), (2, 3)) / 9
    assert close(new["conv"], want)
    assert objects["conv"]["matrices"] == 9
    flat, objects, _ = reinit(tmp_path, {"conv": weight}, "--set", "conv=flatten")
    assert close(flat["conv"].reshape(12, -1), isometry(weight.reshape(12, -1)))
    assert "matrices" not in objects["conv"]


def test_depthwise_convolutions_and_vectors_are_skipped(tmp_path):
    tensors = {"depthwise": gaussian(8, 1, 3, 3), "row": gaussian(1, 20)}
    new, objects, _ = reinit(tmp_path, tensors, "--arch", "none")
    for name, old in tensors.items():
        assert objects[name]["action"] == "skipped" and objects[name]["reason"] == "r = 1"
        assert new[name].tobytes() == old.tobytes()


def test_stack_split_and_layout(tmp_path):
    tensors = {"experts": gaussian(3, 10, 6), "fused": gaussian(24, 8, seed=1),
               "grouped": gaussian(16, 8, seed=2), "kernel": gaussian(6, 18, seed=3)}
    new, objects, _ = reinit(tmp_path, tensors, "--arch", "none", "--set", "experts:stack=1",
                             "--set", "fused:split=3", "--set", "grouped:split=8,4,4", "--set",
                             "kernel:layout=in_out", "--per-matrix")
    assert close(new["experts"], isometry(tensors["experts"]))
    assert close(new["fused"].reshape(3, 8, 8), isometry(tensors["fused"].reshape(3, 8, 8)))
    for a, b in ((0, 8), (8, 12), (12, 16)):
        assert close(new["grouped"][a:b], isometry(tensors["grouped"][a:b]))
    assert close(new["kernel"].T, isometry(tensors["kernel"].T))
    each = objects["grouped"]["per_matrix"]
    assert [matrix["matrix"] for matrix in each] == [0, 1, 2]
    assert objects["grouped"]["matrices"] == 3
    assert objects["grouped"]["sfe"] == pytest.approx(sum(matrix["sfe"] for matrix in each))


def test_gpt2_conv1d_weights_are_transposed_and_split(tmp_path):
    weight = gaussian(16, 48)
    tensors = {"transformer.h.0.attn.c_attn.weight": weight,
               "transformer.wte.weight": gaussian(20, 16, seed=1)}
    new, objects, summary = reinit(tmp_path, tensors)
    assert summary["arch"] == "gpt2"
    got = new["transformer.h.0.attn.c_attn.weight"].T.reshape(3, 16, 16)
    assert close(got, isometry(weight.T.reshape(3, 16, 16)))
    assert objects["transformer.wte.weight"]["reason"] == "embedding"
    only, _, _ = reinit(tmp_path, tensors, "--only", "qk")
    value = only["transformer.h.0.attn.c_attn.weight"][:, 32:]
    assert value.tobytes() == np.ascontiguousarray(weight[:, 32:]).tobytes()


def test_a_tie_is_projected_once(tmp_path):
    weight = gaussian(20, 12)
    tensors = {"a": weight, "b": weight.copy(), "c": gaussian(20, 12, seed=1)}
    new, objects, _ = reinit(tmp_path, tensors, "--arch", "none", "--tie", "b=a")
    assert new["a"].tobytes() == new["b"].tobytes() and close(new["a"], isometry(weight))
    assert objects["a"]["reason"] == "tied to b"
    done = run("reinit", tmp_path / "in.safetensors", "--dry-run", "--arch", "none", "--tie",
               "a=c", code=1)
    assert "different values" in done.stderr
    done = run("reinit", tmp_path / "in.safetensors", "--dry-run", "--tie", "a=x", code=1)
    assert "no tensor 'x'" in done.stderr


def test_official_gpt_projects_the_tied_head(tmp_path):
    head = gaussian(20, 16)
    tensors = {"transformer.h.0.attn.c_attn.weight": gaussian(48, 16, seed=1),
               "transformer.wte.weight": head, "lm_head.weight": head.copy()}
    new, objects, _ = reinit(tmp_path, tensors, "--preset", "official-gpt")
    assert new["lm_head.weight"].tobytes() == new["transformer.wte.weight"].tobytes()
    assert new["lm_head.weight"].tobytes() != head.tobytes()
    assert objects["transformer.wte.weight"]["reason"] == "tied to lm_head.weight"


def test_official_dqn_resets_linear_layers_and_copies_to_the_target(tmp_path):
    online = {"q_network.conv.weight": gaussian(8, 4, 3, 3), "q_network.fc.weight": gaussian(6, 8),
              "q_network.fc.bias": gaussian(6), "q_network.conv.bias": gaussian(8, seed=7)}
    target = {name.replace("q_network", "target_network"): tensor * 2
              for name, tensor in online.items()}
    init = {name: gaussian(*tensor.shape, seed=9) for name, tensor in online.items()}
    save_file({**online, **target}, tmp_path / "in.safetensors")
    save_file(init, tmp_path / "init.safetensors")
    done = run("reinit", tmp_path / "in.safetensors", "--dry-run", "--preset", "official-dqn",
               code=1)
    assert "--init" in done.stderr
    done = run("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--json",
               "--preset", "official-dqn", "--init", tmp_path / "init.safetensors")
    objects, _ = rows(done)
    new = load_file(tmp_path / "out.safetensors")
    for name in ("q_network.fc.weight", "q_network.fc.bias"):
        assert new[name].tobytes() == init[name].tobytes()
        assert objects[name]["action"] == "reset"
    assert new["q_network.conv.bias"].tobytes() == online["q_network.conv.bias"].tobytes()
    assert objects["q_network.conv.weight"]["action"] == "projected"
    for name in online:
        assert new[name].tobytes() == new[name.replace("q_network", "target_network")].tobytes()


@pytest.mark.parametrize("dtype, tolerance", [("f8", 1e-5), ("f4", 1e-5), ("f2", 1e-3)])
def test_every_dtype_is_written_as_it_came(tmp_path, dtype, tolerance):
    weight = gaussian(24, 16, dtype=dtype)
    new, objects, _ = reinit(tmp_path, {"w": weight})
    assert new["w"].dtype == weight.dtype
    assert close(new["w"].astype("f8"), isometry(weight), tolerance)
    assert objects["w"]["converged"] is True


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-40, 1e37])
@pytest.mark.parametrize("preset", ["fire", "official-vision", "review"])
def test_weights_at_the_ends_of_f32(tmp_path, preset, factor):
    """What is done to a matrix does not depend on its size, nor do the numbers get lost."""
    plain = gaussian(64, 48)
    objects = {}
    for size in (1.0, factor):
        weights = (plain.astype("f8") * size).astype("f4")
        new, objects[size], _ = reinit(tmp_path, {"w": weights}, "--preset", preset, "--residual")
        # denormals have few bits left: the factor of what is there is what counts
        _, again, _ = reinit(tmp_path, {"w": (weights.astype("f8") / size).astype("f4")},
                             "--preset", preset)
        assert np.isfinite(new["w"]).all()
        assert objects[size]["w"]["dfi_after"] == pytest.approx(again["w"]["dfi_after"], rel=1e-3,
                                                                abs=1e-6)
        norm = np.linalg.norm(weights.astype("f8"))
        assert objects[size]["w"]["norm_before"] == pytest.approx(norm, rel=1e-5)
    assert objects[factor]["w"].keys() == objects[1.0]["w"].keys()


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_blended_weights_have_their_norm_at_any_scale(tmp_path, factor):
    weights = (gaussian(64, 48).astype("f8") * factor).astype("f4")
    new, objects, _ = reinit(tmp_path, {"w": weights}, "--set", "blend=0.5", "--set",
                             "scale=keep-norm")
    norm = np.linalg.norm(new["w"].astype("f8"))
    assert objects["w"]["norm_after"] == pytest.approx(norm, rel=1e-5)


def test_a_block_skipped_by_rule_is_skipped_in_every_tensor(tmp_path):
    """The second tensor is planned like the first; its skipped row is no refusal."""
    _, objects, _ = reinit(tmp_path, {"a": gaussian(9, 9), "b": gaussian(9, 9, seed=1)}, "--arch",
                           "none", "--set", "split=8,1", "--per-matrix")
    for row in objects.values():
        assert [matrix["action"] for matrix in row["per_matrix"]] == ["projected", "skipped"]


def test_later_settings_win_and_patterns_select(net):
    arguments = ("reinit", net, "--dry-run", "--json", "--set", "scale=one", "--set",
                 "fc2*:scale=std:0.5", "--set", "fc1*:variance=2")
    objects, _ = rows(run(*arguments))
    assert objects["fc1.weight"]["scale"] == pytest.approx(2.0)
    assert objects["fc2.weight"]["scale"] == pytest.approx(0.5 * np.sqrt(32))
    objects, _ = rows(run(*arguments, "--set", "scale=one"))
    assert objects["fc2.weight"]["scale"] == pytest.approx(1.0)


def test_include_and_exclude_only_take_away(net):
    objects, _ = rows(run("reinit", net, "--dry-run", "--json", "--include", "fc[13]*",
                          "--exclude", "fc1.weight"))
    assert objects["fc1.weight"]["reason"] == "excluded"
    assert objects["fc2.weight"]["reason"] == "not included"
    assert objects["fc3.weight"]["reason"] == "head"
    done = run("reinit", net, "--dry-run", "--include", "nothing*", code=1)
    assert "matches no tensor" in done.stderr


def test_counted_steps_and_targets(net):
    objects, _ = rows(run("reinit", net, "--dry-run", "--json", "--steps", "7", "--set",
                          "polynomial=cubic", "--set", "normalize=frobenius"))
    assert objects["fc1.weight"]["steps"] == 7
    objects, _ = rows(run("reinit", net, "--dry-run", "--json", "--target", "1e-9"))
    assert objects["fc1.weight"]["dfi_unscaled_after"] <= 1e-9


def test_one_and_two_threads_write_the_same_bytes(net, tmp_path):
    for threads in (1, 2):
        run("reinit", net, "-o", tmp_path / f"{threads}.safetensors", "--threads", threads)
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()


# --- statistics from other files ------------------------------------------------------------------


def test_dormant_ratios_from_activations_means_and_gradients(net, tmp_path):
    activations = np.abs(gaussian(50, 32)) + 0.1
    activations[:, :8] = 0.0
    means = np.ones(24, "f4")
    means[:3] = 0.0
    gradient = np.ones((32, 16), "f4")
    gradient[5] = 0.0
    save_file({"fc1.weight.activations": activations.astype("f4"),
               "fc2.weight.unit_means": means}, tmp_path / "acts.safetensors")
    save_file({"fc1.weight.grad": gradient}, tmp_path / "grads.safetensors")
    objects, _ = rows(run("analyze", net, "--json", "--spectrum", "--activations",
                          tmp_path / "acts.safetensors", "--gradients",
                          tmp_path / "grads.safetensors"))
    assert objects["fc1.weight"]["dormant_ratio"] == 8 / 32
    assert objects["fc1.weight"]["gradient_dormant_ratio"] == 1 / 32
    assert objects["fc2.weight"]["dormant_ratio"] == 3 / 24
    assert "gradient_dormant_ratio" not in objects["fc2.weight"]
    sigma = np.linalg.svd(activations.astype("f4").astype("f8"), compute_uv=False)
    share = sigma[sigma > 0] / sigma.sum()
    want = np.exp(-np.sum(share * np.log(share)))
    assert objects["fc1.weight"]["feature_effective_rank"] == pytest.approx(want, rel=1e-3)
    assert objects["fc1.weight"]["gradient_norm"] == pytest.approx(np.linalg.norm(gradient))


def test_activations_of_nobody_or_of_the_wrong_size_are_refused(net, tmp_path):
    path = tmp_path / "acts.safetensors"
    save_file({"fc9.weight.activations": gaussian(4, 32)}, path)
    assert "fc9" in run("analyze", net, "--activations", path, code=1).stderr
    save_file({"fc1.weight.activations": gaussian(4, 31)}, path)
    assert "31" in run("analyze", net, "--activations", path, code=1).stderr


# --- optimizer state ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["keep", "zero", "reset", "transport"])
def test_state_policies_through_files(net, tmp_path, policy):
    state = {"fc1.weight.exp_avg": gaussian(32, 16, seed=5),
             "fc1.weight.exp_avg_sq": gaussian(32, 16, seed=6) ** 2,
             "fc1.weight.step": np.array(100.0, "f4"), "fc2.weight.step": np.array([7]),
             "fc3.weight.exp_avg": gaussian(4, 24, seed=8)}
    save_file(state, tmp_path / "adam.safetensors")
    done = run("reinit", net, "-o", tmp_path / "out.safetensors", "--json", "--state",
               tmp_path / "adam.safetensors", "--state-policy", policy)
    objects, _ = rows(done)
    new = load_file(tmp_path / "out.state.safetensors")
    assert objects["fc1.weight"]["state"] == policy and "state" not in objects["fc3.weight"]
    moment, second = new["fc1.weight.exp_avg"], new["fc1.weight.exp_avg_sq"]
    if policy in ("zero", "reset"):
        assert not moment.any() and not second.any()
    else:
        assert second.tobytes() == state["fc1.weight.exp_avg_sq"].tobytes()
    if policy == "transport":
        q = polar(load_file(net)["fc1.weight"])
        old = state["fc1.weight.exp_avg"].astype("f8")
        inner = q.T @ old
        assert close(moment, old - q @ (inner + inner.T) / 2, 1e-4)
    if policy == "keep":
        assert moment.tobytes() == state["fc1.weight.exp_avg"].tobytes()
    assert new["fc1.weight.step"] == (0.0 if policy == "reset" else 100.0)
    assert new["fc2.weight.step"] == (0 if policy == "reset" else 7)
    assert new["fc3.weight.exp_avg"].tobytes() == state["fc3.weight.exp_avg"].tobytes()


def test_presets_that_reset_all_state_do(net, tmp_path):
    save_file({"fc1.bias.exp_avg": gaussian(32)}, tmp_path / "adam.safetensors")
    run("reinit", net, "-o", tmp_path / "out.safetensors", "--preset", "official-vision",
        "--state", tmp_path / "adam.safetensors", "--state-out", tmp_path / "new.safetensors")
    assert not load_file(tmp_path / "new.safetensors")["fc1.bias.exp_avg"].any()


@pytest.mark.parametrize("out, state_out", [("out", "net"), ("adam", "new"), ("out", "out")],
                         ids=["state over weights", "weights over state", "one over the other"])
def test_no_output_replaces_a_file_that_matters(net, tmp_path, out, state_out):
    adam = tmp_path / "adam.safetensors"
    save_file({"fc1.weight.exp_avg": gaussian(32, 16)}, adam)
    before = net.read_bytes(), adam.read_bytes()
    run("reinit", net, "-o", tmp_path / f"{out}.safetensors", "--state", adam, "--state-out",
        tmp_path / f"{state_out}.safetensors", code=1)
    assert (net.read_bytes(), adam.read_bytes()) == before
    assert len(list(tmp_path.iterdir())) == 2


def test_unknown_state_is_refused_by_name(net, tmp_path):
    path = tmp_path / "adam.safetensors"
    for name, word in (("fc1.weight.exp_average", "exp_average"), ("fc9.weight.exp_avg", "fc9")):
        save_file({name: gaussian(32, 16)}, path)
        done = run("reinit", net, "-o", tmp_path / "out.safetensors", "--state", path, code=1)
        assert word in done.stderr
        assert not (tmp_path / "out.safetensors").exists()


# --- other commands -------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, said", [
    (("--tie", "a"), "A=B"), (("--tie", "=b"), "A=B"), (("--path", "foo"), "avx512"),
    (("-o", ""), "-o is empty"), (("-o", "-", "--state", "s.safetensors"), "--state-out")])
def test_ill_formed_options_are_usage_mistakes(net, tmp_path, arguments, said):
    done = run("reinit", net, "-o", tmp_path / "out.safetensors", *arguments, code=2)
    assert said in done.stderr and done.stdout == ""
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("change", ["shorter", "written", "replaced"])
def test_an_input_that_changes_while_it_is_read(tmp_path, change):
    path = tmp_path / "in.safetensors"
    save_file({f"w{i}.weight": gaussian(900, 900, seed=i) for i in range(24)}, path)
    size = path.stat().st_size
    process = subprocess.Popen(
        [BUILD / "bin" / "firectl", "reinit", "--local", "--arch", "none", "--json", "--threads",
         "1", path, "-o", tmp_path / "out.safetensors"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    if change == "replaced":
        path.rename(tmp_path / "old.safetensors")
        path.write_bytes(b"")
    else:
        with open(path, "r+b") as file:
            file.truncate(size - 8 if change == "shorter" else size)
            file.seek(size - 16)
            file.write(b"8 bytes!")
    _, said = process.communicate(timeout=TIMEOUT_S)
    if change == "replaced":
        assert process.returncode == 0, said
        return
    assert process.returncode == 1, said
    assert "in.safetensors changed while it was read" in said
    assert not (tmp_path / "out.safetensors").exists()


def test_what_missed_its_target_or_rank_is_said(tmp_path):
    tensors = {"a.weight": gaussian(40, 32), "b.weight": gaussian(40, 1) @ gaussian(1, 32, seed=1),
               "c.weight": gaussian(32, 32)}
    save_file(tensors, tmp_path / "in.safetensors")
    arguments = ("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors",
                 "--arch", "none")
    short = ("--include", "a*", "--include", "c*", "--set", "polynomial=cubic", "--set",
             "max_steps=2")
    text = run(*arguments, *short).stdout
    assert text.count("NOT CONVERGED: DfI") == 2
    assert "2 did not reach the target" in text
    objects, summary = rows(run(*arguments, *short, "--json"))
    assert (summary["not_converged"], summary["rank_deficient"]) == (2, 0)
    text = run(*arguments).stdout
    assert "NOT CONVERGED" not in text and "rank 1 of 32" in text
    assert "1 had less than full rank" in text and "complete=on" in text
    objects, summary = rows(run(*arguments, "--json"))
    assert (summary["not_converged"], summary["rank_deficient"]) == (0, 1)
    for more in (("--set", "complete=on"), ("--preset", "official-gpt")):
        objects, summary = rows(run(*arguments, *more, "--include", "b*", "--json"))
        assert (summary["not_converged"], summary["rank_deficient"]) == (0, 0)


def test_analyze_has_the_numbers_of_before_only(net):
    before = net.read_bytes()
    objects, summary = rows(run("analyze", net, "--json"))
    row = objects["fc1.weight"]
    assert row["action"] == "analyzed" and "dfi_before" in row
    assert not any(name.endswith("_after") for name in row)
    assert summary["analyzed"] == 2
    assert net.read_bytes() == before


def test_compare_names_what_differs(net, tmp_path):
    run("reinit", net, "-o", tmp_path / "out.safetensors")
    objects, summary = rows(run("compare", net, tmp_path / "out.safetensors", "--json"))
    old, new = load_file(net), load_file(tmp_path / "out.safetensors")
    moved = np.sum((old["fc1.weight"].astype("f8") - new["fc1.weight"]) ** 2)
    row = objects["fc1.weight"]
    assert row["identical"] is False and row["sfe"] == pytest.approx(moved, rel=1e-6)
    assert row["sfe_relative"] == pytest.approx(moved / np.sum(old["fc1.weight"] ** 2.0), rel=1e-5)
    assert row["dfi_before"] > 0 and "dfi_after" in row
    assert objects["fc1.bias"]["identical"] is True and objects["fc1.bias"]["sfe"] == 0
    assert summary["same"] == 3 and summary["changed"] == 2
    run("compare", net, tmp_path / "out.safetensors", "--fail-if", "sfe>0", code=3)
    run("compare", net, net, "--fail-if", "sfe>0")


def test_compare_reports_missing_tensors(tmp_path):
    save_file({"a": gaussian(4, 4), "b": gaussian(4, 4)}, tmp_path / "one.safetensors")
    save_file({"a": gaussian(4, 5), "c": gaussian(4, 4)}, tmp_path / "two.safetensors")
    objects, summary = rows(run("compare", tmp_path / "one.safetensors",
                                tmp_path / "two.safetensors", "--json"))
    assert objects["b"]["reason"] == "only in the first"
    assert objects["c"]["reason"] == "only in the second"
    assert "shape" in objects["a"]["reason"]
    assert summary["missing"] == 2


def test_presets_are_listed_and_shown():
    names = [json.loads(line)["preset"] for line in run("presets", "--json").stdout.splitlines()]
    assert names[0] == "fire" and "official-gpt" in names and "rust-guide" in names
    options = json.loads(run("presets", "official-gpt", "--json").stdout)
    assert options["steps"] == "5" and options["normalize"] == "frobenius"
    assert "official-gpt" in run("presets", "oficial-gpt", code=2).stderr


def test_selftest_names_the_path_in_use():
    lines = [json.loads(line) for line in run("selftest", "--json").stdout.splitlines()]
    assert lines[0]["in_use"] in ("portable", "avx2", "avx512", "amx") and lines[0]["reason"]
    assert {"portable"} <= {line["path"] for line in lines[1:]}
    assert all(line["ok"] for line in lines[1:])


# --- mistakes -------------------------------------------------------------------------------------


MISTAKES = [
    (("rienit",), 2, "did you mean 'reinit'"),
    (("reinit", "--prest", "fire"), 2, "did you mean '--preset'"),
    (("reinit", "IN"), 2, "-o OUT"),
    (("reinit", "IN", "more", "-o", "OUT"), 2, "more"),
    (("reinit", "IN", "--dry-run", "--set", "scal=one"), 2, "'scale'"),
    (("reinit", "IN", "--dry-run", "--set", "scale=huge"), 2, "keep-norm"),
    (("reinit", "IN", "--dry-run", "--set", "fc1*:nope=1"), 2, "nope"),
    (("reinit", "IN", "--dry-run", "--preset", "fier"), 2, "'fire'"),
    (("reinit", "IN", "--dry-run", "--arch", "gpt3"), 2, "'gpt2'"),
    (("reinit", "IN", "--dry-run", "--only", "v"), 2, "qk"),
    (("reinit", "IN", "--dry-run", "--threads", "-1"), 2, "threads"),
    (("reinit", "IN", "--dry-run", "--fail-if", "dfi_atfer>1"), 2, "'dfi_after'"),
    (("reinit", "IN", "--dry-run", "--fail-if", "dfi_after=1"), 2, "FIELD"),
    (("reinit", "IN", "--dry-run", "--path", "abacus"), 2, "abacus"),
    (("reinit", "IN", "--dry-run", "--addr", "unix:nobody.sock"), 78, "--local"),
    (("reinit", "IN", "--dry-run", "--addr", "nonsense"), 1, "unix:PATH"),
    (("reinit", "IN", "--dry-run", "--addr", "unix:x", "--local"), 2, "one of them"),
    (("reinit", "missing.safetensors", "-o", "OUT"), 1, "missing.safetensors"),
    (("reinit", "IN", "--dry-run", "--threads", "513"), 2, "512"),
    (("reinit", "IN", "-o", "IN"), 1, "input itself"),
    (("reinit", "IN", "-o", "OUT", "--target", "1e-30"), 1, "floor"),
    (("reinit", "IN", "-o", "no/such/folder/x.safetensors"), 1, "no/such/folder"),
    (("compare", "IN"), 2, "two files"),
    (("health", "--addr", "unix:nobody.sock"), 78, "daemon"),
    ((), 2, "Usage"),
]


@pytest.mark.parametrize("arguments, code, words", MISTAKES,
                         ids=[" ".join(case[0]) or "nothing" for case in MISTAKES])
def test_a_mistake_says_what_and_what_to_do(net, tmp_path, arguments, code, words):
    """The message has the words, nothing is left behind, the input is as it was."""
    before = net.read_bytes()
    named = {"IN": net, "OUT": tmp_path / "out.safetensors"}
    done = run(*(named.get(word, word) for word in arguments), code=code, cwd=tmp_path)
    assert words in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]
    assert net.read_bytes() == before


def test_nan_is_named_with_its_tensor_and_index(tmp_path):
    good, bad = gaussian(16, 16), gaussian(8, 4, 3, 3)
    bad[2, 1, 0, 2] = np.nan
    save_file({"good": good, "bad": bad}, tmp_path / "in.safetensors")
    done = run("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--json",
               code=1)
    assert "'bad'" in done.stderr and "NaN" in done.stderr and "[2, 1, 0, 2]" in done.stderr
    assert str(np.ravel_multi_index((2, 1, 0, 2), bad.shape)) in done.stderr
    objects, summary = rows(done)
    assert objects["bad"]["action"] == "refused" and summary["refused"] == 1
    assert summary["written"] is False
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]
    run("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--exclude",
        "bad")


@pytest.mark.parametrize("name", ["é" * 70, "x" + "é" * 300], ids=["140 bytes", "601 bytes"])
def test_a_refusal_of_any_name_has_a_row(tmp_path, name):
    """A message is cut between characters, never inside one, which JSON would not take."""
    save_file({name: np.full((8, 8), np.nan, "f4")}, tmp_path / "in.safetensors")
    objects, _ = rows(run("reinit", tmp_path / "in.safetensors", "--dry-run", "--json", code=1))
    assert objects[name]["action"] == "refused" and "é" in objects[name]["reason"]


@pytest.mark.parametrize("settings", [("polynomial=custom:10,10,10", "steps=40"),
                                      ("scale=std:1e6",)], ids=["diverged", "overflowed"])
def test_weights_that_are_not_finite_are_not_written(tmp_path, settings):
    save_file({"w": gaussian(40, 40, dtype="f2")}, tmp_path / "in.safetensors")
    done = run("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors",
               *(word for setting in settings for word in ("--set", setting)), code=1)
    assert "range" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]


def test_analyze_goes_on_after_a_bad_tensor(tmp_path):
    bad = gaussian(8, 8)
    bad[0, 0] = np.inf
    save_file({"a": bad, "b": gaussian(8, 8)}, tmp_path / "in.safetensors")
    objects, _ = rows(run("analyze", tmp_path / "in.safetensors", "--json", code=1))
    assert objects["a"]["action"] == "refused" and objects["b"]["action"] == "analyzed"


@pytest.mark.parametrize("cut", [4, 60, -1], ids=["in the size", "in the header", "in the data"])
def test_a_truncated_file_is_refused(net, tmp_path, cut):
    whole = net.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:cut])
    done = run("reinit", tmp_path / "cut.safetensors", "-o", tmp_path / "out.safetensors", code=1)
    assert "cut.safetensors" in done.stderr
    assert not (tmp_path / "out.safetensors").exists()


def test_a_full_disk_leaves_nothing(tmp_path):
    """RLIMIT_FSIZE stands for the disk: writing beyond it fails."""
    save_file({"w": gaussian(512, 512)}, tmp_path / "in.safetensors")

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = run("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", code=1,
               preexec_fn=limit)
    assert "out.safetensors" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]


def test_a_report_that_cannot_be_written_is_a_failure(net, tmp_path):
    for target in (["--dry-run"], ["-o", tmp_path / "out.safetensors"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([FIRECTL, "reinit", net, *target], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 1 and "could not be written" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


FAIL_MODULE = BUILD / "tests" / "fail_allocation.so"


@pytest.mark.skipif(sanitized(), reason="a sanitizer's allocator cannot be replaced")
@pytest.mark.parametrize("command", ["reinit", "analyze", "compare", "presets"])
def test_every_allocation_may_fail(tmp_path, command):
    """The first allocation fails, then the second, until a run gets through: each time firectl ends
    with a message and without output, or does its work; it never crashes or leaves a part."""
    source = tmp_path / "in.safetensors"
    save_file({"conv": gaussian(4, 4, 2, 2), "fc.weight": gaussian(6, 4)}, source)
    given = {source.name}
    save_file({"conv.exp_avg": gaussian(4, 4, 2, 2)}, tmp_path / "adam.safetensors")
    given.add("adam.safetensors")
    out = tmp_path / "out.safetensors"
    arguments = {
        "reinit": [source, "-o", out, "--json", "--per-matrix", "--state",
                   tmp_path / "adam.safetensors", "--set", "conv:scale=one"],
        "analyze": [source],  # LAPACK's own libraries end the process, so no --spectrum
        "compare": [source, source],
        "presets": ["fire", "--json"],
    }[command]
    late_files = (set(), {out.name, "out.state.safetensors"})
    environment = {**os.environ, "LD_PRELOAD": str(FAIL_MODULE)}
    assert FAIL_MODULE.exists(), "build the tests first"
    for number in range(1, 5000):
        environment["FAIL_ALLOCATION"] = str(number)
        done = subprocess.run([FIRECTL, command, *arguments], env=environment, text=True,
                              capture_output=True, timeout=TIMEOUT_S, check=False)
        left = {path.name for path in tmp_path.iterdir()} - given
        failed = "allocation failed" in done.stderr
        assert done.returncode in (0, 1), f"allocation {number}: {done.stderr}"
        if done.returncode == 1:
            # The summary comes after the files are in place; nothing else may fail that late.
            late = "report could not be written in full" in done.stderr
            assert failed and left in (late_files if late else (set(),)), f"{number}: {left}"
            assert "firectl: " in done.stderr
        for name in left:
            (tmp_path / name).unlink()
        if not failed:
            return
    pytest.fail("no run got through")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_temporary_files(tmp_path, number):
    """The process is stopped once its first rows are out, in the middle of the work."""
    save_file({f"w{i:02}": gaussian(2048, 1100, seed=i) for i in range(24)},
              tmp_path / "in.safetensors")
    process = subprocess.Popen([FIRECTL, "reinit", tmp_path / "in.safetensors", "-o",
                                tmp_path / "out.safetensors", "--json"], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + number
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]


def test_a_passed_deadline_writes_nothing(net, tmp_path):
    done = run("reinit", net, "-o", tmp_path / "out.safetensors", "--deadline", "1e-9", code=1)
    assert "deadline" in done.stderr
    assert not (tmp_path / "out.safetensors").exists()


def long_work(tmp_path):
    """Minutes of computation on two matrices, and the arguments that ask for it."""
    save_file({"v": gaussian(1000, 1000), "w": gaussian(1000, 1000, seed=1)},
              tmp_path / "in.safetensors")
    return ["reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--set",
            "polynomial=cubic", "--set", "steps=1000", "--set", "compute=f64", "--json"]


def test_a_deadline_ends_what_is_being_computed(tmp_path):
    done = run(*long_work(tmp_path), "--deadline", "0.5", code=1)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row.get("reason") for row in rows] == ["not computed", "not computed", None]
    assert "deadline of 0.5 s" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]


def test_a_signal_ends_what_is_being_computed(tmp_path):
    """Its processor time tells when it is in the middle."""
    process = subprocess.Popen([FIRECTL, *long_work(tmp_path)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().split()[13:15])) < 100:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + signal.SIGINT
    assert json.loads(out.splitlines()[0])["reason"] == "not computed"
    assert "interrupted by signal 2" in err
    assert [p.name for p in tmp_path.iterdir()] == ["in.safetensors"]


# --- thresholds and looks -------------------------------------------------------------------------


def test_thresholds(net, tmp_path):
    run("reinit", net, "--dry-run", "--fail-if", "dfi_unscaled_after>1e-6")
    done = run("reinit", net, "-o", tmp_path / "out.safetensors", "--fail-if", "sfe>=0",
               "--fail-if", "dfi_unscaled_after<1", code=3)
    assert "fc1.weight: sfe" in done.stderr and "fc2.weight: dfi_unscaled_after" in done.stderr
    assert (tmp_path / "out.safetensors").exists()
    done = run("reinit", net, "--dry-run", "--fail-if", "dormant_ratio>0.5")
    assert "no tensor has a value" in done.stderr


def test_the_table_is_plain_without_a_terminal(net):
    done = run("reinit", net, "--dry-run")
    assert "\033" not in done.stdout + done.stderr
    assert "fc1.weight" in done.stdout and "projected" in done.stdout


def test_help_has_examples_and_the_version_is_told():
    for command in ("reinit", "analyze", "compare", "presets", "selftest"):
        text = run(command, "--help").stdout
        assert "Examples:" in text and f"firectl {command}" in text
    assert run("--version").stdout.startswith("firectl ")
    assert run("reinit", "--version").stdout == run("--version").stdout
    assert "reinit" in run("--help").stdout
