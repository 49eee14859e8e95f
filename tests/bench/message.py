"""Requests as bytes: a little protobuf writer, so that a bench needs no generated code."""
import struct

STATISTICS = {"none": 1, "basic": 2, "spectrum": 3}
DTYPES = {"f8": 1, "f4": 2, "f2": 4}
OPTION_FIELDS = {"steps": 3, "scale": 10, "layout": 13, "split": 14, "compute": 18}


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, content):
    """A length-delimited field, or a varint one for an int."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    if isinstance(content, str):
        content = content.encode()
    return varint(number << 3 | 2) + varint(len(content)) + bytes(content)


def reinit_request(arrays, options=None, statistics="basic", run=None, step=0):
    """fire.v1.ReinitRequest with one tensor an array, named w0, w1, …; a run is recorded."""
    parts = []
    for index, array in enumerate(arrays):
        header = (field(1, f"w{index}")
                  + field(2, b"".join(varint(size) for size in array.shape))
                  + field(3, DTYPES[array.dtype.str[1:]]))
        parts.append(field(1, header))
    chosen = b"".join(field(OPTION_FIELDS[key], value) for key, value in (options or {}).items())
    recorded = field(8, run) + field(9, step) if run else b""
    parts.append(field(2, field(2, chosen) + field(3, STATISTICS[statistics]) + recorded))
    parts += [field(100, array.tobytes()) for array in arrays]
    return b"".join(parts)


def report_request(run, series):
    """fire.v1.ReportRequest; `series` is a list of (layer, statistic, steps, values)."""
    parts = [field(1, run)]
    for layer, statistic, steps, values in series:
        parts.append(field(3, field(1, layer) + field(2, statistic)
                           + field(3, b"".join(varint(step) for step in steps))
                           + field(4, struct.pack(f"<{len(values)}d", *values))))
    return b"".join(parts)


def query_request(run, statistics=(), resolution=0):
    """fire.v1.QueryRequest over all layers and steps."""
    return b"".join([field(1, run), *(field(3, name) for name in statistics),
                     field(6, resolution)])


def grpc_body(message):
    """What h2load sends: the five bytes before a gRPC message, and the message."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def payloads(message):
    """The bytes of every field 100 of an answer, in order."""
    found, at = [], 0

    def read():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(message):
        key = read()
        kind = key & 7
        if kind == 2:
            size = read()
            if key >> 3 == 100:
                found.append(message[at:at + size])
            at += size
        elif kind == 0:
            read()
        else:
            at += 8 if kind == 1 else 4
    return found
