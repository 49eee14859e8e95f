"""The wheel in an environment that knows nothing of the repository, beside grpcio and torch."""
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from conftest import BUILD, ROOT, WAIT_S

PROGRAM = """
import grpc, numpy, torch                     # another gRPC in the same process
from grpc_health.v1 import health_pb2, health_pb2_grpc
import fired
import fired.torch
from fired._daemon import find_daemon
assert "site-packages" in fired.__file__, fired.__file__
print(fired.library_path())
print(find_daemon())
client = fired.Client()
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
client.reinit(net, optimizer=torch.optim.Adam(net.parameters()))
with grpc.insecure_channel(client.addr) as channel:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
client.reinit(net)
maps = open("/proc/self/maps").read()
print([line.split()[-1] for line in maps.splitlines() if "libgrpc.so" in line][0])
"""


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          timeout=5 * WAIT_S, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if (BUILD / "CMakeCache.txt").exists() and "FIRE_SANITIZE:STRING=a" in (
            BUILD / "CMakeCache.txt").read_text():
        pytest.skip("a sanitized library cannot be loaded by Python")
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder,
        copy_of(folder), env={**os.environ, "FIRED_BUILD": str(BUILD)})
    return next(folder.glob("*.whl"))


def copy_of(folder):
    """The package's source in a folder of its own: building leaves files beside it."""
    return shutil.copytree(ROOT / "client" / "python", folder / "source",
                           ignore=shutil.ignore_patterns("experiments", "__pycache__", "build"))


def test_the_wheel_carries_what_it_needs(wheel, tmp_path):
    names = [pathlib.Path(name).name for name in zipfile.ZipFile(wheel).namelist()]
    assert {"libfire.so", "fired", "py.typed", "libgrpc.so.29"} <= set(names)
    assert not any(name.startswith(("libc.so", "libstdc++")) for name in names)
    assert "py3-none-linux" in wheel.name
    environment = tmp_path / "venv"
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith("FIRED_") and key not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install",
        "--no-deps", "--no-index", wheel, env=clean)
    # torch and grpcio are those of the tests: gigabytes that need not be installed twice.
    site = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
                            ).strip())
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    said = run(python, "-c", PROGRAM, cwd=tmp_path, env=clean).splitlines()
    for path in said:
        assert path.startswith(str(environment)), said


def test_the_source_distribution(tmp_path):
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path,
        copy_of(tmp_path))
    archive = next(tmp_path.glob("fired-*.tar.gz"))
    listing = run("tar", "tf", archive)
    assert "fired/py.typed" in listing and "fired/torch/_reinit.py" in listing
