"""Every method of the contract, called by another implementation of gRPC. The same bytes in give
the same bytes out as firectl --local, whatever way they travel. (On an emulated GPU: nearly the
same; see FIRED_TEST_DEVICE in the README.)"""

import threading

import numpy as np
import pytest
from build import on_gpu
from daemon import (WAIT_S, Feed, admin_pb2, begin, chunks, collect, daemon, firectl, gaussian,
                    header, load, local, reinit_pb2, request, rows, same_tensor, save, set_header,
                    stream_messages, tensor, tensor_pb2)

assert daemon  # a fixture, found by its name

KINDS = {
    "linear": ("F32", (48, 32), {}, tensor_pb2.TENSOR_KIND_LINEAR),
    "wide": ("F32", (24, 56), {}, tensor_pb2.TENSOR_KIND_UNSPECIFIED),
    "square": ("F32", (64, 64), {}, tensor_pb2.TENSOR_KIND_LINEAR),
    "transposed": ("F32", (32, 48), {"layout": "in_out"}, tensor_pb2.TENSOR_KIND_LINEAR),
    "conv": ("F32", (12, 8, 3, 3), {}, tensor_pb2.TENSOR_KIND_CONV2D),
    "conv-flat": ("F32", (12, 8, 3, 3), {"conv": "flatten"}, tensor_pb2.TENSOR_KIND_CONV2D),
    "stack": ("F32", (5, 16, 12), {"stack": "1"}, tensor_pb2.TENSOR_KIND_STACK),
    "qkv": ("F32", (48, 16), {"split": "3"}, tensor_pb2.TENSOR_KIND_QKV),
    "qkv-bf16": ("BF16", (48, 16), {"split": "16,16,16"}, tensor_pb2.TENSOR_KIND_QKV),
    "bf16": ("BF16", (40, 24), {}, tensor_pb2.TENSOR_KIND_LINEAR),
    "f16": ("F16", (24, 40), {}, tensor_pb2.TENSOR_KIND_LINEAR),
    "f64": ("F64", (40, 24), {}, tensor_pb2.TENSOR_KIND_LINEAR),
    "f64-computed-so": ("F64", (40, 24), {"compute": "f64"}, tensor_pb2.TENSOR_KIND_LINEAR),
    "cubic": ("F32", (40, 24), {"polynomial": "cubic", "steps": "10", "normalize": "frobenius"},
              tensor_pb2.TENSOR_KIND_LINEAR),
    "blend": ("F32", (40, 24), {"blend": "0.25", "scale": "keep-norm"},
              tensor_pb2.TENSOR_KIND_LINEAR),
    "large": ("F32", (320, 200), {}, tensor_pb2.TENSOR_KIND_LINEAR),
}
TIMES = {"compute_ms"}  # what two runs may differ in


def flags_of(options):
    return [flag for key, value in options.items() for flag in ("--set", f"{key}={value}")]


def same_result(result, row):
    """An answer says what a row of firectl --json says."""
    assert result.action == tensor_pb2.TENSOR_ACTION_PROJECTED and row["action"] == "projected"
    exact = () if on_gpu() else ("method", "path", "steps")
    for key in (*exact, "converged", "rank", "rank_defect"):
        assert getattr(result, key) == row[key], key
    assert result.matrices == row.get("matrices", 1)
    same_numbers(result, row)


def same_numbers(result, row):
    """Statistics equal to the last digit that JSON shows, on a GPU to what its sums differ by; what
    is unknown is absent in both."""
    near = {"rel": 1e-2, "abs": 1e-5} if on_gpu() else {"rel": 1e-9, "abs": 1e-300}
    numbers = {key: value for key, value in row.items()
               if isinstance(value, float) and key not in TIMES}
    got = {key: value for key, value in result.statistics.items() if key not in TIMES}
    assert numbers and got == {key: pytest.approx(value, **near)
                               for key, value in numbers.items()}


