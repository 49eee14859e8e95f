"""What bad input gets: a code, a reason, the field and what to do; nothing else suffers."""

import re
import threading

import grpc
import numpy as np
import pytest
from daemon import (WAIT_S, admin_pb2, begin, chunks, collect, daemon, gaussian, header, refused,
                    reinit_pb2, request, set_header, stream_messages, tensor, tensor_pb2)

assert daemon  # a fixture, found by its name

INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(autouse=True)
def alive(daemon):
    """After each refusal the daemon works and holds nothing."""
    yield
    answer = daemon.reinit.Reinit(request({"w": gaussian(8, 8)}), timeout=WAIT_S)
    assert answer.results[0].result.action == tensor_pb2.TENSOR_ACTION_PROJECTED
    daemon.wait_idle()


def one(name="w", data=None, **changes):
    """A request of one 8 x 8 tensor with a header that is changed."""
    weight = gaussian(8, 8)
    about = header(name, weight)
    for key, value in changes.items():
        if key == "shape":
            about.ClearField("shape")
            about.shape.extend(value)
        elif key == "options":
            for option, text in value.items():
                setattr(about.options, option, text)
        else:
            setattr(about, key, value)
    return reinit_pb2.ReinitRequest(tensors=[about], data=[weight.data if data is None else data])


def spoilt(value, at):
    array = gaussian(8, 8).array().copy()
    array.flat[at] = value
    return tensor(array).data


def with_set(**fields):
    made = one()
    made.set.CopyFrom(set_header(**fields))
    return made


def with_state(**changes):
    """A weight and a tensor of another role whose header is changed."""
    weight = gaussian(8, 8)
    fields = {"role": tensor_pb2.TENSOR_ROLE_STATE, "parameter": "w", "slot": "exp_avg"} | changes
    other = fields.pop("tensor", weight)
    return request([(header("w", weight), weight), (header("s", other, **fields), other)])


