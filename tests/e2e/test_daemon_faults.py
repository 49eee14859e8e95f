"""Callers that vanish, stall or come too late: what they held is given back, others do not notice.

A caller that is killed is, for the daemon, a connection that ends. A cutter stands between a caller
and the daemon, counts bytes and ends the connection at a chosen point of the call, so that every
phase is met; other callers are firectl processes that get SIGKILL at a random moment."""

import os
import random
import selectors
import signal
import socket
import subprocess
import threading
import time

import grpc
import pytest
from build import fewer, on_gpu
from daemon import (FIRECTL, WAIT_S, Feed, begin, chunks, daemon, gaussian, header, refusal,
                    refused, reinit_pb2, reinit_pb2_grpc, request, save, set_header,
                    silent_calls, start, stream_messages, tensor_pb2)

assert daemon and start  # fixtures, found by their names

PHASES = ("upload", "queue", "compute", "download")
KILLS_A_PHASE = fewer(40, 4)
PROCESS_KILLS = fewer(40, 4)  # 200 with the phases
VICTIM = gaussian(520, 384)  # 780 KiB


class Cutter(threading.Thread):
    """Carries one connection to the daemon until `up` bytes have gone there or `down` bytes have
    come back, then `pause_s` longer, and ends it."""

    def __init__(self, path, upstream, up=None, down=None, pause_s=0.0):
        super().__init__(daemon=True)
        self.up, self.down, self.pause_s, self.upstream = up, down, pause_s, upstream
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(1)
        self.listener.settimeout(WAIT_S)
        self.cut = False  # it came to the cut; otherwise the caller had ended before

    def run(self):
        caller, _ = self.listener.accept()
        self.listener.close()
        with caller, socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as ready:
            server.connect(str(self.upstream))
            ready.register(caller, selectors.EVENT_READ, (server, "up"))
            ready.register(server, selectors.EVENT_READ, (caller, "down"))
            moved, end = {"up": 0, "down": 0}, None
            while end is None or time.monotonic() < end:
                wait = WAIT_S if end is None else max(0.0, end - time.monotonic())
                for key, _ in ready.select(wait):
                    target, way = key.data
                    piece = key.fileobj.recv(65536)
                    if not piece:
                        return
                    try:
                        target.sendall(piece)
                    except OSError:
                        return
                    moved[way] += len(piece)
                if end is None and ((self.up is not None and moved["up"] >= self.up) or
                                    (self.down is not None and moved["down"] >= self.down)):
                    end = time.monotonic() + self.pause_s
            self.cut = True


def compute_s(one):
    """The least time a victim's call is computed, in float64, which takes long on every machine."""
    sent = request({"w": VICTIM}, {"compute": "f64"})
    return min(one.reinit.Reinit(sent, timeout=WAIT_S).results[0].batch.compute_ms
               for _ in range(3)) / 1000


def victim(one, folder, number, phase, chance, whole_s):
    """One call that is cut off in `phase`; True when the cut came before its end. Computing takes
    `whole_s` or longer."""
    size = len(VICTIM.data)
    options = {"compute": "f64"} if phase == "compute" else {}
    plans = {"upload": {"up": chance.randrange(100, size - 70000)},
             "queue": {"up": size + 200},
             "compute": {"up": size + 200, "pause_s": chance.uniform(0.0, 0.7 * whole_s)},
             "download": {"down": chance.randrange(1000, size - 70000)}}
    path = folder / f"cut{number}"
    cutter = Cutter(path, one.socket, **plans[phase])
    cutter.start()
    channel = one.new_channel(f"unix:{path}")
    stub = reinit_pb2_grpc.ReinitServiceStub(channel)
    try:
        if number % 2:
            list(stub.ReinitStream(stream_messages([(header("w", VICTIM), VICTIM)], options),
                                   timeout=WAIT_S, metadata=[("x-fired-tenant", "victim")]))
        else:
            stub.Reinit(request({"w": VICTIM}, options), timeout=WAIT_S,
                        metadata=[("x-fired-tenant", "victim")])
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error
    finally:
        channel.close()
        cutter.join(WAIT_S)
        path.unlink(missing_ok=True)
    return cutter.cut