@pytest.mark.parametrize("name", KINDS)
def test_a_tensor_comes_back_as_the_local_core_makes_it(daemon, tmp_path, name):
    dtype, shape, options, kind = KINDS[name]
    weight = gaussian(*shape, seed=len(name), dtype=dtype)
    want, lines = local(tmp_path, {name: weight}, "--include", name, *flags_of(options))
    answer = daemon.reinit.Reinit(request([(header(name, weight, kind=kind), weight)], options),
                                  timeout=WAIT_S)
    result = answer.results[0]
    same_tensor(answer.data[0], want[name])
    assert (result.name, result.preset) == (name, "fire")
    assert result.role == tensor_pb2.TENSOR_ROLE_WEIGHT and not result.HasField("error")
    same_result(result.result, lines[name])
    assert result.batch.id > 0 and result.batch.size >= 1
    assert result.batch.close_reason != tensor_pb2.CLOSE_REASON_UNSPECIFIED
    assert result.batch.queue_ms >= 0 and result.batch.compute_ms > 0


def test_a_set_is_answered_in_its_order(daemon, tmp_path):
    """Shapes, types and options of their own; a tensor's options stand over the set's."""
    tensors = {f"t{i}": gaussian(8 + i, 24 - i, seed=i, dtype=("F32", "BF16", "F64")[i % 3])
               for i in range(12)}
    want, lines = local(tmp_path, tensors, "--set", "scale=one", "--set", "t3:scale=keep-norm")
    sent = [(header(name, one, {"scale": "keep-norm"} if name == "t3" else None), one)
            for name, one in tensors.items()]
    answer = daemon.reinit.Reinit(request(sent, {"scale": "one"}), timeout=WAIT_S)
    assert [one.name for one in answer.results] == list(tensors)
    assert len(answer.data) == len(tensors)
    for name, data in zip(tensors, answer.data):
        same_tensor(data, want[name])
    for one in answer.results:
        same_result(one.result, lines[one.name])


def test_presets_by_set_and_by_tensor(daemon, tmp_path):
    weight = gaussian(48, 32)
    muon, _ = local(tmp_path, {"w": weight}, "--preset", "official-gpt")
    fire, _ = local(tmp_path, {"w": weight})
    sent = [(header("a", weight), weight), (header("b", weight, preset="fire"), weight)]
    answer = daemon.reinit.Reinit(request(sent, preset="official-gpt"), timeout=WAIT_S)
    assert [one.preset for one in answer.results] == ["official-gpt", "fire"]
    same_tensor(answer.data[0], muon["w"])
    same_tensor(answer.data[1], fire["w"])
    assert len(answer.data) == 2
    assert muon["w"].data != fire["w"].data


def test_how_much_is_measured_is_asked_for(daemon, tmp_path):
    weight = gaussian(48, 32)
    _, lines = local(tmp_path, {"w": weight}, "--spectrum", "--residual")
    full = daemon.reinit.Reinit(
        request({"w": weight}, statistics=tensor_pb2.STATISTICS_LEVEL_SPECTRUM, residual=True),
        timeout=WAIT_S)
    same_result(full.results[0].result, lines["w"])
    assert {"condition_before", "effective_rank_after", "srank_before",
            "polar_residual"} <= set(full.results[0].result.statistics)
    none = daemon.reinit.Reinit(
        request({"w": weight}, statistics=tensor_pb2.STATISTICS_LEVEL_NONE), timeout=WAIT_S)
    assert "dfi_before" not in none.results[0].result.statistics
    same_tensor(none.data[0], weight._replace(data=full.data[0]))  # the spectrum is the CPU's


def test_each_matrix_is_reported_when_asked_for(daemon, tmp_path):
    stack = gaussian(5, 16, 12)
    want, lines = local(tmp_path, {"w": stack}, "--set", "stack=1", "--per-matrix")
    answer = daemon.reinit.Reinit(request({"w": stack}, {"stack": "1"}, per_matrix=True),
                                  timeout=WAIT_S)
    same_tensor(answer.data[0], want["w"])
    assert len(answer.results[0].per_matrix) == 5
    for result, row in zip(answer.results[0].per_matrix, lines["w"]["per_matrix"]):
        same_numbers(result, row)


# --- optimizer state, activations, gradients ------------------------------------------------------

STATE = {"exp_avg": gaussian(32, 16, seed=5), "exp_avg_sq": gaussian(32, 16, seed=6),
         "momentum_buffer": gaussian(32, 16, seed=7, dtype="BF16"),
         "step": tensor(np.array([7]), "I64")}


