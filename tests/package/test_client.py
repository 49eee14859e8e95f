"""The client: where the daemon is, what happens when it is away, processes and threads."""
import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import fired
from conftest import ROOT, WAIT_S
from daemons import alive, wait_for


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def is_isometry(array, scale):
    small = min(array.shape)
    gram = array @ array.T if array.shape[0] == small else array.T @ array
    return np.abs(gram / scale**2 - np.eye(small)).max() < 1e-4


def test_projects_arrays_and_leaves_the_old_ones(client):
    weights = {"a": gaussian(48, 32), "b": gaussian(16, 64), "bias": gaussian(7)}
    before = {name: array.copy() for name, array in weights.items()}
    new, report = client.reinit_arrays(weights)
    for name in weights:
        assert np.array_equal(weights[name], before[name])
    assert is_isometry(new["a"], (48 / 32) ** 0.5)
    assert is_isometry(new["b"], 0.5)
    assert np.array_equal(new["bias"], before["bias"])
    assert report.projected == ["a", "b"]
    assert report["bias"].reason == "1-D"
    assert report["a"].dfi_unscaled_after < 1e-6
    assert report.place == "daemon"


def test_local_gives_the_daemons_bits(client, local):
    weights = {f"w{k}": gaussian(8 * k, 40, seed=k) for k in range(1, 9)}
    there, _ = client.reinit_arrays(weights)
    here, report = local.reinit_arrays(weights)
    assert report.place == "local"
    for name in weights:
        assert np.array_equal(here[name], there[name]), name


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_every_dtype_comes_back_as_it_came(client, dtype):
    new, _ = client.reinit_arrays({"w": gaussian(24, 24).astype(dtype)})
    assert new["w"].dtype == dtype
    assert is_isometry(new["w"].astype(np.float64), 1.0) or dtype == "float16"


def test_a_large_set_is_streamed(client):
    weights = {f"w{k}": gaussian(512, 512, seed=k) for k in range(12)}  # 12 MiB
    new, report = client.reinit_arrays(weights, options={"scale": "one"})
    assert len(report.projected) == 12
    assert all(is_isometry(array, 1.0) for array in new.values())


def test_statistics_of_activations_and_gradients(client):
    means = [0.0] * 8 + [1.0] * 24
    report = client.analyze_arrays({"w": gaussian(32, 16)}, unit_means={"w": means},
                                   gradients={"w": gaussian(32, 16)}, statistics="spectrum")
    assert report["w"].action == "analyzed"
    assert report["w"].dormant_ratio == 0.25
    assert report["w"].gradient_dormant_ratio == 0.0
    assert report["w"].condition_before > 1
    with pytest.raises(AttributeError, match="is not known"):
        _ = report["w"].no_such_number


def test_options_for_some_arrays_only(client):
    new, _ = client.reinit_arrays({"a": gaussian(8, 8), "b": gaussian(8, 8)},
                                  options={"scale": "one", "b:variance": 3.0})
    assert is_isometry(new["a"], 1.0)
    assert is_isometry(new["b"], 3.0)


@pytest.mark.parametrize("arrays, options, words", [
    ({"w": np.full((4, 4), np.nan, np.float32)}, {}, "w"),
    ({"w": np.ones((4, 4), np.float32)}, {"no_such": 1}, "no_such"),
    ({"w": np.ones((4, 4), np.float32)}, {"scale": "large"}, "scale"),
    ({"w": np.ones((4, 4), np.float32)}, {"target": 1e-30}, "floor"),
])
def test_bad_input_names_the_parameter(client, arrays, options, words):
    with pytest.raises(fired.ParameterError, match=words) as caught:
        client.reinit_arrays(arrays, options=options)
    assert caught.value.parameter == "w"


def test_bad_arguments_are_refused_at_once():
    for arguments, words in (({"on_error": "ignore"}, "on_error"), ({"deadline": -1}, "deadline"),
                             ({"addr": "nowhere"}, "address"), ({"run": "a\nb"}, "line end"),
                             ({"addr": "example.org:1", "token": "x"}, "unprotected"),
                             ({"addr": "unix:/x", "ca": "/no/such/file"}, "/no/such/file")):
        with pytest.raises(fired.ParameterError, match=words):
            fired.Client(**arguments)


def test_address_from_the_environment(start, monkeypatch):
    daemon = start()
    monkeypatch.setenv("FIRED_ADDR", daemon.address)
    with fired.Client() as client:
        assert client.addr == daemon.address
        client.reinit_arrays({"w": gaussian(8, 8)})


def test_nobody_there(tmp_path):
    address = f"unix:{tmp_path}/nobody"
    weights = {"w": gaussian(8, 8)}
    with pytest.raises(fired.UnavailableError):
        fired.Client(address, retries=0, deadline=60).reinit_arrays(weights)
    with pytest.warns(fired.FiredWarning, match="skipped"):
        new, report = fired.Client(address, retries=0, deadline=60,
                                   on_error="skip").reinit_arrays(weights)
    assert report.skipped and new["w"] is weights["w"]
    with pytest.warns(fired.FiredWarning, match="locally"):
        new, report = fired.Client(address, retries=0, deadline=60,
                                   on_error="local").reinit_arrays(weights)
    assert report.place == "local" and is_isometry(new["w"], 1.0)


def test_a_mistake_is_raised_whatever_on_error_says(tmp_path):
    for on_error in ("skip", "local"):
        with pytest.raises(fired.ParameterError):
            fired.Client("local", on_error=on_error).reinit_arrays(
                {"w": np.full((4, 4), np.inf, np.float32)})


