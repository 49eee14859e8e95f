"""Running a daemon: settings, reload, logs, metrics, locks, drain, systemd, firectl's commands."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import grpc
import pytest
from build import on_gpu
from daemon import (BUILD, FIRECTL, FIRED, ROOT, WAIT_S, Feed, admin_pb2, begin, chunks, collect,
                    daemon, fired, firectl, gaussian, header, health_pb2, refused, reinit_pb2,
                    request, save, set_header, start)

assert daemon and start  # fixtures, found by their names

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def project(one, **options):
    return one.reinit.Reinit(request({"w": gaussian(32, 16)}), timeout=WAIT_S, **options)


# --- settings -------------------------------------------------------------------------------------


def settings(text):
    """name: value of every line of --print-config that is no comment."""
    return dict(re.findall(r"^([a-z_]+): *(.*?)(?: +#.*)?$", text, re.M))


def test_the_file_in_systemds_folder_is_read_unless_another_is_named(tmp_path):
    (tmp_path / "fired.yaml").write_text("idle_ms_max: 12345\n")
    (tmp_path / "other.yaml").write_text("idle_ms_max: 54321\n")
    folder = {"CONFIGURATION_DIRECTORY": f"{tmp_path}:/etc/more"}
    assert settings(fired("--print-config", environment=folder).stdout)["idle_ms_max"] == "12345"
    other = fired("--print-config", "--config", tmp_path / "other.yaml", environment=folder)
    assert settings(other.stdout)["idle_ms_max"] == "54321"
    (tmp_path / "fired.yaml").write_text("nonsense: 1\n")
    assert fired("--check-config", environment=folder, code=2).stderr.count("nonsense") == 1
    (tmp_path / "fired.yaml").unlink()
    fired("--check-config", environment=folder)


def test_firectls_variables_are_no_settings(tmp_path):
    mine = {"FIRED_ADDR": "unix:/x", "FIRED_TOKEN": "t", "FIRED_DELAY": "1"}
    warned = fired("--check-config", environment=mine).stderr
    assert "FIRED_ADDR" not in warned and "FIRED_TOKEN" not in warned
    assert "FIRED_DELAY_US" in warned  # what is one letter away from a setting still is told


@pytest.mark.parametrize("action", ["--print-config", "--version", "--check-config"])
def test_what_cannot_be_printed_is_a_failure(action):
    with open("/dev/full", "w") as full:
        done = subprocess.run([FIRED, action], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "could not be written" in done.stderr


def test_every_setting_is_printed_with_its_origin_and_read_back(tmp_path):
    first = fired("--print-config", "--idle-ms-max", "12345",
                  environment={"FIRED_DELAY_US": "777"}).stdout
    assert settings(first)["idle_ms_max"].startswith("12345")
    assert settings(first)["delay_us"].startswith("777")
    assert re.search(r"idle_ms_max.*flag|flag.*\n.*idle_ms_max", first), first
    assert re.search(r"delay_us.*FIRED_DELAY_US|FIRED_DELAY_US.*\n.*delay_us", first), first
    (tmp_path / "again.yaml").write_text(first)
    again = fired("--config", tmp_path / "again.yaml", "--print-config").stdout
    for name, value in settings(first).items():
        assert settings(again)[name] == value, name
    assert "again.yaml" in again


def test_file_then_environment_then_flag(tmp_path):
    file = tmp_path / "f.yaml"
    file.write_text("delay_us: 100\nidle_ms_max: 2000\ncalls_max: 11\n")
    got = settings(fired("--config", file, "--print-config", "--delay-us", "300",
                         environment={"FIRED_DELAY_US": "200", "FIRED_IDLE_MS_MAX": "3000"}).stdout)
    assert got["delay_us"].startswith("300") and got["idle_ms_max"].startswith("3000")
    assert got["calls_max"].startswith("11")


def test_check_config_says_whether_it_would_start(tmp_path):
    file = tmp_path / "f.yaml"
    file.write_text("listen: [\"127.0.0.1:0\"]\n")
    fired("--config", file, "--check-config")
    file.write_text("listen: [\"0.0.0.0:0\"]\n")
    done = fired("--config", file, "--check-config", code=2)
    assert "TLS" in done.stderr or "tls" in done.stderr


# What is wrong: (flags or text of the file, what the message must have)
MISTAKES = {
    "an-unknown-flag": (["--idle-ms-mx", "5"], r"idle-ms-m"),
    "a-number-that-is-none": (["--idle-ms-max", "soon"], r"idle.ms.max.*(?s:.)*soon"),
    "out-of-range": (["--idle-ms-max", "7"], r"100"),
    "an-unknown-word": (["--log-level", "loud"], r"debug"),
    "no-such-file": (["--config", "nowhere.yaml"], r"nowhere\.yaml"),
    "an-unknown-key": ("idle_ms_mx: 5\n", r"idle_ms_m"),
    "a-file-that-is-no-yaml": ("a: [\n", r"f\.yaml"),
    "a-bad-value-in-the-file": ("idle_ms_max: [1, 2]\n", r"idle_ms_max"),
    "tls-half-given": (["--tls-key", "key.pem"], r"tls_certificate|tls-certificate"),
    "beyond-loopback": (["--listen", "0.0.0.0:0"], r"(?i)tls"),
    "a-listen-address-that-is-none": (["--listen", "nonsense"], r"nonsense"),
    "an-argument": (["serve"], r"serve"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_settings_is_named_and_nothing_starts(tmp_path, name):
    given, words = MISTAKES[name]
    if isinstance(given, str):
        (tmp_path / "f.yaml").write_text(given)
        given = ["--config", tmp_path / "f.yaml"]
    done = subprocess.run([str(FIRED), *map(str, given), "--http", "off", "--state-dir",
                           str(tmp_path / "s"), "--runtime-dir", str(tmp_path / "r")],
                          capture_output=True, text=True, timeout=WAIT_S, cwd=tmp_path)
    assert done.returncode in (1, 2), done
    assert re.search(words, done.stderr), done.stderr


def test_version_help_and_selftest():
    assert re.search(r"\d+\.\d+\.\d+", fired("--version").stdout)
    text = fired("--help").stdout
    for flag in ("--listen", "--http", "--state-dir", "--print-config", "--credentials"):
        assert flag in text
    fired("--selftest")


# --- reload ---------------------------------------------------------------------------------------


def test_reload_changes_limits_and_log_level_without_dropping_a_call(start):
    one = start(config="tenant_bytes_max: 64MiB\ndeadline_ms_default: 1000\n")
    weight = gaussian(32, 16)
    feed = Feed()
    answers = one.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()),
              begin(1, header("w", weight), weight))
    one.wait_for(lambda: one.status().calls >= 1, "the stream")
    one.config.write_text("tenant_calls_max: 1\ndeadline_ms_default: 1000\n")
    one.signal(signal.SIGHUP)
    one.wait_event("reloaded")
    got = refused(one.reinit.Reinit, request({"w": weight}))
    assert got.code == grpc.StatusCode.RESOURCE_EXHAUSTED and got.retry_s is not None, got
    project(one, metadata=[("x-fired-tenant", "another")])
    feed.send(*chunks(1, weight))
    feed.close()
    assert collect(answers)[1][0][1]
    one.config.write_text("tenant_calls_max: 100\n")
    since = len(one.lines)
    one.signal(signal.SIGHUP)
    one.wait_event("reloaded", since)
    project(one)


def test_a_bad_file_at_reload_changes_nothing(start):
    one = start(config="tenant_calls_max: 10\n")
    one.config.write_text("tenant_calls_max: none\n")
    one.signal(signal.SIGHUP)
    line = one.wait_event("reload_failed")
    assert "tenant_calls_max" in json.dumps(line)
    project(one)
    assert one.counter('fired_reloads_total') == 1


# --- logs and metrics -----------------------------------------------------------------------------


def test_log_lines_carry_call_tenant_batch_and_trace(start):
    one = start(log_level="debug")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = project(one, metadata=[("traceparent", trace), ("x-fired-tenant", "alice")])
    line = one.wait_log(lambda line: trace in line.values() or
                        line.get("trace") == "0af7651916cd43dd8448eb211c80319c")
    assert line["tenant"] == "alice" and line["call"] > 0
    batch = one.wait_log(lambda line: line.get("batch") == answer.results[0].batch.id)
    assert batch["event"]
    for line in one.log():
        assert line["event"] and line["level"] in ("error", "warn", "info", "debug")
        assert line.get("time") or line.get("ts")


def test_logfmt_is_one_event_a_line(tmp_path):
    """The default format, for people: the event's name first, then key=value."""
    process = subprocess.Popen([str(FIRED), "--listen", f"unix:{tmp_path}/s", "--http", "off",
                                "--state-dir", str(tmp_path / "st"), "--runtime-dir",
                                str(tmp_path / "r")], stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if re.search(r"\bready\b", line):
            break
    process.send_signal(signal.SIGTERM)
    lines += process.stderr.readlines()
    assert process.wait(WAIT_S) == 0
    for line in lines:
        assert re.search(r"[a-z_]+( [a-z_]+=(\"([^\"\\]|\\.)*\"|[^ \"]*))*$", line), line


def test_metrics_pass_promtool_and_count(daemon):
    project(daemon, metadata=[("x-fired-tenant", "prometheus")])
    code, text = daemon.http("/metrics")
    assert code == 200
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: deploy/install-deps --test installs prometheus"
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True,
                          text=True, timeout=WAIT_S)
    assert done.returncode == 0 and not done.stderr.strip(), done.stdout + done.stderr
    numbers = daemon.metrics()
    assert numbers['fired_matrices_total{tenant="prometheus"}'] == 1
    assert numbers['fired_device_seconds_total{tenant="prometheus"}'] > 0
    assert numbers["fired_memory_budget_bytes"] > 0 and numbers["fired_slab_bytes"] == 0
    assert numbers["fired_draining"] == 0
    assert daemon.counter("fired_batches_total") >= 1
    assert daemon.counter("fired_calls_total") >= 1
    refused(daemon.reinit.Reinit, reinit_pb2.ReinitRequest(data=[b"x"]))
    assert daemon.counter("fired_refusals_total") >= 1
    for family in ("fired_call_seconds", "fired_batch_size", "fired_queue_seconds",
                   "fired_compute_seconds"):
        assert any(key.startswith(family + "_bucket") for key in numbers), family


