"""libfire called from another language: the flat functions, through ctypes."""
import numpy as np
import pytest

import libfire
import reference
from tools import gaussian, reinit

LIBRARY = libfire.build_folder() / "lib" / "libfire.so"


@pytest.fixture(scope="module")
def client():
    assert LIBRARY.exists(), f"{LIBRARY} is missing: build it with cmake --build --preset release"
    contents = LIBRARY.read_bytes()
    if b"__asan_init" in contents or b"__tsan_init" in contents:
        pytest.skip("a sanitized library cannot be loaded into an ordinary Python")
    with libfire.Client(threads=2) as opened:
        yield opened


def test_the_library_gives_the_bits_that_firectl_gives(tmp_path, client):
    weights = gaussian((70, 40), 1)
    got, _ = client.reinit(weights, "fire", {"scale": "fan-ratio"})
    want, _ = reinit(tmp_path, {"w": weights}, "--arch", "none")
    assert np.array_equal(got, want["w"])


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-12), (np.float32, 1e-5),
                                              (np.float16, 1e-3)], ids=["f64", "f32", "f16"])
def test_every_number_format_goes_in_and_out(client, dtype, tolerance):
    weights = gaussian((48, 32), 2, dtype)
    got, fields = client.reinit(weights, "official-vision")
    want, _ = reference.project(weights, reference.PRESETS["official-vision"])
    assert reference.relative_error(got, want) <= tolerance
    before = reference.dfi(weights.astype(np.float64))
    assert fields["dfi_before"] == pytest.approx(before, rel=1e-4)


def test_equal_tensors_go_in_one_call(client):
    weights = gaussian((6, 24, 16), 3)
    got, _ = client.reinit(weights, "fire", {"scale": "one"}, count=6)
    for index, matrix in enumerate(weights):
        alone, _ = client.reinit(matrix, "fire", {"scale": "one"})
        assert np.array_equal(got[index], alone), "batch mates must not matter"


@pytest.mark.parametrize("preset, options, word", [
    ("fier", {}, "fire"),
    ("fire", {"sclae": "one"}, "scale"),
    ("fire", {"scale": "two"}, "fan-ratio"),
    ("fire", {"split": "5"}, "equal blocks"),
])
def test_a_mistake_is_explained(client, preset, options, word):
    with pytest.raises(libfire.FireError, match=word):
        client.reinit(gaussian((8, 8), 4), preset, options)


def test_a_nan_is_refused_and_nothing_is_written(client):
    weights = gaussian((8, 8), 5)
    weights[3, 2] = np.nan
    call, out, _ = client.prepare(weights)
    out.fill(7)
    with pytest.raises(libfire.FireError, match="26"):
        call()
    assert np.all(out == 7)


def test_the_client_says_what_computes(client):
    caps = client.caps()
    assert caps["threads"] == 2
    assert caps["path"] in ("portable", "avx2", "avx512", "amx")
    assert caps["version"] == "0.2.0"