class Survivors:
    """Callers that go on all the time and compare every answer with the first."""

    def __init__(self, one, count=2):
        self.stop, self.wrong, self.calls = threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.run, args=(one, seed))
                        for seed in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, one, seed):
        weight = gaussian(*VICTIM.shape, seed=100 + seed)
        want = None
        while not self.stop.is_set():
            try:
                data = one.reinit.Reinit(request({"w": weight}), timeout=WAIT_S,
                                         metadata=[("x-fired-tenant", "survivor")]).data[0]
            except grpc.RpcError as error:
                self.wrong.append(str(error))
                return
            want = want or data
            if data != want:
                self.wrong.append("other bytes")
            self.calls += 1

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(WAIT_S)
        assert self.calls and not self.wrong, self.wrong


def test_200_killed_callers_leave_nothing_behind(daemon, tmp_path):
    chance = random.Random(4)
    daemon.wait_idle()
    whole_s = compute_s(daemon)
    survivors = Survivors(daemon)
    met = dict.fromkeys(PHASES, 0)
    for number in range(4 * KILLS_A_PHASE):
        phase = PHASES[number % 4]
        met[phase] += victim(daemon, tmp_path, number, phase, chance, whole_s)
    shape = (64, 50) if on_gpu() else (256, 200)  # an emulated GPU is slow
    save(tmp_path / "in.safetensors",
         {f"w{i}": gaussian(*shape, seed=i) for i in range(fewer(24, 4))})
    command = [str(FIRECTL), "reinit", str(tmp_path / "in.safetensors"), "-o",
               str(tmp_path / "out.safetensors"), "--arch", "none", "--addr", daemon.address,
               "--quiet", "--tenant", "victim"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FIRED_")}
    began = time.monotonic()
    subprocess.run(command, check=True, timeout=WAIT_S, env=environment, capture_output=True)
    whole_s = time.monotonic() - began
    for _ in range(PROCESS_KILLS):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            process.wait(chance.uniform(0.0, whole_s))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    survivors.end()
    # A cut that came too late is no kill; nearly all must have been in time.
    assert all(count >= KILLS_A_PHASE * 3 // 4 for count in met.values()), met
    daemon.wait_idle()
    numbers = daemon.metrics()
    assert numbers["fired_slab_bytes"] == 0 and numbers["fired_message_bytes"] == 0
    assert numbers["fired_matrices_waiting"] == 0 and numbers["fired_matrices_running"] == 0
    gone, = [one for one in daemon.status().tenants if one.name == "victim"]
    assert gone.bytes_in_flight == 0 and gone.calls == 0 and gone.streams == 0
    assert daemon.process.poll() is None


def queue_behind(one, side):
    """One matrix in float64, and eight others while it is computed: its call, theirs, and whether
    they all wait. They are bulk: what is short and not bulk may overtake."""
    long = gaussian(side, side)
    busy = one.reinit.Reinit.future(request({"w": long}, {"compute": "f64"}), timeout=WAIT_S)
    one.wait_for(lambda: busy.done() or one.status().jobs_running == 1, "a busy device")
    bulk = tensor_pb2.PRIORITY_BULK
    waiting = [one.reinit.Reinit.future(
        request({"w": gaussian(300, 300, seed=i)}, priority=bulk), timeout=WAIT_S)
        for i in range(8)]
    one.wait_for(lambda: busy.done() or one.status().jobs_waiting == 8, "a queue")
    return busy, waiting, one.status().jobs_waiting == 8


def test_cancelled_calls_are_not_computed(start):
    """What waits behind a long computation and is cancelled never reaches the device. How long is
    long depends on the machine: it grows, eightfold a time, until the others had to wait and were
    cancelled in time."""
    one = start("--threads", "1")
    for side in (400, 800, 1600, 2040):  # 2040: what a unary call can carry
        before = one.status()
        busy, waiting, queued = queue_behind(one, side)
        for call in waiting:
            call.cancel()
        one.wait_for(lambda: busy.done() or one.status().jobs_waiting == 0, "their end")
        in_time = queued and one.status().jobs_running == 1 and not busy.done()
        busy.result()
        one.wait_idle()
        if in_time:
            break
    status = one.status()
    assert in_time, "the longest computation was too short to make a queue"
    assert status.devices[0].matrices - before.devices[0].matrices == 1
    assert status.jobs_dropped - before.jobs_dropped == 8
    assert one.counter("fired_matrices_dropped_total") == status.jobs_dropped


@pytest.mark.skipif(on_gpu(), reason="a GPU runs its batches to their ends")
def test_what_runs_for_a_caller_that_has_left_ends_early(start):
    """Minutes of computation stop when the only caller that wants them hangs up: the matrix counts
    as dropped, and the next call has the device."""
    one = start("--threads", "1")
    call = one.reinit.Reinit.future(
        request({"w": gaussian(600, 600)}, {"polynomial": "cubic", "steps": "1000",
                                            "compute": "f64", "side": "x"}), timeout=100000)
    one.wait_for(lambda: one.status().jobs_running == 1, "the computation")
    call.cancel()
    one.wait_idle()
    status = one.status()
    assert status.devices[0].matrices == 0
    assert status.jobs_dropped == one.counter("fired_matrices_dropped_total") == 1
    weight = gaussian(30, 20)
    assert one.reinit.Reinit(request({"w": weight}), timeout=WAIT_S).results[0].result.converged


# --- deadlines ------------------------------------------------------------------------------------


def lateness(one):
    return one.metrics().get("fired_deadline_lateness_seconds_count", 0)


def test_an_expired_call_gets_its_status_and_is_not_computed(daemon):
    before, done = lateness(daemon), daemon.status().devices[0].matrices
    weight = gaussian(64, 64)
    feed = Feed()
    call = daemon.reinit.ReinitStream(iter(feed), timeout=0.3)
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()),
              begin(1, header("w", weight), weight), list(chunks(1, weight, 4096))[0])
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    feed.close()
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    daemon.wait_for(lambda: lateness(daemon) > before, "the daemon's own notice")
    daemon.wait_idle()
    assert daemon.status().devices[0].matrices == done


