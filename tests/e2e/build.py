"""The build under test."""
import os
from pathlib import Path

BUILD = Path(os.environ.get("FIRED_BUILD", Path(__file__).parents[2] / "build" / "release"))


def sanitized():
    """Whether it was built with a sanitizer, whose allocator is another one."""
    cache = BUILD / "CMakeCache.txt"
    return cache.exists() and any(line.startswith("FIRE_SANITIZE") and line.rstrip()[-1] != "="
                                  for line in cache.read_text().splitlines())


# FIRED_TEST_SLOW: about how many times slower the build is; the longest tests do so much less.
SLOW = int(os.environ.get("FIRED_TEST_SLOW", "1"))


def fewer(count, least=1):
    """`count` of something that takes long, on a build that is slow."""
    return max(count // SLOW, least)


# FIRED_TEST_DEVICE=emulated: every daemon serves with the CUDA plugin on an emulated GPU
# (tests/gpu). What it needs of environment and flags; small slots, for memory is emulated too.
EMULATOR = BUILD / "emulator"
EMULATED = {"LD_LIBRARY_PATH": str(EMULATOR),
            "FIRE_EMULATOR_KERNELS": str(EMULATOR / "libfire_kernels_host.so")}
EMULATED_FLAGS = ("--cuda-slots", "2", "--cuda-slot-bytes", "64MiB")
DEVICE = os.environ.get("FIRED_TEST_DEVICE", "")
assert DEVICE in ("", "emulated"), f"FIRED_TEST_DEVICE is emulated, not {DEVICE}"


def on_gpu():
    return DEVICE == "emulated"
