"""libfire through ctypes: only the flat calls, whose arguments are numbers, text and arrays."""
import ctypes
import os
import pathlib

import numpy as np

DTYPES = {"f64": 0, "f32": 1, "bf16": 2, "f16": 3}
STATISTICS_BASIC, STATISTICS_SPECTRUM, STATISTICS_RESIDUAL = 1, 2, 4
AXES_MAX = 8


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("field", ctypes.c_char * 128),
                ("message", ctypes.c_char * 512)]


class Caps(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 64), ("path", ctypes.c_char * 32),
                ("reason", ctypes.c_char * 160), ("threads", ctypes.c_uint32),
                ("flops_per_s", ctypes.c_double)]


class ResultField(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("offset", ctypes.c_size_t)]


class FireError(RuntimeError):
    """A call of the library failed; the text is the library's own."""


def build_folder():
    """The build under test: $FIRED_BUILD, or the release build of this repository."""
    root = pathlib.Path(__file__).resolve().parents[2]
    return pathlib.Path(os.environ.get("FIRED_BUILD", root / "build" / "release"))


def load_library():
    path = build_folder() / "lib" / "libfire.so"
    if not path.exists():
        raise FireError(f"{path} is missing: build it with cmake --build --preset release")
    library = ctypes.CDLL(str(path))
    pointer, text, u32, u64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint64
    library.fire_version.restype = text
    library.fire_result_field_count.restype = ctypes.c_size_t
    library.fire_result_field_at.restype = ctypes.POINTER(ResultField)
    library.fire_result_field_at.argtypes = [ctypes.c_size_t]
    library.fire_client_open_flat.argtypes = [u32, text, ctypes.POINTER(pointer)]
    library.fire_client_open_remote_flat.argtypes = [text, text, text, ctypes.POINTER(pointer)]
    library.fire_last_error.restype = text
    library.fire_client_close.argtypes = [pointer]
    library.fire_client_close.restype = None
    library.fire_client_caps.argtypes = [pointer, ctypes.POINTER(Caps)]
    library.fire_client_caps.restype = None
    library.fire_reinit_flat.argtypes = [
        pointer, text, text, ctypes.c_int, u32, ctypes.POINTER(u64), pointer, pointer, u64, u32,
        ctypes.POINTER(ctypes.c_double), ctypes.POINTER(Error)]
    return library


def pairs(options):
    """{"scale": "one"} as the "key=value" lines the flat call reads."""
    return "\n".join(f"{key}={value}" for key, value in options.items()).encode()


class Client:
    """A pool of `threads` threads on one compute path, or the daemon at `address`. Close it when
    done."""

    def __init__(self, threads=0, path=None, address=None):
        self.library = load_library()
        self.handle = ctypes.c_void_p()
        if address:
            status = self.library.fire_client_open_remote_flat(
                address.encode(), None, None, ctypes.byref(self.handle))
        else:
            status = self.library.fire_client_open_flat(
                threads, path.encode() if path else None, ctypes.byref(self.handle))
        if status != 0:
            raise FireError(self.library.fire_last_error().decode())
        count = self.library.fire_result_field_count()
        self.fields = [self.library.fire_result_field_at(index).contents.name.decode()
                       for index in range(count)]

    def close(self):
        self.library.fire_client_close(self.handle)
        self.handle = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def caps(self):
        caps = Caps()
        self.library.fire_client_caps(self.handle, ctypes.byref(caps))
        return {"name": caps.name.decode(), "path": caps.path.decode(),
                "reason": caps.reason.decode(), "threads": caps.threads,
                "version": self.library.fire_version().decode()}

    def prepare(self, array, preset="fire", options=None, statistics=0, out=None, count=1,
                dtype=None):
        """A call made ready, so that timing it times nothing else. `count` equal tensors are the
        first axis of `array` when it is above 1. bf16 travels as uint16 with `dtype`."""
        out = np.empty_like(array) if out is None else out
        assert array.flags.c_contiguous, "an input of the library must be contiguous"
        assert out.flags.c_contiguous, "an output of the library must be contiguous"
        shape = array.shape[1:] if count > 1 else array.shape
        sizes = (ctypes.c_uint64 * AXES_MAX)(*shape)
        name = dtype or {"f8": "f64", "f4": "f32", "f2": "f16"}[array.dtype.str[1:]]
        fields = (ctypes.c_double * (len(self.fields) * count))()
        error = Error()
        arguments = (self.handle, preset.encode(), pairs(options or {}), DTYPES[name], len(shape),
                     sizes, array.ctypes.data, out.ctypes.data, count, statistics, fields,
                     ctypes.byref(error))
        function = self.library.fire_reinit_flat

        def call():
            if function(*arguments) != 0:
                raise FireError(f"{error.field.decode()}: {error.message.decode()}")

        return call, out, lambda: dict(zip(self.fields, fields))

    def reinit(self, array, preset="fire", options=None, statistics=STATISTICS_BASIC, count=1,
               dtype=None):
        """The projected array and the statistics of the (first) tensor by name."""
        call, out, fields = self.prepare(array, preset, options, statistics, count=count,
                                         dtype=dtype)
        call()
        return out, fields()