def state_headers(parameter="fc"):
    return [(header(f"{parameter}.{slot}", one, role=tensor_pb2.TENSOR_ROLE_STATE,
                    parameter=parameter, slot=slot), one) for slot, one in STATE.items()]


@pytest.mark.parametrize("policy", ["keep", "zero", "reset", "transport"])
def test_state_follows_the_policy(daemon, tmp_path, policy):
    weight = gaussian(32, 16)
    save(tmp_path / "state.safetensors", {f"fc.{slot}": one for slot, one in STATE.items()})
    want, _ = local(tmp_path, {"fc": weight}, "--state", tmp_path / "state.safetensors",
                    "--state-out", tmp_path / "new.safetensors", "--state-policy", policy)
    want_state = load(tmp_path / "new.safetensors")
    sent = [*state_headers()[:2], (header("fc", weight), weight), *state_headers()[2:]]
    answer = daemon.reinit.Reinit(request(sent, {"state_policy": policy}), timeout=WAIT_S)
    for one, data in zip(answer.results, answer.data):
        if one.name == "fc":
            same_tensor(data, want["fc"])
            continue
        assert one.role == tensor_pb2.TENSOR_ROLE_STATE and one.parameter == "fc"
        assert one.result.action == tensor_pb2.TENSOR_ACTION_STATE
        assert one.state == policy
        same_tensor(data, want_state[one.name])
    assert [one.name for one in answer.results] == [about.name for about, _ in sent]


def test_state_travels_through_a_stream(daemon, tmp_path):
    weight = gaussian(32, 16)
    save(tmp_path / "state.safetensors", {f"fc.{slot}": one for slot, one in STATE.items()})
    want, _ = local(tmp_path, {"fc": weight}, "--state", tmp_path / "state.safetensors",
                    "--state-out", tmp_path / "new.safetensors", "--state-policy", "transport")
    want_state = load(tmp_path / "new.safetensors")
    sent = [*state_headers()[:3], (header("fc", weight), weight)]
    got = collect(daemon.reinit.ReinitStream(
        stream_messages(sent, {"state_policy": "transport"}), timeout=WAIT_S))
    for number, (about, _) in enumerate(sent, 1):
        (result, data), = got[number]
        assert result.name == about.name
        same_tensor(data, want["fc"] if about.name == "fc" else want_state[about.name])


def test_dormant_ratios_from_activations_means_and_gradients(daemon, tmp_path):
    activations = np.abs(gaussian(10, 32, seed=1).array()).copy()
    activations[:, ::4] = 0.0
    means = np.abs(gaussian(24, seed=2).array()).copy()
    means[:6] = 0.0
    gradient = gaussian(32, 16, seed=3).array().copy()
    gradient[:8] = 0.0
    weights = {"a": gaussian(32, 16), "b": gaussian(24, 16, seed=4)}
    others = [("a.activations", tensor(activations), tensor_pb2.TENSOR_ROLE_ACTIVATIONS, "a"),
              ("b.unit_means", tensor(means), tensor_pb2.TENSOR_ROLE_UNIT_MEANS, "b"),
              ("a.grad", tensor(gradient), tensor_pb2.TENSOR_ROLE_GRADIENT, "a")]
    save(tmp_path / "acts.safetensors", {name: one for name, one, _, _ in others[:2]})
    save(tmp_path / "grads.safetensors", {name: one for name, one, _, _ in others[2:]})
    flags = ["--activations", tmp_path / "acts.safetensors", "--gradients",
             tmp_path / "grads.safetensors"]
    _, lines = local(tmp_path, weights, *flags)
    sent = [(header(name, one, role=role, parameter=parameter), one)
            for name, one, role, parameter in others]
    sent += [(header(name, one), one) for name, one in weights.items()]
    answer = daemon.reinit.Reinit(request(sent), timeout=WAIT_S)
    assert [one.name for one in answer.results] == ["a", "b"]
    for one in answer.results:
        same_result(one.result, lines[one.name])
    assert answer.results[0].result.statistics["dormant_ratio"] == 0.25
    assert answer.results[0].result.statistics["gradient_dormant_ratio"] == 0.25
    assert answer.results[1].result.statistics["dormant_ratio"] == 0.25
    streamed = collect(daemon.reinit.ReinitStream(stream_messages(sent), timeout=WAIT_S))
    assert sorted(streamed) == [4, 5]
    for number, name in ((4, "a"), (5, "b")):
        same_result(streamed[number][0][0].result, lines[name])