# name: (request, code, field as a pattern, words of the message as a pattern)
BAD = {
    "no-data": (reinit_pb2.ReinitRequest(tensors=[header("w", gaussian(8, 8))]), INVALID,
                r"data.*", r"."),
    "data-without-a-tensor": (reinit_pb2.ReinitRequest(data=[b"1234"]), INVALID, r"data.*", r"."),
    "too-few-bytes": (one(data=b"\0" * 252), INVALID, r"(data|tensors)\[0\].*", r"256"),
    "too-many-bytes": (one(data=b"\0" * 260), INVALID, r"(data|tensors)\[0\].*", r"256"),
    "no-dtype": (one(dtype=0), INVALID, r"tensors\[0\]\.dtype", r"."),
    "unknown-dtype": (one(dtype=77), INVALID, r"tensors\[0\]\.dtype", r"."),
    "an-integer-weight": (one(dtype=tensor_pb2.DATA_TYPE_I64, data=b"\0" * 512), INVALID,
                          r"tensors\[0\]\.dtype", r"."),
    "no-axes": (one(shape=[]), INVALID, r"tensors\[0\]\.shape", r"axes"),
    "nine-axes": (one(shape=[1] * 9), INVALID, r"tensors\[0\]\.shape", r"axes"),
    "a-zero-axis": (one(shape=[8, 0]), INVALID, r"tensors\[0\]\.shape", r"."),
    "a-product-that-overflows": (one(shape=[1 << 40, 1 << 40], data=b""), INVALID,
                                 r"tensors\[0\]\.shape", r"."),
    "a-byte-count-that-overflows": (one(shape=[1 << 31, 1 << 31, 2], data=b""), INVALID,
                                    r"tensors\[0\]\.shape", r"."),
    "larger-than-the-limit": (one(shape=[1 << 20, 1 << 20], data=b""), INVALID,
                              r"tensors\[0\]\.shape", r"\d"),
    "nan": (one(data=spoilt(np.nan, 13)), INVALID, r"tensors\[0\].*", r"NaN.*\b13\b"),
    "inf": (one(data=spoilt(-np.inf, 63)), INVALID, r"tensors\[0\].*", r"Inf.*\b63\b"),
    "linear-with-four-axes": (one(kind=tensor_pb2.TENSOR_KIND_LINEAR, shape=[2, 2, 4, 4]), INVALID,
                              r"tensors\[0\]\.(kind|shape)", r"axes"),
    "conv-with-two-axes": (one(kind=tensor_pb2.TENSOR_KIND_CONV2D), INVALID,
                           r"tensors\[0\]\.(kind|shape)", r"axes"),
    "an-unknown-kind": (one(kind=55), INVALID, r"tensors\[0\]\.kind", r"TensorKind|known"),
    "an-unknown-role": (one(role=55), INVALID, r"tensors\[0\]\.role", r"."),
    "an-uneven-split": (one(options={"split": "3"}), INVALID, r"tensors\[0\].*", r"split"),
    "an-unknown-preset": (with_set(preset="fier"), INVALID, r"set\.preset", r"fire"),
    "a-tensors-unknown-preset": (one(preset="oficial-gpt"), INVALID, r"tensors\[0\]\.preset",
                                 r"official-gpt"),
    "a-bad-option": (with_set(options={"steps": "many"}), INVALID, r"set\.options\.steps",
                     r"many"),
    "a-misspelt-word": (with_set(options={"normalize": "spektral"}), INVALID,
                        r"set\.options\.normalize", r"spectral"),
    "a-tensors-bad-option": (one(options={"blend": "7"}), INVALID,
                             r"tensors\[0\]\.options\.blend", r"7"),
    "a-target-below-the-floor": (one(options={"target": "1e-30"}), INVALID, r"tensors\[0\].*",
                                 r"target"),
    "a-run-too-long": (with_set(run="r" * 129), INVALID, r"set\.run", r"128"),
    "an-unknown-priority": (with_set(priority=9), INVALID, r"set\.priority", r"."),
    "an-unknown-statistics-level": (with_set(statistics=9), INVALID, r"set\.statistics", r"."),
    "an-unknown-on-bad": (with_set(on_bad=9), INVALID, r"set\.on_bad", r"."),
    "state-without-parameter": (with_state(parameter=""), INVALID, r"tensors\[1\]\.parameter",
                                r"."),
    "state-of-an-unknown-weight": (with_state(parameter="v"), INVALID,
                                   r"tensors\[1\]\.parameter", r"v"),
    "an-unknown-slot": (with_state(slot="exp_average"), INVALID, r"tensors\[1\]\.slot",
                        r"exp_average"),
    "state-of-another-shape": (with_state(tensor=gaussian(8, 4)), INVALID,
                               r"tensors\[1\]\.shape", r"."),
    "a-gradient-of-another-shape": (with_state(role=tensor_pb2.TENSOR_ROLE_GRADIENT, slot="",
                                               tensor=gaussian(4, 8)), INVALID,
                                    r"tensors\[1\]\.shape", r"."),
    "means-of-other-units": (with_state(role=tensor_pb2.TENSOR_ROLE_UNIT_MEANS, slot="",
                                        tensor=gaussian(7)), INVALID,
                             r"tensors\[1\]\.shape", r"7"),
    "two-weights-of-one-name": (request([(header("w", gaussian(8, 8)), gaussian(8, 8))] * 2),
                                INVALID, r"tensors\[1\]\.name", r"w"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_names_its_field(daemon, name):
    sent, code, field, words = BAD[name]
    got = refused(daemon.reinit.Reinit, sent)
    assert got.code == code, got
    assert got.reason, got
    assert re.fullmatch(field, got.field), got
    assert re.search(words, got.message), got


def test_analyze_refuses_the_same(daemon):
    sent, code, field, words = BAD["nan"]
    got = refused(daemon.reinit.Analyze,
                  reinit_pb2.AnalyzeRequest.FromString(sent.SerializeToString()))
    assert got.code == code and re.fullmatch(field, got.field) and re.search(words, got.message)


def raw(daemon, method):
    return daemon.channel().unary_unary(method, request_serializer=bytes,
                                        response_deserializer=bytes)


@pytest.mark.parametrize("blob", [
    b"\xff", b"\x0a", b"\x0a\xff\xff\xff\xff\x0f", b"\x80" * 11, b"\xa2\x06\x7f",
    b"\xa2\x06\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0a\x05\x12\xff\xff\xff\x7f", b"\x0b",
    bytes(range(256)), b"\x12\x03\x0a\x01\xff"])
def test_bytes_that_are_no_message_are_refused(daemon, blob):
    for method in ("Reinit", "Analyze"):
        got = refused(raw(daemon, f"/fire.v1.ReinitService/{method}"), blob)
        assert got.code == INVALID and got.reason and got.message


def test_cut_messages_are_refused_or_complete(daemon):
    """Every beginning of a message: none may hang, crash or be taken for the whole."""
    blob = one().SerializeToString()
    for length in [*range(1, 40), *range(40, len(blob), 17), len(blob) - 1]:
        got = refused(raw(daemon, "/fire.v1.ReinitService/Reinit"), blob[:length])
        assert got.code == INVALID, (length, got)


def test_admin_methods_refuse_what_they_cannot_read(daemon):
    for method in ("AdminService/Status", "AdminService/SetLogLevel"):
        got = refused(raw(daemon, f"/fire.v1.{method}"), b"\x0a\xff")
        assert got.code == INVALID, got
    got = refused(daemon.admin.SetLogLevel, admin_pb2.SetLogLevelRequest())
    assert got.code == INVALID and got.field == "level"


def test_a_message_over_the_limit(daemon):
    weight = gaussian(2048, 2304)  # 18 MiB
    got = refused(daemon.reinit.Reinit, request({"w": weight}))
    assert got.code in (INVALID, EXHAUSTED), got
    assert re.search(r"\d", got.message), got


def test_unknown_methods_are_answered_at_once(daemon):
    for method in ("/fire.v1.ReinitService/Nothing", "/fire.v2.ReinitService/Reinit", "/x/y"):
        got = refused(raw(daemon, method), b"", timeout=WAIT_S)
        assert got.code == grpc.StatusCode.UNIMPLEMENTED, got


def test_a_bad_tenant_name_is_refused(daemon):
    for name in ("a b", "x" * 64, "semi;colon"):
        got = refused(daemon.reinit.Reinit, one(), metadata=[("x-fired-tenant", name)])
        assert got.code == INVALID and "tenant" in got.message, got


def test_a_refused_set_returns_nothing(daemon):
    """Without on_bad=skip one bad tensor refuses the whole call."""
    good, bad = gaussian(8, 8), tensor(np.full((8, 8), np.nan))
    got = refused(daemon.reinit.Reinit, request({"good": good, "bad": bad}))
    assert got.code == INVALID and got.field.startswith("tensors[1]"), got


def test_good_callers_do_not_notice_bad_ones(daemon):
    """Bad requests of every kind arrive while others are served."""
    weight = gaussian(48, 32)
    want = daemon.reinit.Reinit(request({"w": weight}), timeout=WAIT_S).data[0]
    stop, wrong = threading.Event(), []

    def bad():
        cases = list(BAD.values())
        for i in range(60):
            got = refused(daemon.reinit.Reinit, cases[i % len(cases)][0])
            if got.code != INVALID:
                wrong.append(got)
        stop.set()

    thread = threading.Thread(target=bad)
    thread.start()
    while not stop.is_set() and thread.is_alive():
        assert daemon.reinit.Reinit(request({"w": weight}), timeout=WAIT_S).data[0] == want
    thread.join(WAIT_S)
    assert not wrong


# --- streams that break their rules ---------------------------------------------------------------

MESSAGE = reinit_pb2.ReinitStreamRequest
WEIGHT = gaussian(8, 8)
HEAD = MESSAGE(header=set_header())
BEGIN = begin(1, header("w", WEIGHT), WEIGHT)


def chunk(number, offset, data):
    return MESSAGE(chunk=reinit_pb2.TensorChunk(id=number, offset=offset), data=data)


# name: (messages, words of the message as a pattern)
BROKEN = {
    "no-header-first": ([BEGIN], r"header"),
    "two-headers": ([HEAD, HEAD], r"header"),
    "an-empty-message": ([HEAD, MESSAGE()], r"."),
    "data-without-a-chunk": ([HEAD, MESSAGE(begin=BEGIN.begin, data=b"1234")], r"data|chunk"),
    "a-chunk-of-an-unknown-id": ([HEAD, chunk(9, 0, b"1234")], r"\b9\b"),
    "an-id-that-is-open": ([HEAD, BEGIN, BEGIN], r"\b1\b"),
    "five-open-ids": ([HEAD, *(begin(i, header(f"w{i}", WEIGHT), WEIGHT) for i in range(1, 6))],
                      r"\b4\b"),
    "a-gap": ([HEAD, BEGIN, chunk(1, 4, WEIGHT.data[4:])], r"offset|gap|order"),
    "a-chunk-again": ([HEAD, BEGIN, chunk(1, 0, WEIGHT.data[:128]),
                       chunk(1, 0, WEIGHT.data[:128])], r"offset|order"),
    "more-than-was-announced": ([HEAD, BEGIN, chunk(1, 0, WEIGHT.data + b"\0" * 4)], r"256"),
    "an-empty-chunk": ([HEAD, BEGIN, chunk(1, 0, b"")], r"empty|no bytes"),
    "a-chunk-of-five-mebibytes": ([HEAD, begin(1, header("w", gaussian(1280, 1024)),
                                               gaussian(1280, 1024)),
                                   chunk(1, 0, b"\0" * (5 << 20))], r"4 ?MiB|4194304|\d+"),
    "an-end-in-the-middle": ([HEAD, BEGIN, chunk(1, 0, WEIGHT.data[:128])], r"\b1\b|w"),
    "an-end-of-set-in-the-middle": ([HEAD, BEGIN, MESSAGE(end_of_set=reinit_pb2.EndOfSet())],
                                    r"set|open"),
    "a-bad-header": ([MESSAGE(header=set_header(preset="fier"))], r"fire"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_breaks_a_rule_is_told_which(daemon, name):
    messages, words = BROKEN[name]
    got = refused(daemon.reinit.ReinitStream, iter(messages))
    assert got.code in (INVALID, EXHAUSTED), got
    assert re.search(words, got.message), got
    if got.code == INVALID:
        assert got.reason, got


@pytest.mark.parametrize("name", ["no-header-first", "a-gap", "an-end-in-the-middle"])
def test_the_rules_hold_for_analyze_too(daemon, name):
    messages, words = BROKEN[name]
    copies = [reinit_pb2.AnalyzeStreamRequest.FromString(one.SerializeToString())
              for one in messages]
    got = refused(daemon.reinit.AnalyzeStream, iter(copies))
    assert got.code == INVALID and re.search(words, got.message), got


def test_a_stream_of_garbage_is_refused(daemon):
    method = daemon.channel().stream_stream("/fire.v1.ReinitService/ReinitStream",
                                            request_serializer=bytes, response_deserializer=bytes)
    for blob in (b"\xff\xff", b"\x0a\x7f", b"\xa2\x06\xff\xff\xff\xff\x7f"):
        assert refused(method, iter([blob])).code == INVALID


# Mistakes about one tensor: its answer is an error, the stream goes on.
ALONE = {
    "wrong-total": (lambda: MESSAGE(begin=reinit_pb2.TensorBegin(
        id=1, tensor=header("bad", WEIGHT), total_bytes=252)), 252),
    "no-dtype": (lambda: MESSAGE(begin=reinit_pb2.TensorBegin(
        id=1, tensor=tensor_pb2.TensorHeader(name="bad", shape=[8, 8]), total_bytes=256)), 256),
    "overflow": (lambda: MESSAGE(begin=reinit_pb2.TensorBegin(
        id=1, tensor=tensor_pb2.TensorHeader(name="bad", shape=[1 << 40, 1 << 40],
                                             dtype=tensor_pb2.DATA_TYPE_F32),
        total_bytes=256)), 256),
    "bad-option": (lambda: begin(1, header("bad", WEIGHT, {"blend": "7"}), WEIGHT), 256),
    "inf": (lambda: begin(1, header("bad", WEIGHT), WEIGHT), None),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_bad_tensor_does_not_end_its_stream(daemon, name):
    make, bytes_sent = ALONE[name]
    data = b"\0" * bytes_sent if bytes_sent else spoilt(np.inf, 9)
    messages = [HEAD, make(), chunk(1, 0, data), begin(2, header("good", WEIGHT), WEIGHT),
                *chunks(2, WEIGHT)]
    want = daemon.reinit.Reinit(request({"good": WEIGHT}), timeout=WAIT_S).data[0]
    got = collect(daemon.reinit.ReinitStream(iter(messages), timeout=WAIT_S))
    assert got[2][0][1] == want
    result, nothing = got[1][0]
    assert nothing == b"" and result.result.action == tensor_pb2.TENSOR_ACTION_REFUSED
    assert result.error.code == INVALID.value[0] and result.error.reason and result.error.message


def test_a_whole_stream_of_bad_tensors(daemon):
    """Many refusals in one stream leak nothing."""
    bad = tensor(np.full((16, 16), np.nan))
    sent = [(header(f"w{i}", bad), bad) for i in range(64)]
    got = collect(daemon.reinit.ReinitStream(stream_messages(sent), timeout=WAIT_S))
    assert len(got) == 64
    assert all(answers[0][0].error.code == INVALID.value[0] for answers in got.values())
