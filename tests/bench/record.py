"""What a bench reports: rounds of two sides, the median of their ratio, the bar it must meet."""
import statistics

SAMPLE_S = 0.02  # a timed sample repeats short work until it lasts about this long
REPEAT_MAX = 200


def repeats_for(seconds):
    """How often work of `seconds` is repeated inside one sample."""
    return max(1, min(REPEAT_MAX, round(SAMPLE_S / max(seconds, 1e-9))))


def interleave(sides, rounds):
    """{name: function(round) -> seconds} run in turn, `rounds` times; the first side rotates, so
    that no side always follows the same neighbour. Gives {name: [seconds, …]}."""
    names = list(sides)
    times = {name: [] for name in names}
    for index in range(rounds):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(sides[name](index))
    return times


def compared(bench, case, peer, ours, theirs, bar, accurate=True, **more):
    """A record of two timed sides; `ours` and `theirs` are seconds of the same rounds."""
    ratios = [b / a for a, b in zip(ours, theirs)]
    ratio = statistics.median(ratios)
    return {
        "bench": bench, "case": case, "peer": peer, "ratio": ratio, "ratio_min": min(ratios),
        "ratio_max": max(ratios), "rounds": len(ratios), "ours": statistics.median(ours) * 1e3,
        "theirs": statistics.median(theirs) * 1e3, "unit": "ms",
        "ok": bool(accurate and (bar is None or ratio >= bar)), "bar": bar, "accurate": accurate,
        **more,
    }


def limited(bench, case, peer, value, limit, unit, spread=None, accurate=True, **more):
    """A record of a measured value that must stay under `limit`; the ratio is limit over value."""
    low, high = spread or (value, value)
    return {
        "bench": bench, "case": case, "peer": peer, "ratio": limit / value,
        "ratio_min": limit / high, "ratio_max": limit / low, "rounds": more.pop("rounds", 1),
        "ours": value, "theirs": limit, "unit": unit,
        "ok": bool(accurate and value <= limit), "bar": 1.0, "accurate": accurate, **more,
    }


def shared(bench, case, peer, value, whole, bar, unit, **more):
    """A record of a share: `value` of `whole` must be at least `bar`."""
    ratio = value / whole
    return {
        "bench": bench, "case": case, "peer": peer, "ratio": ratio, "ratio_min": ratio,
        "ratio_max": ratio, "rounds": more.pop("rounds", 1), "ours": value, "theirs": whole,
        "unit": unit, "ok": bool(bar is None or ratio >= bar), "bar": bar, **more,
    }


def failed(bench, case, peer, bar, why):
    """A record of a case that could not be measured: never counted as met."""
    return {"bench": bench, "case": case, "peer": peer, "ratio": None, "ratio_min": None,
            "ratio_max": None, "rounds": 0, "ours": None, "theirs": None, "unit": "", "ok": False,
            "bar": bar, "why": why}


def line(record):
    """One line for people."""
    head = f"{record['case']:<44} {record['peer']:<22}"
    if record["ratio"] is None:
        return f"{head} not measured: {record['why']}"
    bar = "" if record["bar"] is None else f" bar {record['bar']:g}"
    spread = f"[{record['ratio_min']:.2f} … {record['ratio_max']:.2f}]"
    verdict = "ok" if record["ok"] else "MISSED"
    note = f"  {record['note']}" if record.get("note") else ""
    return (f"{head} {record['ratio']:7.2f}x {spread:<20}{bar:<9} {verdict:<7}"
            f"{record['ours']:10.4g} / {record['theirs']:.4g} {record['unit']}{note}")
