"""The daemon on an emulated GPU: it finds the plugin, serves with it, says so, and goes on without
it when it is lost. The daemon's environment chooses the emulator; nothing else differs from a
machine with a GPU."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from build import BUILD, EMULATED, EMULATED_FLAGS as SMALL  # noqa: E402
from daemon import (WAIT_S, Daemon, fired, firectl, gaussian, health_pb2, load,  # noqa: E402
                    request, rows, save)
from fire.v1 import monitor_pb2, monitor_pb2_grpc  # noqa: E402

pytestmark = pytest.mark.skipif(not (BUILD / "lib" / "fired" / "fire_cuda.so").exists(),
                                reason="no CUDA compiler, so neither plugin nor emulator")
NO_GPU = EMULATED | {"FIRE_EMULATOR_DEVICES": "0"}


@pytest.fixture
def start(tmp_path):
    """Starts daemons that end with the test."""
    running = []

    def make(*flags, environment=None):
        folder = tmp_path / str(len(running))
        folder.mkdir()
        running.append(Daemon(folder, *SMALL, *flags,
                              environment=EMULATED | (environment or {})).start())
        return running[-1]

    yield make
    for one in running:
        if one.process.poll() is None:
            assert one.stop() == 0, one.text()


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    """A daemon on one GPU."""
    one = Daemon(tmp_path_factory.mktemp("gpu"), *SMALL, "--cuda", "require",
                 environment=EMULATED).start().wait_ready()
    yield one
    assert one.stop() == 0, one.text()


def serving(daemon):
    answer = daemon.health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def device_events(daemon, count):
    """(backend, device, state) of what the history knows of devices, the oldest first. Events are
    written a moment after they happened."""
    stub, found = monitor_pb2_grpc.MonitorServiceStub(daemon.channel()), []

    def there():
        events = stub.ListEvents(monitor_pb2.ListEventsRequest(
            kind=monitor_pb2.EVENT_KIND_DEVICE), timeout=WAIT_S).events
        found[:] = [(event.attributes["backend"], event.attributes["device"],
                     event.attributes["state"]) for event in reversed(events)]
        assert all(event.text and not event.run for event in events)
        return len(found) >= count

    daemon.wait_for(there, f"{count} events of devices")
    return found


def answered(daemon, tensors, options=None):
    """Results and weights by name."""
    answer = daemon.reinit.Reinit(request(tensors, options), timeout=WAIT_S)
    return {result.name: (result.result, np.frombuffer(data, np.float32))
            for result, data in zip(answer.results, answer.data)}


def tensors():
    return {"small": gaussian(24, 16, seed=1), "square": gaussian(48, 48, seed=2),
            "long": gaussian(160, 72, seed=3)}


def test_status_and_log_show_the_device(gpu):
    devices = gpu.status().devices
    assert [one.backend for one in devices] == ["cuda", "cpu"]
    assert all(one.in_service for one in devices)
    assert "emulated" in devices[0].name and devices[0].path.startswith("cuda-sm")
    told = [line for line in gpu.log() if line["event"] == "device"]
    assert [(line["backend"], line["standby"]) for line in told] == [("cuda", False), ("cpu", True)]


def test_matrices_go_to_the_gpu_and_come_back_right(gpu, tmp_path):
    sent = tensors()
    before = gpu.status().devices
    got = answered(gpu, sent)
    after = gpu.status().devices
    save(tmp_path / "in.safetensors", sent)
    done = firectl("reinit", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors",
                   "--local", "--arch", "none", "--json")
    wanted = load(tmp_path / "out.safetensors")
    for name, row in rows(done).items():
        result, weights = got[name]
        reference = np.frombuffer(wanted[name].data, np.float32)
        assert result.path.startswith("cuda"), (name, result.path)
        assert result.converged
        assert np.linalg.norm(weights - reference) <= 2e-5 * np.linalg.norm(reference), name
        for key in ("dfi_before", "sfe", "norm_before", "norm_after", "spectral_norm_before"):
            assert result.statistics[key] == pytest.approx(row[key], rel=1e-3), (name, key)
    assert after[0].matrices == before[0].matrices + len(sent)
    assert after[1].matrices == before[1].matrices


def test_the_same_bytes_give_the_same_bytes(gpu):
    sent = tensors()
    alone = {name: answered(gpu, {name: one})[name][1] for name, one in sent.items()}
    together = answered(gpu, sent | {f"other{i}": gaussian(48, 48, seed=9 + i) for i in range(3)})
    for name, weights in alone.items():
        assert np.array_equal(weights, together[name][1]), name


def test_what_a_gpu_cannot_do_says_so(gpu):
    got = answered(gpu, {"w": gaussian(24, 16)}, {"compute": "f64"})
    assert not got["w"][0].path.startswith("cuda")


def test_metrics_and_firectl_show_the_device(gpu):
    up = {key: value for key, value in gpu.metrics().items()
          if key.startswith("fired_device_up")}
    assert len(up) == 2 and all(value == 1 for value in up.values()), up
    assert any("cuda-sm" in key for key in up)
    assert "cuda" in firectl("status", "--addr", gpu.address).stdout


def test_a_lost_device_is_replaced_by_the_cpu(start):
    # Enough operations for the start, then none.
    one = start("--cuda", "auto", environment={"FIRE_EMULATOR_FAIL_ASYNC": "3000"}).wait_ready()
    if one.status().devices[0].backend != "cuda":
        pytest.fail("the device was lost before it served: raise FIRE_EMULATOR_FAIL_ASYNC")
    sent = tensors()
    for _ in range(400):
        got = answered(one, sent)
        assert all(result.converged for result, _ in got.values())
        if not one.status().devices[0].in_service:
            break
    one.wait_event("device_lost")
    one.wait_event("degraded")
    assert serving(one)
    assert not answered(one, sent)["long"][0].path.startswith("cuda")
    assert device_events(one, 3) == [("cuda", "0", "in_service"), ("cpu", "1", "standby"),
                                     ("cuda", "0", "lost")]
    assert json.loads(one.http("/api/v1/events?kind=device&limit=1")[1])["events"][0][
        "attributes"]["state"] == "lost"
    gauges = one.metrics()
    assert [gauges[key] for key in sorted(gauges) if key.startswith("fired_device_up")] == [0, 1]


def test_a_required_device_that_is_lost_ends_the_service(start):
    one = start("--cuda", "require", environment={"FIRE_EMULATOR_FAIL_ASYNC": "3000"}).wait_ready()
    for _ in range(400):
        answered(one, tensors())
        if not one.status().devices[0].in_service:
            break
    one.wait_event("device_lost")
    one.wait_for(lambda: not serving(one), "a health that says no")


def test_without_a_device_the_cpu_serves_and_one_line_says_why(start):
    one = start(environment=NO_GPU).wait_ready()
    assert [device.backend for device in one.status().devices] == ["cpu"]
    assert len([line for line in one.log() if line["event"] == "no_gpu"]) == 1
    assert device_events(one, 1) == [("cpu", "0", "in_service")]
    answered(one, tensors())


def test_a_required_device_that_is_missing_is_an_error():
    done = fired("--selftest", "--cuda", "require", *SMALL, code=1, environment=NO_GPU)
    assert "no NVIDIA driver" in done.stderr


def test_a_device_without_memory_stays_out(start):
    one = start(environment={"FIRE_EMULATOR_MEMORY": str(16 << 20)}).wait_ready()
    assert [device.backend for device in one.status().devices] == ["cpu"]
    assert "device_refused" in one.text()
    assert device_events(one, 2) == [("cuda", "0", "refused"), ("cpu", "0", "in_service")]


def test_two_devices_serve_in_one_daemon(start):
    one = start(environment={"FIRE_EMULATOR_DEVICES": "2"}).wait_ready()
    assert [device.backend for device in one.status().devices] == ["cuda", "cuda", "cpu"]
    answered(one, tensors())
