"""The history: what is acknowledged is there after kill -9 and there once; a store that is full,
locked, damaged or gone refuses reports, leaves Reinit alone, says so and comes back by itself."""

import os
import random
import resource
import signal
import sqlite3
import sys
import threading
import time

import grpc
import numpy as np
import pytest
from build import on_gpu
from daemon import (ROOT, WAIT_S, daemon, gaussian, header, health_pb2, refused, reinit_pb2,
                    request, start, stream_messages, tensor_pb2)
from fire.v1 import monitor_pb2, monitor_pb2_grpc

sys.path.insert(0, str(ROOT / "tests" / "python"))
from postgres import MISSING, Postgres, programs  # noqa: E402

assert daemon and start  # fixtures, found by their names

KILLS = 100 if os.environ.get("FIRED_TEST_FULL") else 8
LAYERS = 20
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def monitor(one):
    return monitor_pb2_grpc.MonitorServiceStub(one.channel())


def series(layer, steps, values=None, statistic="dfi"):
    values = [float(step) for step in steps] if values is None else values
    return monitor_pb2.Series(layer=layer, statistic=statistic, steps=steps, values=values)


def report(one, run, *parts, **fields):
    return monitor(one).Report(monitor_pb2.ReportRequest(run=run, series=parts, **fields),
                               timeout=WAIT_S)


def query(one, run):
    """{(layer, statistic): {step: value}} of everything, as it was sent. What does not fit one
    answer so is asked for in halves."""
    last, = [each.last_step for each in monitor(one).ListRuns(
        monitor_pb2.ListRunsRequest(), timeout=WAIT_S).runs if each.run == run]
    points, ranges = {}, [(0, last)]
    while ranges:
        low, high = ranges.pop()
        answer = monitor(one).Query(monitor_pb2.QueryRequest(
            run=run, resolution=4096, step_min=low, step_max=high), timeout=WAIT_S)
        if answer.cell_steps > 1:
            middle = (low + high) // 2
            ranges += [(low, middle), (middle + 1, high)]
            continue
        for cells in answer.series:
            known = points.setdefault((cells.layer, cells.statistic), {})
            assert len(set(cells.steps)) == len(cells.steps), "a point is there twice"
            assert not known.keys() & set(cells.steps), "a point is in both halves"
            known.update(zip(cells.steps, cells.mean))
    return points


def health(one, service):
    return one.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S).status


def wait_up(one, up=True):
    wanted = SERVING if up else NOT_SERVING
    one.wait_for(lambda: health(one, "fire.v1.MonitorService") == wanted, f"history up={up}")


# --- the first moments ----------------------------------------------------------------------------


def before_ready(one):
    """Events of the log until the daemon said it is ready."""
    one.wait_event("ready")
    events = [line["event"] for line in one.log()]
    return events[:events.index("ready")]


def test_ready_means_that_the_history_is(start):
    """Whoever waits for readiness is answered at once, however slowly the store opens."""
    one = start()
    assert "history_up" in before_ready(one)
    assert health(one, "fire.v1.MonitorService") == SERVING
    assert report(one, "first", series("a", [1])).points_added == 1
    assert query(one, "first") == {("a", "dfi"): {1: 1.0}}


def test_a_store_that_cannot_be_opened_keeps_nobody_from_being_ready(tmp_path, start):
    (tmp_path / "file").write_text("no folder")
    one = start("--history-file", tmp_path / "file" / "history.sqlite")
    assert "history_down" in before_ready(one)
    assert one.reinit.Reinit(request({"w": gaussian(8, 8)}), timeout=WAIT_S).results


def test_devices_are_events_of_the_daemon(start):
    """They belong to no run, and every tenant sees them."""
    one = start()
    asked = monitor_pb2.ListEventsRequest(kind=monitor_pb2.EVENT_KIND_DEVICE)

    def events(**options):
        return monitor(one).ListEvents(asked, timeout=WAIT_S, **options).events

    one.wait_for(lambda: bool(events()), "an event of the device")
    for found in (events(), events(metadata=[("x-fired-tenant", "stranger")])):
        if on_gpu():
            assert {event.attributes["backend"] for event in found} == {"cuda", "cpu"}
            continue
        assert [(event.run, event.attributes["backend"], event.attributes["device"],
                 event.attributes["state"]) for event in found] == [("", "cpu", "0", "in_service")]
        assert "cpu device 0" in found[0].text


