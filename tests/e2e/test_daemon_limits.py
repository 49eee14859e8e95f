"""What one caller can make the daemon hold, and for how long: memory, reservations, time."""

import re
import socket
import threading
import time

import grpc
import pytest

from build import BUILD, fewer, sanitized
from daemon import (FIRED, WAIT_S, Daemon, Feed, begin, daemon,  # noqa: F401
                    firectl, gaussian, header, refused, reinit_pb2, refusal, request, save,
                    set_header, silent_calls, start, stream_messages, tensor_pb2)

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
MIB = 1 << 20


def peak_bytes(one):
    """The most memory the process ever had."""
    with open(f"/proc/{one.process.pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) * 1024


def serves(one):
    weight = gaussian(8, 8)
    assert one.reinit.Reinit(request({"w": weight}), timeout=WAIT_S).data


def cut_off(one, reason):
    return sum(value for key, value in one.metrics().items()
               if key.startswith("fired_callers_cut_off_total") and reason in key)


# --- memory ---------------------------------------------------------------------------------------


class Wire:
    """HTTP/2 by hand, for messages that begin and do not end: frames out, windows and ends in."""

    def __init__(self, one):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(one.socket))
        self.changed = threading.Condition()
        self.initial, self.windows, self.ended = 65535, {0: 65535}, set()
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(4, 0, 0, b""))
        threading.Thread(target=self._read, daemon=True).start()

    @staticmethod
    def frame(kind, flags, stream, payload):
        return (len(payload).to_bytes(3, "big") + bytes([kind, flags]) +
                stream.to_bytes(4, "big") + payload)

    def _read(self):
        file = self.socket.makefile("rb")
        while len(head := file.read(9)) == 9:
            payload = file.read(int.from_bytes(head[:3], "big"))
            with self.changed:
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
                self.changed.notify_all()

    def _take(self, kind, flags, stream, payload):
        if kind == 8:  # WINDOW_UPDATE
            self.windows[stream] = self.windows.get(stream, self.initial) + int.from_bytes(payload)
        elif kind == 4 and not flags & 1:  # SETTINGS
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at:at + 2]) == 4:
                    fresh = int.from_bytes(payload[at + 2:at + 6])
                    self.windows = {number: size + (fresh - self.initial if number else 0)
                                    for number, size in self.windows.items()}
                    self.initial = fresh
            self.socket.sendall(self.frame(4, 1, 0, b""))
        elif kind == 6 and not flags & 1:  # PING
            self.socket.sendall(self.frame(6, 1, 0, payload))
        elif kind in (1, 3):  # HEADERS, here trailers only, and RST_STREAM
            self.ended.add(stream)

    def begin(self, stream, path, announced, sent):
        """Opens a call, announces a message and sends some of it; returns what the window took."""
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x",
                  "te": "trailers", "content-type": "application/grpc"}
        block = b"".join(b"\0" + bytes([len(name)]) + name.encode() + bytes([len(text)]) +
                         text.encode() for name, text in fields.items())
        with self.changed:
            self.windows.setdefault(stream, self.initial)
        self.socket.sendall(self.frame(1, 4, stream, block))
        blob = b"\0" + announced.to_bytes(4, "big") + bytes(sent)
        at = 0
        while at < len(blob):
            with self.changed:
                if not self.changed.wait_for(lambda: stream in self.ended or min(
                        self.windows[0], self.windows[stream]) > 0, 0.3) or stream in self.ended:
                    return at
                count = min(16384, self.windows[0], self.windows[stream], len(blob) - at)
                self.windows[0] -= count
                self.windows[stream] -= count
            self.socket.sendall(self.frame(0, 0, stream, blob[at:at + count]))
            at += count
        return at


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Check", "/fire.v1.AdminService/Status",
                                  "/fire.v1.ReinitService/Reinit", "/no.Such/Method"])
def test_messages_of_any_size_take_no_more_than_the_budget(start, path):
    """Eight messages of 100 MiB begin and do not end, to methods that take 64 KiB, 16 MiB or
    nothing at all: the daemon holds no more than its part of the budget, serves, and drains."""
    one = start("--memory-budget-bytes", "256MiB", "--threads", "1")
    before = peak_bytes(one)
    wire = Wire(one)
    for number in range(8):
        wire.begin(2 * number + 1, path, 100 * MIB, 60 * MIB)
    if not sanitized():  # a sanitizer keeps what was freed
        assert peak_bytes(one) - before < 192 * MIB
    wire.socket.shutdown(socket.SHUT_RDWR)
    one.wait_idle()
    serves(one)


def test_a_message_over_the_limit_says_so_and_gives_no_hint(start, tmp_path):
    one = start("--message-bytes-max", "1MiB")
    got = refused(one.reinit.Reinit, request({"w": gaussian(1024, 300)}))
    assert (got.code, got.reason, got.retry_s) == (EXHAUSTED, "MESSAGE_TOO_LARGE", None), got
    assert str(MIB) in got.message, got
    # firectl takes the stream then.
    save(tmp_path / "in.safetensors", {"w": gaussian(1024, 300)})
    firectl("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--arch",
            "none", "--addr", one.address)