# --- analyze --------------------------------------------------------------------------------------


def test_analyze_in_both_forms(daemon, tmp_path):
    tensors = {"w": gaussian(48, 32), "conv": gaussian(12, 8, 3, 3, seed=1),
               "half": gaussian(16, 16, seed=2, dtype="BF16")}
    _, lines = local(tmp_path, tensors, "--spectrum", command="analyze")
    level = tensor_pb2.STATISTICS_LEVEL_SPECTRUM
    answer = daemon.reinit.Analyze(
        request(tensors, kind=reinit_pb2.AnalyzeRequest, statistics=level), timeout=WAIT_S)
    assert [one.name for one in answer.results] == list(tensors)
    sent = [(header(name, one), one) for name, one in tensors.items()]
    streamed = daemon.reinit.AnalyzeStream(
        stream_messages(sent, kind=reinit_pb2.AnalyzeStreamRequest, statistics=level),
        timeout=WAIT_S)
    results = [*answer.results, *(one.result for one in streamed)]
    assert len(results) == 6
    for one in results:
        assert one.result.action == tensor_pb2.TENSOR_ACTION_ANALYZED
        same_numbers(one.result, lines[one.name])


# --- streams --------------------------------------------------------------------------------------


def test_a_large_tensor_in_pieces_is_the_same_as_in_one_message(daemon):
    """2.3 MiB in pieces of 1 MiB, of 4 MiB, and of a size that divides nothing."""
    weight = gaussian(784, 768)
    whole = daemon.reinit.Reinit(request({"w": weight}), timeout=WAIT_S)
    for chunk_bytes in (1 << 20, 4 << 20, 99991):
        got = collect(daemon.reinit.ReinitStream(
            stream_messages([(header("w", weight), weight)], chunk_bytes=chunk_bytes),
            timeout=WAIT_S))
        assert got[1][0][1] == whole.data[0]


def test_pieces_of_four_tensors_may_interleave(daemon):
    """Odd sizes, narrow types and pieces that cut elements in two."""
    tensors = [gaussian(64, 48, seed=1), gaussian(33, 65, seed=2, dtype="BF16"),
               gaussian(16, 8, 3, 3, seed=3), gaussian(40, 40, seed=4, dtype="F64")]
    names = [f"t{i}" for i in range(4)]
    whole = daemon.reinit.Reinit(request(dict(zip(names, tensors))), timeout=WAIT_S)
    pieces = [list(chunks(i + 1, one, 1001)) for i, one in enumerate(tensors)]

    def messages():
        yield reinit_pb2.ReinitStreamRequest(header=set_header())
        for i, one in enumerate(tensors):
            yield begin(i + 1, header(names[i], one), one)
        for turn in range(max(map(len, pieces))):
            for mine in pieces:
                yield from mine[turn:turn + 1]

    got = collect(daemon.reinit.ReinitStream(messages(), timeout=WAIT_S))
    assert [got[i + 1][0][1] for i in range(4)] == list(whole.data)


def test_many_tensors_in_sets_and_an_id_used_again(daemon):
    """An id is free once its answer is complete; the next set may use it."""
    weights = [gaussian(32, 24, seed=i) for i in range(6)]
    whole = daemon.reinit.Reinit(request({f"w{i}": one for i, one in enumerate(weights)}),
                                 timeout=WAIT_S)
    feed = Feed()
    answers = daemon.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()))
    for i, one in enumerate(weights):
        feed.send(begin(7, header(f"w{i}", one), one), *chunks(7, one),
                  reinit_pb2.ReinitStreamRequest(end_of_set=reinit_pb2.EndOfSet()))
        first = next(answers)
        assert first.begin.id == 7 and first.begin.result.name == f"w{i}"
        data = b""
        while len(data) < first.begin.total_bytes:
            data += next(answers).data
        assert data == whole.data[i]
    feed.close()
    assert list(answers) == []