def test_a_queue_full_of_short_deadlines_is_never_computed_late(start):
    """Deadlines from hopeless to easy while the device is busy: every call is done or
    DEADLINE_EXCEEDED, and no matrix was begun after its deadline. In float64, which is slow on
    every machine, so that there is a queue."""
    one = start("--threads", "1")
    weights = [gaussian(400, 300, seed=i) for i in range(60)]
    calls = [one.reinit.Reinit.future(request({"w": weight}, {"compute": "f64"}),
                                      timeout=0.01 * 1.08 ** i)
             for i, weight in enumerate(weights)]
    codes = [call.exception(WAIT_S).code() if call.exception(WAIT_S) else None for call in calls]
    assert set(codes) <= {None, grpc.StatusCode.DEADLINE_EXCEEDED}, codes
    one.wait_idle()
    assert one.counter("fired_matrices_computed_late_total") == 0
    answer = one.reinit.Reinit(request({"w": weights[0]}), timeout=WAIT_S)
    assert answer.results[0].result.action == tensor_pb2.TENSOR_ACTION_PROJECTED


def test_a_deadline_that_cannot_be_met_is_refused_on_arrival(start):
    """Over 100 Gflop in float64 on one thread within 0.25 s: refused before the device sees it."""
    one = start("--threads", "1")
    weight = gaussian(1900, 1900)

    def counted():
        """On a busy machine the deadline may pass while the bytes are on their way."""
        got = refused(one.reinit.Reinit, request({"w": weight}, {"compute": "f64"}), timeout=0.25)
        assert got.code == grpc.StatusCode.DEADLINE_EXCEEDED, got
        return one.counter("fired_refusals_total") >= 1

    one.wait_for(counted, "a counted refusal")
    one.wait_idle()
    assert one.status().devices[0].matrices == 0


def test_calls_without_a_deadline_get_the_default(start):
    one = start("--stream-deadline-ms-default", "300")
    feed = Feed()
    call = one.reinit.ReinitStream(iter(feed))
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()))
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    feed.close()
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


# --- callers that stall ---------------------------------------------------------------------------


def cut_off(one, reason):
    return sum(value for key, value in one.metrics().items()
               if key.startswith("fired_callers_cut_off_total") and reason in key)


def test_a_caller_that_stops_sending_is_cut_off(start):
    one = start("--idle-ms-max", "300")
    weight = gaussian(64, 64)
    feed = Feed()
    call = one.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()),
              begin(1, header("w", weight), weight))
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    feed.close()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, caught.value
    one.wait_idle()
    assert cut_off(one, "sending") == 1


