"""The build under test."""
import os
from pathlib import Path

BUILD = Path(os.environ.get("FIRED_BUILD", Path(__file__).parents[2] / "build" / "release"))


def sanitized():
    """Whether it was built with a sanitizer, whose allocator is another one."""
    cache = BUILD / "CMakeCache.txt"
    return cache.exists() and any(line.startswith("FIRE_SANITIZE") and line.rstrip()[-1] != "="
                                  for line in cache.read_text().splitlines())
