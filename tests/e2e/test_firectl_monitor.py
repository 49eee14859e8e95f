"""firectl's commands about a run's history, against a real daemon: report, runs, show, watch,
advise, export; and alerts with a real receiver of their webhook."""

import csv
import fcntl
import hashlib
import hmac
import http.server
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from concurrent import futures

import grpc
import numpy as np
import pytest
from daemon import FIRECTL, WAIT_S, daemon, fired, firectl, gaussian, load, save, start
from fire.v1 import monitor_pb2, monitor_pb2_grpc  # generated when daemon is imported

assert daemon and start  # fixtures, found by their names


def objects(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def ask(daemon, *arguments, **options):
    return firectl(*arguments, "--addr", daemon.address, **options)


def report_lines(daemon, run, lines, *flags, code=0):
    return ask(daemon, "report", "--run", run, *flags, "-", input="\n".join(lines) + "\n",
               code=code)


def failing_lines(points=40):
    """A layer whose DfI explodes while units fall silent, and one that is fine."""
    for step in range(0, 10 * points, 10):
        share = step / (10.0 * points)
        yield f"{step} fc1.weight dfi {70.0 * np.exp(5.0 * share):.6g}"
        yield f"{step} fc1.weight dormant_ratio {0.05 + 0.6 * share:.6g}"
        yield f"{step} fc2.weight dfi {70.0 + 20.0 * share:.6g}"
        yield f"{step} fc2.weight dormant_ratio 0.05"
        yield f"{step} - loss {2.0 - share:.6g}"


@pytest.fixture(scope="module")
def run(daemon):
    """A run with two layers; its id."""
    done = report_lines(daemon, "digits", failing_lines(), "--name", "the digits", "--framework",
                        "torch", "--label", "team=vision", "--json")
    assert objects(done) == [{"run": "digits", "added": 200, "replaced": 0}]
    return "digits"


def test_points_come_from_arguments_and_can_be_sent_again(daemon):
    words = ["report", "--run", "one", "--step", "7", "--layer", "fc", "dfi=1.5",
             "dormant_ratio=0.25"]
    assert objects(ask(daemon, *words, "--json")) == [{"run": "one", "added": 2, "replaced": 0}]
    again = objects(ask(daemon, *words, "--json"))[0]
    assert again["added"] == 0
    shown = objects(ask(daemon, "show", "one", "--json", "--statistic", "dfi"))
    assert [(one["layer"], one["steps"], one["mean"]) for one in shown] == [("fc", [7], [1.5])]


def test_lines_may_be_json(daemon):
    lines = [json.dumps({"step": step, "layer": "l", "statistic": "dfi", "value": step / 2})
             for step in range(3)] + ["# a comment", "", "5 l dfi 2.5"]
    assert "4 points added" in report_lines(daemon, "json-lines", lines).stdout


@pytest.mark.parametrize("line, told", [
    ("1 l dfi", "words"), ("x l dfi 1", "STEP"), ("1 l dfi nan", "finite"),
    ("{broken", "JSON"), ('{"step": 1}', "expected step"), ("-1 l dfi 1", "STEP")])
def test_a_bad_line_is_named_and_what_came_before_is_kept(daemon, line, told):
    name = "bad-" + hashlib.sha1(line.encode()).hexdigest()[:8]
    done = report_lines(daemon, name, ["1 l dfi 1", line, "2 l dfi 2"], code=1)
    assert "line 2" in done.stderr and told in done.stderr, done.stderr
    assert objects(ask(daemon, "show", name, "--json"))[0]["steps"] == [1]


@pytest.mark.parametrize("words, told", [
    (["dfi=1"], "--run"), (["--run", "r", "dfi=1"], "--step"), (["--run", "r", "--step", "1"],
                                                                "STATISTIC=VALUE"),
    (["--run", "r", "--step", "1", "dfi"], "STATISTIC=VALUE"),
    (["--run", "r", "--step", "1", "dfi=x"], "number"),
    (["--run", "r", "--step", "1", "--label", "x", "dfi=1"], "KEY=VALUE"),
    (["--run", "r", "--step", "-1", "dfi=1"], "whole number")])
def test_wrong_usage_of_report(daemon, words, told):
    assert told in ask(daemon, "report", *words, code=2).stderr


def test_what_the_daemon_refuses_has_its_code(daemon):
    """INVALID_ARGUMENT is 3, NOT_FOUND 5: the exit code is 64 more."""
    ask(daemon, "report", "--run", "r", "--step", "1", "DfI=1", code=67)
    for words in (["show", "nobody"], ["advise", "nobody"], ["export", "nobody"]):
        done = ask(daemon, *words, code=69)
        assert done.stdout == "" and "nobody" in done.stderr


def test_runs_lists_what_was_reported(daemon, run):
    found = {one["run"]: one for one in objects(ask(daemon, "runs", "--json"))}[run]
    assert found["name"] == "the digits" and found["framework"] == "torch"
    assert found["labels"] == {"team": "vision"}
    assert (found["first_step"], found["last_step"], found["layers"]) == (0, 390, 2)
    assert found["worst_layer"] == "fc1.weight"
    assert {"dfi", "dormant_ratio", "loss"} <= set(found["statistics"])
    assert [one["run"] for one in objects(ask(daemon, "runs", "--json", "--filter", "vision"))] \
        == [run]
    table = ask(daemon, "runs").stdout
    assert re.search(rf"^{run} .*fc1.weight$", table, re.M), table
    assert "no run has" in ask(daemon, "runs", "--filter", "no such thing").stderr


def test_show_draws_layers_and_the_whole_run(daemon, run):
    done = ask(daemon, "show", run, "--width", "100", environment={"LC_ALL": "C.UTF-8"})
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{run} (the digits): 2 layers, steps 0 to 390")
    first = next(line for line in lines if line.startswith("fc1.weight"))
    assert "▁" in first and "█" in first and all(len(line) <= 100 for line in lines)
    assert any(line.startswith("loss") for line in lines)
    assert "\033" not in done.stdout
    plain = ask(daemon, "show", run, environment={"LC_ALL": "C"}).stdout
    assert plain.isascii() and re.search(r"^fc1.weight .*@", plain, re.M), plain
    ranged = objects(ask(daemon, "show", run, "--json", "--layer", "fc2.weight", "--from", "100",
                         "--to", "200"))
    assert [one["layer"] for one in ranged if one["statistic"] == "dfi"] == ["fc2.weight"]
    steps = next(one for one in ranged if one["statistic"] == "dfi")["steps"]
    assert steps[0] == 100 and steps[-1] == 200


def on_terminal(words, columns=70, **environment):
    """What a command writes to a terminal of this width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    variables = {key: value for key, value in os.environ.items()
                 if not key.startswith("FIRED_") and key != "NO_COLOR"}
    process = subprocess.Popen([str(FIRECTL), *map(str, words)], stdout=follower, stderr=follower,
                               env=variables | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} |
                               environment)
    os.close(follower)
    text = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        text += piece
    os.close(leader)
    assert process.wait(WAIT_S) == 0, text
    return text.decode()


def test_colours_are_for_terminals_that_want_them(daemon, run):
    words = ["show", run, "--addr", daemon.address]
    coloured = on_terminal(words)
    assert "\033[48;5;" in coloured
    for line in (line for line in coloured.splitlines() if "\033" in line):
        assert len(re.sub(r"\033\[[0-9;]*m", "", line).rstrip()) <= 70, line
    assert "\033" not in on_terminal(words, NO_COLOR="1")
    assert "\033" not in on_terminal([*words, "--no-color"])
    assert "\033" not in on_terminal(words, TERM="dumb")


def test_advise_tells_the_failing_layer_from_the_other(daemon, run):
    answers = objects(ask(daemon, "advise", run, "--json"))
    layers = {one["layer"]: one for one in answers[:-1]}
    assert layers["fc1.weight"]["verdict"] == "reinit"
    assert layers["fc1.weight"]["preset"] == "fire" and layers["fc1.weight"]["reason"]
    assert 0 < layers["fc1.weight"]["since_step"] < 390
    assert layers["fc2.weight"]["verdict"] == "leave_it"
    assert answers[-1]["summary"] is True and "1 of 2" in answers[-1]["text"]
    assert ask(daemon, "advise", run, "--fail-if", "reinit", code=3).stdout
    ask(daemon, "advise", run, "--layer", "fc2.weight", "--fail-if", "watch")
    assert "reinit or watch" in ask(daemon, "advise", run, "--fail-if", "x", code=2).stderr
    assert re.search(r"^reinit +fc1.weight", ask(daemon, "advise", run).stdout, re.M)


def test_export_holds_every_point(daemon, run, tmp_path):
    expected = {}
    for line in failing_lines():
        step, layer, statistic, value = line.split()
        expected["" if layer == "-" else layer, statistic, int(step)] = float(value)
    ask(daemon, "export", run, "-o", tmp_path / "points.csv")
    with open(tmp_path / "points.csv", newline="", encoding="utf-8") as file:
        found = {(row["layer"], row["statistic"], int(row["step"])): float(row["value"])
                 for row in csv.DictReader(file) if row["statistic"] != "time_ms"}
    assert found == expected
    ask(daemon, "export", run, "-o", tmp_path / "points.json")
    document = json.loads((tmp_path / "points.json").read_text())
    assert {(one["layer"], one["statistic"], step): value for one in document["series"]
            for step, value in zip(one["steps"], one["values"])
            if one["statistic"] != "time_ms"} == expected
    assert set(os.listdir(tmp_path)) == {"points.csv", "points.json"}
    stdout = ask(daemon, "export", run, "--statistic", "loss", "--format", "csv").stdout
    assert stdout.count("\n") == 41
    assert "--format must be" in ask(daemon, "export", run, "-o", tmp_path / "x.png", code=2).stderr


def test_a_long_run_is_exported_whole(daemon, tmp_path):
    """More points than one answer may have cells: windows of steps are asked for."""
    steps = list(range(0, 60000, 7))
    report_lines(daemon, "long", [f"{step} l dfi {step % 97}" for step in steps])
    ask(daemon, "export", "long", "-o", tmp_path / "long.csv", "--statistic", "dfi")
    with open(tmp_path / "long.csv", newline="", encoding="utf-8") as file:
        found = [(int(row["step"]), float(row["value"])) for row in csv.DictReader(file)]
    assert found == [(step, step % 97) for step in steps]


def test_a_reinitialisation_is_seen(daemon, tmp_path):
    save(tmp_path / "in.safetensors", {"fc.weight": gaussian(24, 32)})
    ask(daemon, "reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors",
        "--arch", "none", "--spectrum", "--run", "rescued", "--step", "120")

    def recorded():
        done = subprocess.run([str(FIRECTL), "show", "rescued", "--json", "--addr",
                               daemon.address], capture_output=True, text=True, check=False,
                              timeout=WAIT_S)
        return [one for one in map(json.loads, done.stdout.splitlines()) if one.get("event")]

    daemon.wait_for(lambda: bool(recorded()), "the event of the reinitialisation")
    event = recorded()[0]
    assert (event["kind"], event["step"], event["layer"]) == ("reinit", 120, "fc.weight")
    assert event["values"]["dfi_after"] < event["values"]["dfi_before"]
    assert "reinit" in ask(daemon, "show", "rescued").stdout
    events = ask(daemon, "export", "rescued", "--events", "--format", "csv").stdout
    assert events.splitlines()[0] == "id,kind,time_ms,step,layer,text" and ",reinit," in events
    ask(daemon, "export", "rescued", "-o", tmp_path / "spectra.safetensors")
    spectra = {name: one.array() for name, one in load(tmp_path / "spectra.safetensors").items()}
    name = f"fc.weight.step120.event{event['id']}.spectrum_"
    assert set(spectra) == {name + "before", name + "after"}
    weights = gaussian(24, 32).array().astype(np.float64)
    np.testing.assert_allclose(spectra[name + "before"], np.linalg.svd(weights, compute_uv=False),
                               rtol=1e-5)
    assert np.ptp(spectra[name + "after"]) < 1e-4 * spectra[name + "after"][0]


class Spectra(monitor_pb2_grpc.MonitorServiceServicer):
    """A daemon that knows one run, whose one reinitialisation recorded its spectra."""

    def ListRuns(self, request, context):
        return monitor_pb2.ListRunsResponse(runs=[monitor_pb2.RunSummary(run=request.run)])

    def ListEvents(self, request, context):
        event = monitor_pb2.Event(id=7, kind=monitor_pb2.EVENT_KIND_REINIT, run=request.run,
                                  layer="fc.weight", step=120, spectrum_before=[3.0, 0.5],
                                  spectrum_after=[1.0, 1.0])
        plain = monitor_pb2.Event(id=6, kind=monitor_pb2.EVENT_KIND_REINIT, run=request.run)
        return monitor_pb2.ListEventsResponse(events=[] if request.before_id else [event, plain])


def test_spectra_are_exported_as_safetensors(tmp_path):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    monitor_pb2_grpc.add_MonitorServiceServicer_to_server(Spectra(), server)
    server.add_insecure_port(f"unix:{tmp_path / 's.sock'}")
    server.start()
    firectl("export", "r", "-o", tmp_path / "s.safetensors", "--addr",
            f"unix:{tmp_path / 's.sock'}")
    server.stop(None).wait(WAIT_S)
    spectra = {name: list(one.array()) for name, one in load(tmp_path / "s.safetensors").items()}
    assert spectra == {"fc.weight.step120.event7.spectrum_before": [3.0, 0.5],
                       "fc.weight.step120.event7.spectrum_after": [1.0, 1.0]}


def test_a_run_without_spectra_says_so(daemon, run, tmp_path):
    done = ask(daemon, "export", run, "-o", tmp_path / "s.safetensors", code=1)
    assert "spectra" in done.stderr and not (tmp_path / "s.safetensors").exists()


def test_watch_shows_what_comes(daemon):
    """Points reported after the watch began come as lines; it ends with 128 + SIGTERM's number."""
    report_lines(daemon, "live", ["0 l dfi 1"])
    process = subprocess.Popen([str(FIRECTL), "watch", "live", "--json", "--addr", daemon.address],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen, got = [], threading.Event()

    def read():
        for line in process.stdout:
            seen.append(json.loads(line))
            got.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    step = [0]

    def report():
        step[0] += 1
        report_lines(daemon, "live", [f"{step[0]} l dfi {step[0]}"])
        return got.is_set()

    daemon.wait_for(report, "a point in the watch")
    assert seen[0]["run"] == "live" and seen[0]["value"] == seen[0]["step"] > 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 128 + signal.SIGTERM, process.stderr.read()
    reader.join(WAIT_S)


def test_names_with_control_characters_are_refused(daemon):
    done = ask(daemon, "report", "--run", "evil", "--step", "1", "--layer", "evil \033[31m",
               "dfi=1", code=67)
    assert "control character" in done.stderr and "\033" not in done.stderr


@pytest.mark.parametrize("command", ["runs", "show", "watch", "advise", "export", "report"])
def test_help_has_examples(command):
    assert f"firectl {command}" in firectl(command, "--help").stdout.split("Examples:")[1]


@pytest.mark.parametrize("command", ["show", "advise", "export"])
def test_a_run_must_be_named(command):
    assert "needs the id of a run" in firectl(command, code=2).stderr


def test_nobody_there(tmp_path):
    done = firectl("runs", "--addr", f"unix:{tmp_path / 'none.sock'}", code=78)
    assert "no daemon serves" in done.stderr


# --- alerts ---------------------------------------------------------------------------------------


class Receiver:
    """An HTTP server that answers with the codes it was given, then with 200."""

    def __init__(self, codes=()):
        self.codes, self.deliveries, self.changed = list(codes), [], threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.changed:
                    code = outer.codes.pop(0) if outer.codes else 200
                    outer.deliveries.append((code, dict(self.headers), body))
                    outer.changed.notify_all()
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def accepted(self):
        return [json.loads(body) for code, _, body in self.deliveries if code == 200]

    def wait(self, wanted):
        with self.changed:
            assert self.changed.wait_for(lambda: wanted(self.accepted()), WAIT_S), self.deliveries

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver():
    made = Receiver(codes=[503])
    yield made
    made.close()


RULES = """
alerts:
  - {{ name: silent-units, run: "a*", layer: "fc*", statistic: dormant_ratio, op: ">",
       value: {limit}, hold: 0.3 }}
  - {{ name: loss-rises, layer: "", statistic: loss, kind: slope, value: 0.01, window: 100 }}
  - {{ name: gone, layer: "", statistic: heartbeat, kind: no_data, window: 0.5 }}
alert_webhook: {url}
alert_secret_file: {secret}
"""


def test_an_alert_goes_from_point_to_webhook(start, receiver, tmp_path):
    """Pending, firing and ok arrive signed and in order, the first after a 503; the history and the
    metrics say the same; a reload ends what its rule no longer says."""
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    daemon = start(config=RULES.format(limit=0.3, url=receiver.url, secret=secret))
    report_lines(daemon, "a-run", ["1 fc1 dormant_ratio 0.1", "1 conv dormant_ratio 0.9"])
    report_lines(daemon, "b-run", ["1 fc1 dormant_ratio 0.9"])
    report_lines(daemon, "a-run", ["2 fc1 dormant_ratio 0.5"])
    receiver.wait(lambda got: len(got) >= 2)
    report_lines(daemon, "a-run", ["3 fc1 dormant_ratio 0.2"])
    receiver.wait(lambda got: len(got) >= 3)
    states = [(one["rule"], one["run"], one["layer"], one["state"]) for one in receiver.accepted()]
    assert states == [("silent-units", "a-run", "fc1", state)
                      for state in ("pending", "firing", "ok")]
    first = receiver.accepted()[0]
    assert first["value"] == 0.5 and first["threshold"] == 0.3 and first["step"] == 2
    ids = [headers["X-Fired-Delivery"] for _, headers, _ in receiver.deliveries]
    assert ids == ["1", "1", "2", "3"]
    for _, headers, body in receiver.deliveries:
        signed = headers["X-Fired-Timestamp"].encode() + b"." + body
        wanted = hmac.new(b"open sesame", signed, hashlib.sha256).hexdigest()
        assert headers["X-Fired-Signature"] == f"sha256={wanted}"

    def states_stored():
        events = objects(ask(daemon, "export", "a-run", "--events", "--format", "json"))
        return [one["attributes"]["state"] for one in events[0]["events"]
                if one["kind"] == "alert"]

    daemon.wait_for(lambda: states_stored() == ["ok", "firing", "pending"], "three events")
    assert daemon.metrics()['fired_alert_changes_total{rule="silent-units",state="firing"}'] == 1

    report_lines(daemon, "a-run", ["4 fc1 dormant_ratio 0.5"])
    daemon.wait_for(lambda: daemon.counter("fired_alerts_firing") == 1, "a firing alert")
    shown = {one["run"]: one for one in objects(ask(daemon, "runs", "--json"))}
    daemon.wait_for(lambda: {one["run"]: one for one in objects(ask(daemon, "runs", "--json"))}
                    ["a-run"]["alerts_firing"] == 1, f"an alert in the list: {shown}")
    daemon.config.write_text(RULES.format(limit=0.8, url=receiver.url, secret=secret))
    daemon.signal(signal.SIGHUP)
    daemon.wait_event("reloaded")
    daemon.wait_for(lambda: daemon.counter("fired_alerts_firing") == 0, "the end of the alert")


def test_slopes_and_silence_alert_too(start, receiver, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    daemon = start(config=RULES.format(limit=0.3, url=receiver.url, secret=secret))
    report_lines(daemon, "r", [f"{step} - loss {0.5 * step}" for step in range(5)] +
                 ["1 - heartbeat 1"])
    receiver.wait(lambda got: {("loss-rises", "firing"), ("gone", "firing")} <=
                  {(one["rule"], one["state"]) for one in got})
    slope = next(one for one in receiver.accepted() if one["rule"] == "loss-rises")
    assert abs(slope["value"] - 0.5) < 1e-9


def test_alerts_outlive_a_restart(start, receiver, tmp_path):
    """What fires goes on firing, and nobody is told again; the next good point ends it. An alert
    whose rule is gone by then ends at the start."""
    rule = """
  - {{ name: {name}, layer: "fc*", statistic: dormant_ratio, value: 0.3 }}"""
    rules = "alerts:" + rule.format(name="high") + rule.format(name="other")
    folder = tmp_path / "d"
    folder.mkdir()
    one = start(folder=folder, config=f"{rules}\nalert_webhook: {receiver.url}\n")
    report_lines(one, "r", ["1 fc1 dormant_ratio 0.5"])
    receiver.wait(lambda got: len(got) >= 4)
    assert sorted((each["rule"], each["state"]) for each in receiver.accepted()) == [
        (name, state) for name in ("high", "other") for state in ("firing", "pending")]
    assert one.stop() == 0, one.text()

    rules = "alerts:" + rule.format(name="high")
    again = start(folder=folder, config=f"{rules}\nalert_webhook: {receiver.url}\n")
    receiver.wait(lambda got: len(got) >= 5)
    assert again.counter("fired_alerts_firing") == 1
    run = objects(ask(again, "runs", "--json"))[0]
    again.wait_for(lambda: objects(ask(again, "runs", "--json"))[0]["alerts_firing"] == 1,
                   f"one alert of the run: {run}")
    report_lines(again, "r", ["2 fc1 dormant_ratio 0.6"])  # still high, which is no news
    report_lines(again, "r", ["3 fc1 dormant_ratio 0.1"])
    receiver.wait(lambda got: len(got) >= 6)
    news = [(each["rule"], each["state"], each["before"], each["step"])
            for each in receiver.accepted()[4:]]
    assert news == [("other", "ok", "firing", 0), ("high", "ok", "firing", 3)]
    again.wait_for(lambda: objects(ask(again, "runs", "--json"))[0]["alerts_firing"] == 0,
                   "an end of the alert in the history")
    assert again.counter("fired_alerts_firing") == 0


def test_a_silence_that_began_before_a_restart_is_told(start, receiver, tmp_path):
    """A run that reported to the daemon before, and does not come back, alerts."""
    rules = """
alerts:
  - {{ name: gone, layer: "", statistic: heartbeat, kind: no_data, window: {window} }}
alert_webhook: {url}
"""
    folder = tmp_path / "d"
    folder.mkdir()
    one = start(folder=folder, config=rules.format(window=3600, url=receiver.url))
    report_lines(one, "r", ["1 - heartbeat 1"])
    assert one.stop() == 0, one.text()
    again = start(folder=folder, config=rules.format(window=0.5, url=receiver.url))
    receiver.wait(lambda got: len(got) >= 2)
    assert [(each["rule"], each["run"], each["state"]) for each in receiver.accepted()] == [
        ("gone", "r", "pending"), ("gone", "r", "firing")]
    again.wait_for(lambda: objects(ask(again, "runs", "--json"))[0]["alerts_firing"] == 1,
                   "a firing alert of the run")


@pytest.mark.parametrize("entry, told", [
    ("{ name: a, statistic: dfi }", "value"), ("{ name: a b, statistic: dfi, value: 1 }", "name"),
    ("{ name: a, statistic: dfi, value: 1, kind: jump }", "threshold, slope or no_data")])
def test_bad_alerts_are_refused_at_start(tmp_path, entry, told):
    (tmp_path / "fired.yaml").write_text(f"alerts:\n  - {entry}\n")
    done = fired("--config", tmp_path / "fired.yaml", "--check-config", code=2)
    assert told in done.stderr and "fired.yaml" in done.stderr