# --- nothing lost ---------------------------------------------------------------------------------


class Trainer(threading.Thread):
    """Reports step after step, some of them twice, until the daemon is gone. Remembers what was
    acknowledged, and what may be there although it was not."""

    def __init__(self, one, run, first, seed):
        super().__init__(daemon=True)
        self.one, self.run_name, self.step = one, run, first
        self.random = random.Random(seed)
        self.acknowledged, self.sent = {}, {}

    def run(self):
        channel = self.one.new_channel()
        stub = monitor_pb2_grpc.MonitorServiceStub(channel)
        while True:
            steps = list(range(self.step, self.step + self.random.randrange(1, 5)))
            if self.random.random() < 0.2 and self.step > 5:
                steps = [step - 5 for step in steps]  # again, with new values
            parts = []
            for layer in range(LAYERS):
                values = [self.random.random() for _ in steps]
                parts.append(series(f"layer-{layer}", steps, values))
                for step, value in zip(steps, values):
                    self.sent.setdefault((f"layer-{layer}", step), []).append(value)
            try:
                stub.Report(monitor_pb2.ReportRequest(run=self.run_name, series=parts),
                            timeout=WAIT_S)
            except grpc.RpcError:
                channel.close()
                return
            for part in parts:
                for step, value in zip(part.steps, part.values):
                    self.acknowledged[part.layer, step] = value
            self.step = max(self.step, steps[-1] + 1)


def check_trainer(one, trainer, known):
    """What was acknowledged is there, with the last value that was sent; nothing is there that was
    never sent, by this trainer or by one before it."""
    points = query(one, trainer.run_name)
    for (layer, step), value in trainer.acknowledged.items():
        got = points[layer, "dfi"].get(step)
        # A report whose answer was lost may have been written over it.
        later = trainer.sent[layer, step]
        assert got == value or got in later[later.index(value):], (layer, step)
    for (layer, _), values in points.items():
        for step, value in values.items():
            assert value in known[layer, step], (layer, step)


def test_what_is_acknowledged_survives_kill(tmp_path, start):
    seeds = random.Random(20)
    known, step = {}, 0
    for kill in range(KILLS):
        one = start(folder=tmp_path)
        run = f"run-{kill // 20}"
        if kill % 20 == 0:
            known, step = {}, 0
        trainer = Trainer(one, run, step, seeds.random())
        trainer.start()
        time.sleep(0.05 + 0.4 * seeds.random())  # a random moment of its work
        one.kill()
        trainer.join(WAIT_S)
        assert not trainer.is_alive()
        again = start(folder=tmp_path)
        for key, values in trainer.sent.items():
            known.setdefault(key, []).extend(values)
        if trainer.acknowledged:
            check_trainer(again, trainer, known)
        again.kill()
        step = trainer.step


# --- recording ------------------------------------------------------------------------------------


def run_of(one, run):
    """The run's summary once it is there: recordings are not waited for by their callers."""
    found = []

    def there():
        answer = monitor(one).ListRuns(monitor_pb2.ListRunsRequest(), timeout=WAIT_S)
        found[:] = [each for each in answer.runs if each.run == run and each.points]
        return bool(found)
    one.wait_for(there, f"run {run}")
    return found[0]


def test_reinit_and_analyze_record_themselves(daemon):
    tensors = {"a": gaussian(64, 32), "b": gaussian(48, 48, seed=1)}
    daemon.reinit.Analyze(request(tensors, kind=reinit_pb2.AnalyzeRequest, run="recorded", step=3),
                          timeout=WAIT_S)
    answer = daemon.reinit.Reinit(request(tensors, run="recorded", step=7), timeout=WAIT_S)
    daemon.wait_for(lambda: run_of(daemon, "recorded").last_step == 7, "the second recording")
    points = query(daemon, "recorded")
    assert set(points["a", "dfi"]) == {3, 7}
    assert points["a", "dfi"][3] == pytest.approx(points["a", "dfi"][7])
    assert points["a", "dfi"][7] == answer.results[0].result.statistics["dfi_before"]
    assert ("b", "norm") in points and ("b", "stable_rank") in points
    events = monitor(daemon).ListEvents(monitor_pb2.ListEventsRequest(run="recorded"),
                                        timeout=WAIT_S).events
    assert {event.layer for event in events} == {"a", "b"}
    event = next(event for event in events if event.layer == "a")
    statistics = answer.results[0].result.statistics
    assert event.kind == monitor_pb2.EVENT_KIND_REINIT and event.step == 7
    assert event.attributes["preset"] == "fire" and event.attributes["tenant"] == "local"
    assert event.attributes["method"] == answer.results[0].result.method
    for name in ("scale", "sfe", "dfi_before", "dfi_after"):
        assert event.values[name] == statistics[name]
    assert event.values["steps"] == answer.results[0].result.steps
    summary = run_of(daemon, "recorded")
    assert summary.layers == 2 and summary.last_event.run == "recorded"


