"""libfire through ctypes: where it is found and the signatures of the calls that are used.

Order: $FIRED_LIBRARY, the wheel's own copy, the build tree this package lies in, the system."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib
import threading
from collections.abc import Iterator

from ._version import VERSION
from .errors import LibraryError

NATIVE = pathlib.Path(__file__).parent / "_native"
STATUS_OK = 0
FLAT_MORE = 9

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None
_path: str = ""


class _Field(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("offset", ctypes.c_size_t)]


class _Preset(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("summary", ctypes.c_char_p)]


class _Key(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("values", ctypes.c_char_p),
        ("meaning", ctypes.c_char_p),
    ]


def build_trees() -> Iterator[pathlib.Path]:
    """Builds of the repository that this file, or the working folder, lies in."""
    if os.environ.get("FIRED_BUILD"):
        yield pathlib.Path(os.environ["FIRED_BUILD"])
    for start in (pathlib.Path(__file__).resolve(), pathlib.Path.cwd() / "_"):
        for folder in start.parents:
            if (folder / "client" / "fire.h").exists():
                yield folder / "build" / "release"
                break


def _candidates() -> Iterator[pathlib.Path | str]:
    if os.environ.get("FIRED_LIBRARY"):
        yield pathlib.Path(os.environ["FIRED_LIBRARY"])
        return
    yield NATIVE / "libfire.so"
    for tree in build_trees():
        yield tree / "lib" / "libfire.so"
    yield "libfire.so.0"
    found = ctypes.util.find_library("fire")
    if found:
        yield found


def _open() -> tuple[ctypes.CDLL, str]:
    tried: list[str] = []
    for candidate in _candidates():
        if isinstance(candidate, pathlib.Path) and not candidate.exists():
            tried.append(f"{candidate} (missing)")
            continue
        try:
            return ctypes.CDLL(str(candidate)), str(candidate)
        except OSError as error:
            tried.append(f"{candidate} ({error})")
    raise LibraryError(
        "libfire.so was not found; build it (cmake --preset release && cmake --build --preset "
        "release), install it (cmake --install), or name it in FIRED_LIBRARY. Tried: "
        + "; ".join(tried)
    )


def _declare(lib: ctypes.CDLL) -> None:
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    u32, u64, i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
    sizes, doubles = ctypes.POINTER(u64), ctypes.POINTER(ctypes.c_double)
    integer, double, handle = ctypes.c_int, ctypes.c_double, ctypes.POINTER(pointer)
    for name, result, arguments in (
        ("fire_version", text, []),
        ("fire_last_error", text, []),
        ("fire_status_name", text, [integer]),
        ("fire_result_field_count", size, []),
        ("fire_result_field_at", ctypes.POINTER(_Field), [size]),
        ("fire_preset_count", size, []),
        ("fire_preset_at", ctypes.POINTER(_Preset), [size]),
        ("fire_option_key_count", size, []),
        ("fire_option_key_at", ctypes.POINTER(_Key), [size]),
        ("fire_dormant_ratio", double, [doubles, u64, double, double]),
        ("fire_client_open_flat", integer, [u32, text, handle]),
        ("fire_client_open_lines", integer, [text, handle]),
        ("fire_client_close", None, [pointer]),
        ("fire_client_cancel", None, [pointer]),
        ("fire_client_advise", integer, [pointer, text, handle, pointer]),
        ("fire_table_rows", size, [pointer]),
        ("fire_table_columns", size, [pointer]),
        ("fire_table_name", text, [pointer, size]),
        ("fire_table_text", text, [pointer, size, size]),
        ("fire_table_number", double, [pointer, size, size]),
        ("fire_table_close", None, [pointer]),
        ("fire_flat_open", integer, [handle]),
        ("fire_flat_close", None, [pointer]),
        ("fire_flat_add", integer, [pointer, text, text, u32, sizes, text, text]),
        ("fire_flat_memory", integer, [pointer, size, pointer, pointer]),
        (
            "fire_flat_state",
            integer,
            [pointer, size, text, text, u32, sizes, pointer, pointer],
        ),
        ("fire_flat_units", integer, [pointer, size, doubles, u64]),
        ("fire_flat_gradient", integer, [pointer, size, text, pointer]),
        ("fire_flat_decide", integer, [pointer, text, text, integer]),
        ("fire_flat_run", integer, [pointer, pointer, integer, u32, text, i64, double]),
        ("fire_flat_code", integer, [pointer]),
        ("fire_flat_arch", text, [pointer]),
        ("fire_flat_text", text, [pointer, size, text]),
        ("fire_flat_numbers", integer, [pointer, size, doubles]),
    ):
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments


def library() -> ctypes.CDLL:
    """The loaded library; loads it at the first call."""
    global _loaded, _path
    with _lock:
        if _loaded is None:
            lib, path = _open()
            try:
                _declare(lib)
            except AttributeError as error:
                raise LibraryError(
                    f"{path} is not libfire {VERSION} ({error}); install the one that came with "
                    "this package, or unset FIRED_LIBRARY"
                ) from None
            found = lib.fire_version().decode()
            if found.split(".")[:2] != VERSION.split(".")[:2]:
                raise LibraryError(
                    f"{path} is libfire {found}, this package needs {VERSION}; install matching "
                    "versions"
                )
            _loaded, _path = lib, path
        return _loaded


def library_path() -> str:
    """Where the library was loaded from."""
    library()
    return _path


def last_error() -> str:
    """The library's own words about the call that just failed in this thread."""
    return str(library().fire_last_error().decode(errors="replace"))


_field_names: list[str] = []


def field_names() -> list[str]:
    """Names of the numbers of a result, in the library's order."""
    if not _field_names:
        lib = library()
        _field_names.extend(
            lib.fire_result_field_at(index).contents.name.decode()
            for index in range(lib.fire_result_field_count())
        )
    return _field_names


def presets() -> dict[str, str]:
    """Every preset with the line that says what it reproduces.

    >>> import fired
    >>> "official-vision" in fired.presets()
    True
    """
    lib = library()
    rows = [lib.fire_preset_at(index).contents for index in range(lib.fire_preset_count())]
    return {row.name.decode(): row.summary.decode() for row in rows}


def option_keys() -> dict[str, tuple[str, str]]:
    """Every key of `options=` with its allowed values and its meaning.

    >>> import fired
    >>> fired.option_keys()["conv"][0]
    'tap or flatten'
    """
    lib = library()
    rows = [lib.fire_option_key_at(index).contents for index in range(lib.fire_option_key_count())]
    return {row.name.decode(): (row.values.decode(), row.meaning.decode()) for row in rows}