def test_a_caller_that_stops_reading_is_cut_off(start):
    """It sends 24 MiB and reads nothing: the answers fill what HTTP/2 may hold, then wait."""
    one = start("--idle-ms-max", "500")
    weight = gaussian(1024, 1024)
    sent = [(header(f"w{i}", weight, {"steps": "1", "polynomial": "cubic"}), weight)
            for i in range(6)]
    call = one.reinit.ReinitStream(stream_messages(sent), timeout=WAIT_S)
    one.wait_for(lambda: cut_off(one, "reading") == 1, "the cut")
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, caught.value
    one.wait_idle()


# --- no room --------------------------------------------------------------------------------------


def no_room(got):
    assert got.code == grpc.StatusCode.RESOURCE_EXHAUSTED and got.reason, got
    assert got.retry_s is not None and got.retry_s > 0, got


def test_beyond_the_memory_budget_callers_are_told_when_to_come_back(start):
    """More uploads at once than the budget holds: they wait for each other, or are refused with a
    retry hint; memory stays under the budget, and what was accepted is right."""
    one = start("--memory-budget-bytes", "48MiB", "--threads", "1", "--deadline-ms-default", "2000")
    # Computing is part of the budget: five times a square matrix, little more than a long one.
    got = refused(one.reinit.Reinit, request({"w": gaussian(1400, 1000)}))
    assert got.code == grpc.StatusCode.INVALID_ARGUMENT, got
    assert "workspace_percent" in got.message, got
    weight = gaussian(14000, 100)  # 5.3 MiB
    want = one.reinit.Reinit(request({"w": weight}), timeout=WAIT_S).data[0]
    calls = [one.reinit.Reinit.future(request({"w": weight}), timeout=WAIT_S) for _ in range(24)]
    good = 0
    for call in calls:
        error = call.exception(WAIT_S)
        if error is None:
            assert call.result().data[0] == want
            good += 1
        else:
            no_room(refusal(error))
    assert good
    one.wait_idle()

    # One that sends nothing has all that may be read at once: the next waits for it in vain.
    (silent,), go = silent_calls(one, "greedy", 1)
    greedy = [("x-fired-tenant", "greedy")]
    no_room(refused(one.reinit.Reinit, request({"w": weight}), metadata=greedy))
    go.set()
    assert refusal(silent.exception(WAIT_S)).code == grpc.StatusCode.INVALID_ARGUMENT
    again = one.reinit.Reinit(request({"w": weight}), metadata=greedy, timeout=WAIT_S)
    assert again.data[0] == want
    one.wait_idle()
    memory = one.status().memory
    assert memory.budget_bytes == 48 << 20


def test_a_tenant_over_its_limit_does_not_hinder_another(start):
    one = start("--tenant-streams-max", "1", "--tenant-bytes-max", "32MiB")
    feed = Feed()
    held = one.reinit.ReinitStream(iter(feed), timeout=WAIT_S,
                                   metadata=[("x-fired-tenant", "greedy")])
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()))
    one.wait_for(lambda: any(tenant.streams for tenant in one.status().tenants), "the stream")
    weight = gaussian(64, 64)
    got = refused(one.reinit.ReinitStream, stream_messages([(header("w", weight), weight)]),
                  metadata=[("x-fired-tenant", "greedy")])
    assert got.code == grpc.StatusCode.RESOURCE_EXHAUSTED and got.retry_s, got
    other = list(one.reinit.ReinitStream(stream_messages([(header("w", weight), weight)]),
                                         timeout=WAIT_S, metadata=[("x-fired-tenant", "modest")]))
    assert other
    feed.close()
    assert list(held) == []
    numbers = {tenant.name: tenant for tenant in one.status().tenants}
    assert numbers["greedy"].refusals_total == 1 and numbers["modest"].refusals_total == 0


def test_no_growth_over_many_calls(daemon):
    """A hundred calls and streams later the process holds no more than some MiB above before."""
    def turn():
        for seed in range(50):
            weight = gaussian(128, 96, seed=seed)
            daemon.reinit.Reinit(request({"w": weight}), timeout=WAIT_S)
            list(daemon.reinit.ReinitStream(stream_messages([(header("w", weight), weight)]),
                                            timeout=WAIT_S))
    turn()
    daemon.wait_idle()
    before = daemon.status().memory.resident_bytes
    turn()
    daemon.wait_idle()
    assert daemon.status().memory.resident_bytes - before < 32 << 20