def test_health_pages(daemon):
    assert daemon.http("/healthz")[0] == 200 and daemon.http("/readyz")[0] == 200
    assert daemon.http("/nothing")[0] == 404


# --- one daemon an address ------------------------------------------------------------------------


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_a_second_daemon_cannot_take_a_socket(start, tmp_path):
    one = start()
    done = fired("--listen", one.address, "--http", "off", "--state-dir", tmp_path / "other",
                 "--runtime-dir", tmp_path / "other-run", code=1)
    assert "fired.sock" in done.stderr
    project(one)
    assert one.stop() == 0
    assert not one.socket.exists(), "the socket stays behind after a clean end"


def test_a_second_daemon_cannot_take_a_port(start, tmp_path):
    port = free_port()
    one = start(listen=f"127.0.0.1:{port}")
    done = fired("--listen", f"127.0.0.1:{port}", "--http", "off", "--state-dir",
                 tmp_path / "other", "--runtime-dir", tmp_path / "other-run", code=1)
    assert str(port) in done.stderr
    project(one)


def test_a_port_that_another_program_holds(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = fired("--listen", f"127.0.0.1:{port}", "--http", "off", "--state-dir",
                     tmp_path / "s", "--runtime-dir", tmp_path / "r", code=1)
        assert str(port) in done.stderr
        done = fired("--listen", f"unix:{tmp_path}/x.sock", "--http", f"127.0.0.1:{port}",
                     "--state-dir", tmp_path / "s", "--runtime-dir", tmp_path / "r", code=1)
        assert str(port) in done.stderr


def test_a_socket_left_by_a_crash_is_taken_over(start):
    one = start()
    one.kill()
    assert one.socket.exists()
    again = start(folder=one.folder)
    project(again)


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    (tmp_path / "fired.sock").write_text("mine")
    done = fired("--listen", f"unix:{tmp_path}/fired.sock", "--http", "off", "--state-dir",
                 tmp_path / "s", "--runtime-dir", tmp_path / "r", code=1)
    assert "fired.sock" in done.stderr
    assert (tmp_path / "fired.sock").read_text() == "mine"


# --- drain ----------------------------------------------------------------------------------------


class Load:
    """Callers that go on until they are refused; what each got."""

    def __init__(self, one, callers=6):
        self.weights = [gaussian(96, 64, seed=i) for i in range(callers)]
        self.want = [one.reinit.Reinit(request({"w": weight}), timeout=WAIT_S).data[0]
                     for weight in self.weights]
        self.done, self.wrong, self.codes = [0] * callers, [], []
        self.threads = [threading.Thread(target=self.run, args=(one, i)) for i in range(callers)]
        for thread in self.threads:
            thread.start()

    def run(self, one, number):
        channel = one.new_channel()
        call = channel.unary_unary("/fire.v1.ReinitService/Reinit",
                                   reinit_pb2.ReinitRequest.SerializeToString,
                                   reinit_pb2.ReinitResponse.FromString)
        try:
            while True:
                answer = call(request({"w": self.weights[number]}), timeout=WAIT_S)
                if answer.data[0] != self.want[number]:
                    self.wrong.append(number)
                self.done[number] += 1
        except grpc.RpcError as error:
            self.codes.append(error.code())
        finally:
            channel.close()

    def join(self):
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_sigterm_under_load_finishes_what_was_accepted(start):
    """Unary callers get answers until they get UNAVAILABLE; a stream that is open goes on to its
    end; watchers and readiness hear of it; the exit code is 0."""
    one = start()
    load = Load(one)
    weight = gaussian(200, 150)
    want = one.reinit.Reinit(request({"w": weight}), timeout=WAIT_S).data[0]
    watch = one.health.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
    assert next(watch).status == SERVING
    feed = Feed()
    answers = one.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    pieces = list(chunks(1, weight, 10000))
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()),
              begin(1, header("w", weight), weight), *pieces[:4])
    one.wait_for(lambda: any(tenant.streams for tenant in one.status().tenants) and
                 all(load.done), "load")
    one.http_port  # known before it stops
    one.signal(signal.SIGTERM)
    one.wait_event("draining")
    assert next(watch).status == NOT_SERVING
    feed.send(*pieces[4:])
    feed.close()
    assert collect(answers)[1][0][1] == want
    load.join()
    assert one.ended() == 0, one.text()
    assert not load.wrong and set(load.codes) == {grpc.StatusCode.UNAVAILABLE}, load.codes