def test_deadline_passes():
    with fired.Client() as client:
        with pytest.raises(fired.DeadlineError):
            client.reinit_arrays({"w": gaussian(2048, 2048)}, deadline=0.005)


def test_tls_and_token(start, tmp_path):
    subprocess.run([ROOT / "deploy" / "make-certs", tmp_path / "certs"], check=True,
                   capture_output=True)
    token = "0123456789abcdef0123456789abcdef"
    hashed = subprocess.run([os.environ["FIRED_BUILD"] + "/bin/fired", "--hash-token"],
                            input=token + "\n", capture_output=True, text=True, check=True).stdout
    credentials = tmp_path / "credentials.yaml"
    credentials.write_text("tokens:\n  - name: team\n    tenant: team\n"
                           f"    hash: {hashed.strip()}\n    allow: [\"*\"]\n")
    credentials.chmod(0o600)
    certs = tmp_path / "certs"
    daemon = start("--tls-certificate", certs / "server.pem", "--tls-key", certs / "server.key",
                   "--credentials", credentials, listen="127.0.0.1:0")
    with fired.Client(daemon.address, ca=certs / "ca.pem", token=token) as client:
        client.reinit_arrays({"w": gaussian(8, 8)})
    with fired.Client(daemon.address, ca=certs / "ca.pem", token="wrong") as client:
        with pytest.raises(fired.AuthError):
            client.reinit_arrays({"w": gaussian(8, 8)})


def test_asyncio_has_several_calls_on_their_way(start):
    daemon = start()

    async def main():
        async with fired.AsyncClient(daemon.address) as client:
            calls = [client.reinit_arrays({"w": gaussian(64, 64, seed=k)}) for k in range(20)]
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)

            ticking = asyncio.create_task(tick())
            answers = await asyncio.gather(*calls)
            ticking.cancel()
            return answers, ticks

    answers, ticks = asyncio.run(main())
    assert len(answers) == 20 and ticks > 0
    assert all(is_isometry(new["w"], 1.0) for new, _ in answers)


def test_threads_share_a_client(client):
    failures = []

    def work(seed):
        try:
            new, _ = client.reinit_arrays({"w": gaussian(32, 32, seed=seed)})
            assert is_isometry(new["w"], 1.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not failures


def test_a_client_can_be_pickled(start):
    daemon = start()
    client = pickle.loads(pickle.dumps(fired.Client(daemon.address, run="r")))
    assert client.run == "r"
    client.reinit_arrays({"w": gaussian(8, 8)})


# A daemon of its own, used before and after fork(), by parent and child.
FORK = """
import os, sys, numpy as np, fired
client = fired.Client()
weights = {"w": np.random.default_rng(0).normal(size=(16, 16)).astype("f4")}
if sys.argv[1] == "used":
    client.reinit_arrays(weights)
child = os.fork()
if child == 0:
    new, report = client.reinit_arrays(weights)
    os._exit(0 if report.place == "daemon" else 3)
new, report = client.reinit_arrays(weights)
assert report.place == "daemon"
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("both")
"""


@pytest.mark.parametrize("used", ["fresh", "used"])
def test_fork(script, used):
    assert script(FORK, used) == "both\n"


EMBEDDED = """
import sys, time, numpy as np, fired
from fired._daemon import embedded
client = fired.Client()
client.reinit_arrays({"w": np.eye(8, dtype="f4")})
print(embedded().pid, embedded().folder, flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
if sys.argv[1] == "raise":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("end", ["exit", "raise", "kill"])
def test_the_embedded_daemon_ends_with_its_process(tmp_path, end):
    path = tmp_path / "program.py"
    path.write_text(EMBEDDED)
    program = subprocess.Popen([sys.executable, path, "wait" if end == "kill" else end],
                               stdout=subprocess.PIPE, text=True)
    pid, folder = program.stdout.readline().split()
    if end == "kill":
        assert alive(pid)
        program.send_signal(signal.SIGKILL)
    program.wait(WAIT_S)
    wait_for(lambda: not alive(pid), "the daemon's end")
    wait_for(lambda: not os.path.exists(folder), "the daemon's folder to go")


def test_an_embedded_daemon_that_died_is_started_again():
    from fired._daemon import embedded
    with fired.Client(threads=1) as client:
        client.reinit_arrays({"w": gaussian(8, 8)})
        os.kill(embedded(1).pid, signal.SIGKILL)
        wait_for(lambda: not embedded(1).alive() or True, "its end")
        wait_for(lambda: _works(client), "a new daemon")


def _works(client):
    try:
        client.reinit_arrays({"w": gaussian(8, 8)})
        return True
    except fired.UnavailableError:
        return False


def test_a_missing_library_says_what_to_do(script):
    out = script("import fired\ntry:\n    fired.presets()\nexcept fired.LibraryError as error:\n"
                 "    print(error)\n", FIRED_LIBRARY="/no/such/libfire.so")
    assert "/no/such/libfire.so" in out and "cmake" in out


def test_a_missing_daemon_says_what_to_do(script):
    out = script("import fired, numpy\ntry:\n"
                 "    fired.Client().reinit_arrays({'w': numpy.eye(3)})\n"
                 "except fired.DaemonError as error:\n    print(error)\n",
                 FIRED_DAEMON="/no/such/fired")
    assert "/no/such/fired" in out