def test_answers_come_before_the_upload_is_over(daemon):
    """The first tensor is answered while the second is still being sent."""
    first, second = gaussian(32, 24), gaussian(32, 24, seed=1)
    feed = Feed()
    answers = daemon.reinit.ReinitStream(iter(feed), timeout=WAIT_S)
    feed.send(reinit_pb2.ReinitStreamRequest(header=set_header()),
              begin(1, header("a", first), first), *chunks(1, first),
              begin(2, header("b", second), second))
    assert next(answers).begin.result.name == "a"
    feed.send(*chunks(2, second))
    feed.close()
    rest = list(answers)
    assert [one.begin.id for one in rest if one.WhichOneof("body") == "begin"] == [2]


def test_an_empty_stream_is_answered_with_nothing(daemon):
    assert collect(daemon.reinit.ReinitStream(
        iter([reinit_pb2.ReinitStreamRequest(header=set_header())]), timeout=WAIT_S)) == {}


# --- bad tensors beside good ones -----------------------------------------------------------------


def bad_and_good():
    spoilt = gaussian(32, 24).array().copy()
    spoilt[3, 5] = np.nan
    return {"good": gaussian(32, 24, seed=1), "bad": tensor(spoilt),
            "fine": gaussian(32, 24, seed=2)}


def test_skip_answers_the_bad_tensor_with_its_error_and_does_the_others(daemon):
    tensors = bad_and_good()
    good = {name: one for name, one in tensors.items() if name != "bad"}
    want = daemon.reinit.Reinit(request(good), timeout=WAIT_S)
    answer = daemon.reinit.Reinit(request(tensors, on_bad=tensor_pb2.ON_BAD_SKIP), timeout=WAIT_S)
    assert [one.name for one in answer.results] == list(tensors)
    assert [bytes(one) for one in answer.data] == [want.data[0], b"", want.data[1]]
    bad = answer.results[1]
    assert bad.result.action == tensor_pb2.TENSOR_ACTION_REFUSED
    assert bad.error.code == 3 and bad.error.field.startswith("tensors[1]")
    assert "NaN" in bad.error.message and str(3 * 24 + 5) in bad.error.message


def test_a_stream_answers_the_bad_tensor_and_goes_on(daemon):
    tensors = bad_and_good()
    good = {name: one for name, one in tensors.items() if name != "bad"}
    want = daemon.reinit.Reinit(request(good), timeout=WAIT_S)
    sent = [(header(name, one), one) for name, one in tensors.items()]
    got = collect(daemon.reinit.ReinitStream(stream_messages(sent), timeout=WAIT_S))
    assert (got[1][0][1], got[3][0][1]) == tuple(want.data)
    result, data = got[2][0]
    assert data == b"" and result.result.action == tensor_pb2.TENSOR_ACTION_REFUSED
    assert result.error.code == 3 and "NaN" in result.error.message


# --- many callers ---------------------------------------------------------------------------------


def test_who_shares_a_batch_does_not_change_the_numbers(daemon):
    """Callers at once with one shape: each gets the bytes it gets alone. One of them sends a NaN
    every time, and changes nothing for the others."""
    weights = [gaussian(48, 32, seed=i) for i in range(12)]
    alone = [daemon.reinit.Reinit(request({"w": one}), timeout=WAIT_S).data[0] for one in weights]
    spoilt = weights[0].array().copy()
    spoilt[0, 0] = np.nan
    failures, sizes = [], []
    gate = threading.Barrier(len(weights) + 1)

    def caller(number):
        gate.wait(WAIT_S)
        for _ in range(10):
            answer = daemon.reinit.Reinit(request({"w": weights[number]}), timeout=WAIT_S)
            sizes.append(answer.results[0].batch.size)
            if answer.data[0] != alone[number]:
                failures.append(number)

    def spoiler():
        gate.wait(WAIT_S)
        for _ in range(10):
            answer = daemon.reinit.Reinit(
                request({"w": tensor(spoilt)}, on_bad=tensor_pb2.ON_BAD_SKIP), timeout=WAIT_S)
            sizes.append(0)
            if answer.results[0].error.code != 3:
                failures.append("spoiler")

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(len(weights))]
    threads.append(threading.Thread(target=spoiler))
    for one in threads:
        one.start()
    for one in threads:
        one.join(WAIT_S)
    assert not failures and len(sizes) == 10 * len(threads), len(sizes)