def test_drain_has_a_limit(start):
    """A stream that never ends is cancelled when the limit has passed."""
    one = start("--drain-ms-max", "300")
    weight = gaussian(32, 16)
    feed = Feed()
    answers = one.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()),
              begin(1, header("w", weight), weight))
    one.wait_for(lambda: any(tenant.streams for tenant in one.status().tenants), "the stream")
    started = time.monotonic()
    one.signal(signal.SIGTERM)
    with pytest.raises(grpc.RpcError) as caught:
        list(answers)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert one.ended() == 0
    assert time.monotonic() - started < 30
    feed.close()


@pytest.mark.skipif(on_gpu(), reason="a GPU runs its batches to their ends")
def test_drain_does_not_wait_for_minutes_of_computation(start):
    """A matrix that would take minutes is given up when the limit has passed."""
    one = start("--drain-ms-max", "300", "--threads", "1")
    call = one.reinit.Reinit.future(
        request({"w": gaussian(1000, 1000)}, {"polynomial": "cubic", "steps": "1000",
                                              "compute": "f64", "side": "x"}), timeout=100000)
    one.wait_for(lambda: one.status().jobs_running == 1, "the computation")
    started = time.monotonic()
    one.signal(signal.SIGTERM)
    with pytest.raises(grpc.RpcError) as caught:
        call.result()
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert one.ended() == 0
    assert time.monotonic() - started < 30


