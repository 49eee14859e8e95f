"""deploy/prometheus and deploy/grafana: valid, and about metrics that the daemon has."""

import json
import re
import subprocess

import pytest
from daemon import ROOT, WAIT_S, daemon

assert daemon  # a fixture, found by its name

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana" / "fired.json"
NAME = re.compile(r"\bfired_[a-z0-9_]+")
KINDS = ("_bucket", "_sum", "_count")


def expressions():
    """Every expression of the rules and of the board, with where it is from."""
    rules = (PROMETHEUS / "rules.yml").read_text()
    yield "rules.yml", rules
    for panel in json.loads(GRAFANA.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize("command", [("check", "config", "prometheus.yml"),
                                     ("check", "rules", "rules.yml"),
                                     ("test", "rules", "rules_test.yml")])
def test_promtool_agrees(command):
    done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True,
                          timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_that_is_named_exists(daemon):
    code, text = daemon.http("/metrics")
    assert code == 200
    families = set(re.findall(r"(?m)^# TYPE (\S+) ", text))
    named = set()
    for where, expression in expressions():
        for name in NAME.findall(expression):
            base = next((name.removesuffix(kind) for kind in KINDS
                         if name.endswith(kind) and name.removesuffix(kind) in families), name)
            assert base in families, f"{where}: {name}"
            named.add(base)
    assert len(named) > 10


def test_no_metric_has_a_label_for_runs_or_layers(daemon):
    """Those are history, not metrics: there are too many."""
    _, text = daemon.http("/metrics")
    assert not re.search(r'[{,](run|layer|step)="', text)
    for where, expression in expressions():
        assert not re.search(r"\b(run|layer)\s*=", expression), where


def test_the_board_is_whole():
    board = json.loads(GRAFANA.read_text())
    assert board["uid"] and board["title"] and board["panels"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and place["h"] > 0, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert all(target["expr"] for target in panel["targets"])