def spectrum_of(one, layer, events):
    """The singular values that a recording has, and those float64 finds."""
    matrices = one if one.ndim == 3 else [one]
    found = np.sort(np.concatenate([np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
                                    for matrix in matrices]))[::-1]
    places = np.round(np.linspace(0, len(found) - 1, min(len(found), 512))).astype(int)
    event = next(event for event in events if event.layer == layer)
    return np.array(event.spectrum_before), np.array(event.spectrum_after), found[places]


def test_spectra_are_recorded_when_asked_for(daemon):
    """Of a matrix, of one with more singular values than are kept, and of a tensor that is cut into
    three; neither an analysis nor a call without the spectrum has any."""
    tensors = {"a": gaussian(64, 32), "large": gaussian(600, 600, seed=1),
               "cut": gaussian(96, 32, seed=2)}
    cut = [(header(name, one, {"split": 3} if name == "cut" else None), one)
           for name, one in tensors.items()]
    answer = daemon.reinit.Reinit(request(cut, {"scale": "one"}, run="spectra", step=4,
                                          statistics=tensor_pb2.STATISTICS_LEVEL_SPECTRUM),
                                  timeout=WAIT_S)
    daemon.reinit.Reinit(request({"plain": gaussian(8, 8)}, run="spectra", step=5), timeout=WAIT_S)
    daemon.wait_for(lambda: run_of(daemon, "spectra").layers == 4, "the recordings")
    events = monitor(daemon).ListEvents(monitor_pb2.ListEventsRequest(run="spectra"),
                                        timeout=WAIT_S).events
    assert len(events) == 4 and len(answer.results) == 3
    for name, one in tensors.items():
        array = one.array()
        before, after, wanted = spectrum_of(
            array.reshape(3, 32, 32) if name == "cut" else array, name, events)
        np.testing.assert_allclose(before, wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(after, np.ones(len(wanted)), rtol=1e-4)
    assert not next(event for event in events if event.layer == "plain").spectrum_before
    answer = monitor(daemon).Query(monitor_pb2.QueryRequest(run="spectra"), timeout=WAIT_S)
    assert len(answer.events) == 4
    assert not any(event.spectrum_before or event.spectrum_after for event in answer.events)


def test_streams_record_themselves(daemon):
    tensors = [(header(name, one), one) for name, one in (("a", gaussian(64, 32)),
                                                          ("b", gaussian(48, 48, seed=1)))]
    list(daemon.reinit.ReinitStream(iter(stream_messages(tensors, run="streamed", step=1)),
                                    timeout=WAIT_S))
    daemon.wait_for(lambda: run_of(daemon, "streamed").layers == 2, "both layers")
    events = monitor(daemon).ListEvents(monitor_pb2.ListEventsRequest(run="streamed"),
                                        timeout=WAIT_S).events
    assert len(events) == 2


def test_watchers_hear_of_points_and_events(daemon):
    watch = monitor(daemon).Watch(monitor_pb2.WatchRequest(run="watched"), timeout=WAIT_S)
    other = monitor(daemon).Watch(monitor_pb2.WatchRequest(events_only=True), timeout=WAIT_S,
                                  metadata=[("x-fired-tenant", "stranger")])
    # A watcher is there once its call is: until then the same report is sent again.
    seen, done = [], threading.Event()

    def listen():
        for message in watch:
            seen.append(message)
            done.set()
            return
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    step = 0
    while not done.wait(0.05):
        assert step < WAIT_S * 20
        report(daemon, "unwatched", series("layer", [step]))
        report(daemon, "watched", series("<b>layer</b>", [step]))
        step += 1
    listener.join(WAIT_S)
    assert seen[0].run == "watched" and seen[0].series[0].layer == "<b>layer</b>"
    watch.cancel()
    other.cancel()


def test_tenants_are_apart(daemon):
    stub = monitor(daemon)
    for tenant in ("alice", "bob"):
        stub.Report(monitor_pb2.ReportRequest(run="mine", series=[
            series("layer", [1], [float(len(tenant))])]), timeout=WAIT_S,
            metadata=[("x-fired-tenant", tenant)])
    answer = stub.Query(monitor_pb2.QueryRequest(run="mine"), timeout=WAIT_S,
                        metadata=[("x-fired-tenant", "bob")])
    assert list(answer.series[0].mean) == [3.0]
    assert refused(stub.Query, monitor_pb2.QueryRequest(run="mine"),
                   metadata=[("x-fired-tenant", "eve")]).code == grpc.StatusCode.NOT_FOUND


# --- bad input ------------------------------------------------------------------------------------

BAD_REPORTS = {
    "no run": (dict(run=""), "run"),
    "long run": (dict(run="r" * 129), "run"),
    "controls": (dict(run="a\nb"), "run"),
    "NUL": (dict(run="a\0b"), ""),
    "lengths": (dict(run="r", series=[monitor_pb2.Series(layer="l", statistic="dfi", steps=[1, 2],
                                                         values=[1.0])]), "series[0]"),
    "step": (dict(run="r", series=[series("l", [-1])]), "series[0]"),
    "infinite": (dict(run="r", series=[series("l", [1], [float("inf")])]), "series[0]"),
    "nan": (dict(run="r", series=[series("l", [1], [float("nan")])]), "series[0]"),
    "statistic": (dict(run="r", series=[series("l", [1], statistic="DfI")]), "series[0]"),
    "reserved": (dict(run="r", series=[series("l", [1], statistic="time_ms")]), "series[0]"),
    "long layer": (dict(run="r", series=[series("l" * 257, [1])]), "series[0]"),
    "many points": (dict(run="r", series=[series("l", range(65537))]), "series"),
    "labels": (dict(run="r", info=monitor_pb2.RunInfo(labels={str(i): "" for i in range(33)})),
               "info.labels"),
}


@pytest.mark.parametrize("name", BAD_REPORTS)
def test_bad_reports_are_refused_by_name(daemon, name):
    fields, field = BAD_REPORTS[name]
    why = refused(monitor(daemon).Report, monitor_pb2.ReportRequest(**fields))
    assert why.code == grpc.StatusCode.INVALID_ARGUMENT
    assert why.field == field


def test_bad_questions_are_refused_by_name(daemon):
    report(daemon, "asked", series("layer", [1]))
    stub = monitor(daemon)
    for question, code, words in (
            (monitor_pb2.QueryRequest(run="nobody"), grpc.StatusCode.NOT_FOUND, "nobody"),
            (monitor_pb2.QueryRequest(run="asked", layers=["x"]), grpc.StatusCode.NOT_FOUND,
             "it has: layer"),
            (monitor_pb2.QueryRequest(run="asked", statistics=["x"]), grpc.StatusCode.NOT_FOUND,
             "it has: dfi"),
            (monitor_pb2.QueryRequest(run="asked", resolution=5000),
             grpc.StatusCode.INVALID_ARGUMENT, "4096"),
            (monitor_pb2.QueryRequest(run="asked", step_min=5, step_max=4),
             grpc.StatusCode.INVALID_ARGUMENT, "before")):
        why = refused(stub.Query, question)
        assert why.code == code and words in why.message, why
    why = refused(stub.ListRuns, monitor_pb2.ListRunsRequest(page="nonsense"))
    assert why.code == grpc.StatusCode.INVALID_ARGUMENT


def test_too_large_a_question_names_what_would_fit(daemon):
    steps = list(range(1000))
    for first in range(0, 700, 50):
        report(daemon, "large", *(series(f"layer-{i}", steps) for i in range(first, first + 50)))
    why = refused(monitor(daemon).Query, monitor_pb2.QueryRequest(run="large", resolution=1000))
    assert why.code == grpc.StatusCode.INVALID_ARGUMENT and why.field == "resolution"
    fits = int(why.message.split("at most ")[1].split(",")[0])
    answer = monitor(daemon).Query(monitor_pb2.QueryRequest(run="large", resolution=fits),
                                   timeout=WAIT_S)
    assert len(answer.series) == 700


def test_history_can_be_off(start):
    one = start("--history", "off")
    why = refused(monitor(one).ListRuns, monitor_pb2.ListRunsRequest())
    assert why.code == grpc.StatusCode.NOT_FOUND and "history" in why.message
    one.reinit.Reinit(request({"a": gaussian(8, 8)}, run="r"), timeout=WAIT_S)


# --- a store that fails ---------------------------------------------------------------------------


def check_down(one, run):
    """Reports are refused, Reinit goes on, health says so."""
    why = None
    while not why:  # the first ones may have been written before it broke
        try:
            report(one, run, series("layer", [int(time.time() * 1e6)]))
        except grpc.RpcError as error:
            why = error
    assert why.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, why
    wait_up(one, up=False)
    assert health(one, "") == SERVING
    assert one.http("/healthz") == (200, "degraded: history\n")
    assert one.metrics()["fired_history_up"] == 0
    one.reinit.Reinit(request({"kept": gaussian(16, 16)}, run=run, step=9), timeout=WAIT_S)
    assert refused(monitor(one).Report, monitor_pb2.ReportRequest(
        run=run, series=[series("layer", [1])])).retry_s > 0


def check_back(one, run):
    """It works again by itself, says so, and has what Reinit recorded meanwhile."""
    wait_up(one)
    report(one, run, series("layer", [2]))
    assert one.http("/healthz") == (200, "ok\n")
    one.wait_for(lambda: ("kept", "dfi") in query(one, run), "what Reinit recorded")
    one.wait_for(lambda: any(event.kind == monitor_pb2.EVENT_KIND_STORE for event in monitor(
        one).ListEvents(monitor_pb2.ListEventsRequest(), timeout=WAIT_S).events), "an event of it")


def test_a_full_disk(start):
    one = start()
    report(one, "run", series("layer", [1]))
    pid, hard = one.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
    check_down(one, "run")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    check_back(one, "run")
    assert query(one, "run")["layer", "dfi"][1] == 1.0


def test_a_locked_database(tmp_path, start):
    one = start()
    report(one, "run", series("layer", [1]))
    holder = sqlite3.connect(tmp_path / "state" / "history.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    check_down(one, "run")
    holder.execute("ROLLBACK")
    holder.close()
    check_back(one, "run")


def test_a_damaged_database_is_set_aside(tmp_path, start):
    one = start()
    report(one, "run", series("layer", [1]))
    assert one.stop() == 0
    file = tmp_path / "state" / "history.sqlite"
    with file.open("r+b") as damaged:
        damaged.write(b"no database any more" * 500)
    again = start()
    wait_up(again)
    report(again, "new", series("layer", [1]))
    assert list(file.parent.glob("history.sqlite.corrupt-*"))
    assert query(again, "new")["layer", "dfi"] == {1: 1.0}


@pytest.fixture
def postgres():
    if not programs():
        pytest.skip(MISSING)
    made = Postgres().start()
    yield made
    made.close()


def test_a_postgres_that_goes_away(start, postgres):
    one = start("--history", "postgres", "--history-url", postgres.url)
    report(one, "run", series("layer", [1]))
    assert query(one, "run")["layer", "dfi"] == {1: 1.0}
    postgres.stop()
    check_down(one, "run")
    postgres.start()
    check_back(one, "run")
    assert query(one, "run")["layer", "dfi"][1] == 1.0


def test_a_silent_postgres_keeps_nobody_from_stopping(start, postgres):
    one = start("--history", "postgres", "--history-url", postgres.url)
    report(one, "run", series("layer", [1]))
    stopped = postgres.processes()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        one.reinit.Reinit(request({"kept": gaussian(16, 16)}, run="run", step=9), timeout=WAIT_S)
        assert one.stop() == 0
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def test_two_daemons_share_a_postgres(tmp_path, start, postgres):
    both = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        both.append(start("--history", "postgres", "--history-url", postgres.url,
                          folder=tmp_path / name))
    for step in range(20):
        assert report(both[step % 2], "run", series("layer", [step])).points_added == 1
        assert report(both[(step + 1) % 2], "run", series("layer", [step])).points_replaced == 1
    for one in both:
        assert query(one, "run")["layer", "dfi"] == {step: float(step) for step in range(20)}