def test_readyz_while_draining(start):
    one = start()
    feed = Feed()
    answers = one.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()))
    one.wait_for(lambda: any(tenant.streams for tenant in one.status().tenants), "the stream")
    assert one.http("/readyz")[0] == 200
    firectl("drain", "--limit", "60", "--addr", one.address)
    one.wait_event("draining")
    assert one.http("/readyz")[0] == 503 and one.http("/healthz")[0] == 200
    feed.close()
    assert list(answers) == [] and one.ended() == 0


# --- systemd --------------------------------------------------------------------------------------


def test_the_unit_is_valid_and_hardened(tmp_path):
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing: apt-get install systemd"
    text = (ROOT / "deploy" / "fired.service").read_text()
    unit = tmp_path / "fired.service"
    unit.write_text(re.sub(r"@[A-Z_]+@", str(FIRED.parent), text))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)],
                          capture_output=True, text=True, timeout=WAIT_S)
    ours = [line for line in done.stderr.splitlines() if "fired" in line]
    assert done.returncode == 0 and not ours, done.stderr
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager",
                           str(unit)], capture_output=True, text=True, timeout=WAIT_S)
    score = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert score and float(score[1]) <= 2.5, done.stdout + done.stderr


def test_systemd_hears_ready_watchdog_and_stopping(start, tmp_path):
    """What Type=notify and WatchdogSec need, on a socket of the test's own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(WAIT_S)
        one = start(environment={"NOTIFY_SOCKET": str(tmp_path / "notify"),
                                 "WATCHDOG_USEC": "300000"})
        heard = ""
        while "READY=1" not in heard or "WATCHDOG=1" not in heard:
            heard += notify.recv(4096).decode() + "\n"
        one.signal(signal.SIGTERM)
        while "STOPPING=1" not in heard:
            heard += notify.recv(4096).decode() + "\n"
        assert one.ended() == 0


# --- firectl's commands ---------------------------------------------------------------------------


def test_firectl_health_and_ping(daemon):
    assert firectl("health", "--addr", daemon.address).stdout == "SERVING\n"
    answer = json.loads(firectl("health", "--json", "--addr", daemon.address).stdout)
    assert answer == {"address": daemon.address, "status": "SERVING"}
    done = firectl("ping", "-n", "2", "--interval", "0.05", environment={
        "FIRED_ADDR": daemon.address})
    assert len(done.stdout.splitlines()) == 3 and "p99" in done.stdout
    numbers = json.loads(firectl("ping", "--latency", "-n", "50", "--json", "--addr",
                                 daemon.address).stdout)
    assert numbers["count"] == 50
    assert (0 < numbers["min_ms"] <= numbers["p50_ms"] <= numbers["p90_ms"] <= numbers["p99_ms"] <=
            numbers["max_ms"])


def test_firectl_status_in_both_forms(daemon):
    project(daemon, metadata=[("x-fired-tenant", "alice")])
    text = firectl("status", "--addr", daemon.address).stdout
    for words in ("serving", daemon.address, "DEVICE", "BUCKET", "TENANT", "alice", "32x16"):
        assert words in text, text
    said = json.loads(firectl("status", "--json", "--addr", daemon.address).stdout)
    status = daemon.status()
    assert said["version"] == status.version and said["draining"] is False
    assert [one["name"] for one in said["tenants"]] == [one.name for one in status.tenants]
    assert said["memory"]["budget_bytes"] == status.memory.budget_bytes
    assert said["devices"][0]["matrices"] == status.devices[0].matrices
    assert said["addresses"] == list(status.addresses) and said["log_level"] == "info"


def test_firectl_stat_and_top(daemon):
    project(daemon)
    lines = firectl("stat", "0.05", "3", "--addr", daemon.address).stdout.splitlines()
    assert len(lines) == 4 and "matrices/s" in lines[0]
    objects = [json.loads(line) for line in
               firectl("stat", "0.05", "2", "--json", "--addr",
                       daemon.address).stdout.splitlines()]
    assert len(objects) == 2 and objects[1]["uptime_seconds"] > objects[0]["uptime_seconds"]
    assert objects[0]["matrices_per_second"] > 0 and objects[0]["batch_size"] >= 1
    frame = firectl("top", "--batch", "--addr", daemon.address).stdout
    assert all(len(line) <= 80 for line in frame.splitlines()), frame
    for words in ("serving", "DEVICE", "BATCHES BY SHAPE", "TENANT", "cpu", "32x16"):
        assert words in frame, frame
    two = firectl("top", "--batch", "-n", "2", "--interval", "0.05", "--addr", daemon.address)
    assert two.stdout.count("TENANT") == 2


def test_firectl_top_on_a_screen_of_80_by_24(daemon, tmp_path):
    """In a terminal of tmux's: a frame is drawn, q ends it with 0."""
    tmux = shutil.which("tmux")
    assert tmux, "tmux is missing: deploy/install-deps --test installs it"
    command = [tmux, "-S", str(tmp_path / "tmux")]
    environment = {key: value for key, value in os.environ.items() if key != "TMUX"}

    def run(*words):
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=WAIT_S,
                              env=environment, check=True).stdout

    run("-f", "/dev/null", "new-session", "-d", "-s", "t", "-x", "80", "-y", "24",
        f"{FIRECTL} top --interval 0.1 --addr {daemon.address}; echo ended $?; exec cat")
    try:
        daemon.wait_for(lambda: "q quit" in run("capture-pane", "-p", "-t", "t"), "a frame")
        frame = run("capture-pane", "-p", "-t", "t")
        for words in ("serving", "DEVICE", "BATCHES BY SHAPE", "TENANT"):
            assert words in frame, frame
        run("send-keys", "-t", "t", "q")
        daemon.wait_for(lambda: "ended 0" in run("capture-pane", "-p", "-t", "t"), "the end")
    finally:
        run("kill-server")