def test_calls_that_never_send_do_not_shut_others_out(start):
    one = start("--memory-budget-bytes", "256MiB")
    calls, go = silent_calls(one, "greedy", 20)
    weight = gaussian(64, 64)
    for _ in range(10):
        one.reinit.Reinit(request({"w": weight}), metadata=[("x-fired-tenant", "modest")],
                          timeout=WAIT_S)
    go.set()
    for call in calls:
        got = refusal(call.exception(WAIT_S))
        assert got.code == grpc.StatusCode.INVALID_ARGUMENT, got
    one.wait_idle()


def test_more_unary_calls_than_reservations_wait_for_each_other(start):
    one = start("--memory-budget-bytes", "256MiB")
    weight = gaussian(64, 64)
    calls = [one.reinit.Reinit.future(request({"w": weight}), timeout=WAIT_S) for _ in range(200)]
    for call in calls:
        assert call.exception(WAIT_S) is None
    one.wait_idle()


def companions(count):
    yield reinit_pb2.ReinitStreamRequest(header=set_header())
    for number in range(count):
        about = tensor_pb2.TensorHeader(
            name=f"m{number}", parameter=f"p{number}", shape=[1],
            dtype=tensor_pb2.DATA_TYPE_F32, role=tensor_pb2.TENSOR_ROLE_UNIT_MEANS)
        yield reinit_pb2.ReinitStreamRequest(
            begin=reinit_pb2.TensorBegin(id=7, tensor=about, total_bytes=4))
        yield reinit_pb2.ReinitStreamRequest(chunk=reinit_pb2.TensorChunk(id=7, offset=0),
                                             data=bytes(4))


def test_what_waits_for_a_weight_is_charged_and_limited(daemon):
    got = refused(daemon.reinit.ReinitStream, companions(1100))
    assert got.code == grpc.StatusCode.INVALID_ARGUMENT and "1024 tensors" in got.message, got
    daemon.wait_idle()

    feed = Feed()
    call = daemon.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    feed.send(*companions(100))
    daemon.wait_for(lambda: any(tenant.bytes_in_flight >= 100 * 8192
                                for tenant in daemon.status().tenants), "the charge")
    call.cancel()
    feed.close()
    daemon.wait_idle()


# --- time -----------------------------------------------------------------------------------------


def test_an_upload_in_drops_is_cut_off(start):
    one = start("--idle-ms-max", "400", "--upload-bytes-per-s-min", "64KiB")
    weight = gaussian(256, 256)
    feed = Feed()
    call = one.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()),
              begin(1, header("w", weight), weight))
    end = time.monotonic() + WAIT_S
    for offset in range(0, len(weight.data), 4):
        if call.done() or time.monotonic() > end:
            break
        feed.send(reinit_pb2.ReinitStreamRequest(
            chunk=reinit_pb2.TensorChunk(id=1, offset=offset), data=weight.data[offset:offset + 4]))
        time.sleep(0.05)
    got = refused(lambda timeout: call)
    feed.close()
    assert (got.code, got.reason) == (EXHAUSTED, "CALLER_STALLED"), got
    assert "upload_bytes_per_s_min" in got.message, got
    one.wait_idle()
    assert cut_off(one, "sending") == 1


def test_a_deadline_is_cut_to_the_longest(start):
    one = start("--deadline-ms-max", "300", "--idle-ms-max", "60000")
    feed = Feed()
    begun = time.monotonic()
    call = one.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    got = refused(lambda timeout: call)
    feed.close()
    assert got.code == grpc.StatusCode.DEADLINE_EXCEEDED and "300 ms" in got.message, got
    assert time.monotonic() - begun < WAIT_S / 2


def test_a_set_may_end_while_the_device_has_a_part_of_it(start):
    """Matrices that wait for company, of which some are computing when the set ends."""
    one = start("--delay-us", "200000", "--batch-target-us", "2000", "--threads", "1")
    weights = gaussian(fewer(64, 8), 256, 256)
    about = header("w", weights, {"stack": 1})
    for _ in range(3):
        answers = list(one.reinit.ReinitStream(
            stream_messages([(about, weights)], chunk_bytes=4 * MIB), timeout=WAIT_S))
        errors = [answer.begin.result.error.message for answer in answers
                  if answer.HasField("begin")]
        assert errors == [""], errors


def test_a_deadline_between_submit_and_dispatch_is_answered_once(tmp_path):
    """Answering twice would end the daemon with an assertion."""
    late = BUILD / "tests" / "fired_late"
    one = Daemon(tmp_path, environment={"LATE_MS": "600"})
    one.command = [str(late) if word == str(FIRED) else word for word in one.command]
    one.start().wait_ready()
    weight = gaussian(8, 8)
    sent = [(header("w", weight), weight)]
    got = refused(one.reinit.ReinitStream, stream_messages(sent, end_of_set=False), timeout=0.3)
    assert got.code == grpc.StatusCode.DEADLINE_EXCEEDED, got
    got = refused(one.reinit.Reinit, request({"w": weight}), timeout=0.3)
    assert got.code == grpc.StatusCode.DEADLINE_EXCEEDED, got
    assert list(one.reinit.ReinitStream(stream_messages(sent), timeout=WAIT_S))
    one.wait_idle()
    assert one.stop() == 0, one.text()[-8000:]