# --- administration -------------------------------------------------------------------------------


def test_status_tells_what_was_done(daemon):
    before = daemon.status()
    daemon.reinit.Reinit(request({"w": gaussian(56, 44)}), timeout=WAIT_S,
                         metadata=[("x-fired-tenant", "alice")])
    daemon.wait_idle()  # an answer is read before its call is over on the other side
    after = daemon.status()
    assert after.version and after.uptime_seconds >= before.uptime_seconds > 0
    assert not after.draining and daemon.address in after.addresses
    assert after.calls_total > before.calls_total
    assert after.devices[0].matrices == before.devices[0].matrices + 1
    assert after.devices[0].busy_seconds > before.devices[0].busy_seconds
    assert after.devices[0].backend == ("cuda" if on_gpu() else "cpu")
    assert after.devices[0].in_service
    assert after.devices[0].threads >= 1 and after.devices[0].path
    alice, = [one for one in after.tenants if one.name == "alice"]
    assert alice.calls_total >= 1 and alice.device_seconds > 0 and alice.bytes_in_flight == 0
    bucket, = [one for one in after.buckets if "56x44" in one.key or "44x56" in one.key]
    assert bucket.matrices >= 1 and bucket.batches >= 1 and bucket.waiting == 0
    memory = after.memory
    assert memory.slab_bytes_max + memory.message_bytes_max <= memory.budget_bytes
    assert memory.resident_bytes > 0 and memory.slab_bytes <= memory.slab_bytes_max


def test_the_log_level_is_changed_and_told(daemon):
    was = daemon.admin.SetLogLevel(
        admin_pb2.SetLogLevelRequest(level=admin_pb2.LOG_LEVEL_DEBUG), timeout=WAIT_S)
    assert was.previous == admin_pb2.LOG_LEVEL_INFO
    assert daemon.status().log_level == admin_pb2.LOG_LEVEL_DEBUG
    since = len(daemon.lines)
    daemon.reinit.Reinit(request({"w": gaussian(16, 8)}), timeout=WAIT_S)
    line = daemon.wait_log(lambda line: line["level"] == "debug", since)
    assert line["event"]
    was = daemon.admin.SetLogLevel(
        admin_pb2.SetLogLevelRequest(level=admin_pb2.LOG_LEVEL_INFO), timeout=WAIT_S)
    assert was.previous == admin_pb2.LOG_LEVEL_DEBUG


def test_priorities_runs_and_steps_are_accepted(daemon):
    want = daemon.reinit.Reinit(request({"w": gaussian(16, 8)}), timeout=WAIT_S)
    for priority in (tensor_pb2.PRIORITY_INTERACTIVE, tensor_pb2.PRIORITY_NORMAL,
                     tensor_pb2.PRIORITY_BULK):
        answer = daemon.reinit.Reinit(
            request({"w": gaussian(16, 8)}, priority=priority, run="r" * 128, step=1 << 40),
            timeout=WAIT_S)
        assert answer.data[0] == want.data[0]


def test_firectl_through_the_daemon_writes_what_it_writes_alone(daemon, tmp_path):
    tensors = {"fc1.weight": gaussian(64, 48), "fc1.bias": gaussian(64),
               "conv": gaussian(8, 8, 3, 3, dtype="BF16"), "fc2.weight": gaussian(700, 500)}
    want, lines = local(tmp_path, tensors)
    done = firectl("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "remote.safetensors",
                   "--addr", daemon.address, "--json", "--arch", "none")
    got = load(tmp_path / "remote.safetensors")
    assert [(name, one.dtype, one.shape) for name, one in got.items()] == [
        (name, one.dtype, one.shape) for name, one in want.items()]
    for name, one in got.items():
        same_tensor(one.data, want[name])
    for name, row in rows(done).items():
        assert row["action"] == lines[name]["action"]
        for key in () if on_gpu() else ("dfi_before", "dfi_after", "sfe", "method", "path"):
            assert row.get(key) == lines[name].get(key), key