def test_firectl_says_what_to_do_when_nobody_answers(tmp_path):
    for words in (["health"], ["status"], ["ping"], ["stat"], ["top", "--batch"], ["drain"]):
        done = firectl(*words, "--addr", f"unix:{tmp_path}/nobody.sock", "--deadline", "5",
                       code=64 + grpc.StatusCode.UNAVAILABLE.value[0])
        assert "nobody.sock" in done.stderr and "--addr" in done.stderr and not done.stdout
    for words in (["stat", "0"], ["stat", "1", "none"], ["ping", "-n", "0"], ["top", "--latency"],
                  ["health", "extra"], ["drain", "--limit", "-1"], ["health", "--addr", ""],
                  ["health", "--addr", "nonsense"]):
        done = subprocess.run([str(FIRECTL), *words], capture_output=True, text=True,
                              timeout=WAIT_S)
        assert done.returncode in (1, 2) and done.stderr and not done.stdout, words


def test_a_daemon_that_drains_says_so_and_refuses_new_work(start):
    one = start()
    feed = Feed()
    answers = one.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()))
    one.wait_for(lambda: any(tenant.streams for tenant in one.status().tenants), "the stream")
    said = json.loads(firectl("drain", "--json", "--addr", one.address).stdout)
    assert said["calls"] >= 1
    assert one.wait_event("draining")
    assert firectl("health", "--addr", one.address, code=1).stdout == "NOT_SERVING\n"
    assert "DRAINING" in firectl("status", "--addr", one.address).stdout
    assert one.health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == NOT_SERVING
    got = refused(one.reinit.Reinit, request({"w": gaussian(8, 8)}))
    assert got.code == grpc.StatusCode.UNAVAILABLE and got.reason and got.retry_s, got
    feed.close()
    assert list(answers) == [] and one.ended() == 0


@pytest.mark.parametrize("seconds", ["1e-6", "0.05", "0.3"])
def test_a_deadline_has_one_exit_code(daemon, tmp_path, seconds):
    save(tmp_path / "in.safetensors", {f"w{i}": gaussian(900, 900, seed=i) for i in range(12)})
    done = firectl("reinit", "--addr", daemon.address, "--arch", "none", "--deadline", seconds,
                   "--set", "compute=f64", tmp_path / "in.safetensors", "-o",
                   tmp_path / "out.safetensors", code=68)
    assert "deadline" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_every_daemon_command_has_help_with_examples():
    for command in ("health", "status", "ping", "stat", "top", "drain"):
        text = firectl(command, "--help").stdout
        assert "Examples:" in text and "--addr" in text
    assert BUILD.exists()
