"""history: points in, with dashboards open; a heatmap and a list out; what recording costs."""
import os
import random
import statistics
import threading
import time

import grpc
import inputs
import message
import record
from daemon import Daemon
from postgres import MISSING, Postgres, programs

LAYERS = 100
NAMES = ("dfi", "norm", "stable_rank", "dormant_ratio", "gradient_norm", "effective_rank")
STEPS = 10000
SMALL_RUNS = 199
SMALL_POINTS = 10000
RESOLUTION = 1000
INGEST_BARS = {"sqlite": 50_000, "postgres": 20_000}
QUERY_MS, LIST_MS, COST = 200.0, 100.0, 1.05
IN_FLIGHT = 4
RATE = 2000.0  # points a second while the cost of recording is measured
SERVICE = "/fire.v1.MonitorService/"


class Monitor:
    """Calls of the monitor with bytes as they are, so that Python's part is small."""

    def __init__(self, daemon):
        self.channel = grpc.insecure_channel(daemon.unix, [
            ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1)])

    def call(self, method, request):
        return self.channel.unary_unary(SERVICE + method)(request, timeout=120)

    def start(self, method, request):
        return self.channel.unary_unary(SERVICE + method).future(request, timeout=120)

    def watch(self):
        return self.channel.unary_stream(SERVICE + "Watch")(b"", timeout=600)

    def close(self):
        self.channel.close()


class Dashboards:
    """Three that watch everything, one of which draws the heatmap again and again."""

    def __init__(self, daemon, run):
        self.monitors = [Monitor(daemon) for _ in range(4)]
        self.streams = [monitor.watch() for monitor in self.monitors[:3]]
        self.ended = threading.Event()
        self.messages, self.drawn = 0, 0
        self.question = message.query_request(run, ["dfi"], RESOLUTION)
        self.threads = [threading.Thread(target=self.listen, args=(stream,), daemon=True)
                        for stream in self.streams]
        self.threads.append(threading.Thread(target=self.draw, daemon=True))
        for thread in self.threads:
            thread.start()

    def listen(self, stream):
        try:
            for _ in stream:
                self.messages += 1
        except grpc.RpcError:
            return

    def draw(self):
        while not self.ended.wait(1.0):
            try:
                self.monitors[3].call("Query", self.question)
                self.drawn += 1
            except grpc.RpcError:
                continue  # the run is not there yet

    def close(self):
        self.ended.set()
        for stream in self.streams:
            stream.cancel()
        for thread in self.threads:
            thread.join(30)
        for monitor in self.monitors:
            monitor.close()


def report_of(run, first, count, layers=LAYERS, names=NAMES, seed=0):
    """`count` steps of every layer and statistic; each statistic has values of its own."""
    draw = random.Random(seed + first)
    steps = range(first, first + count)
    values = {name: [draw.random() for _ in steps] for name in names}
    return message.report_request(run, [(f"blocks.{layer}.weight", name, steps, values[name])
                                        for layer in range(layers) for name in names])


def send_all(monitor, reports):
    """Keeps IN_FLIGHT reports on their way; raises when one is refused."""
    waiting = []
    for report in reports:
        if len(waiting) == IN_FLIGHT:
            waiting.pop(0).result()
        waiting.append(monitor.start("Report", report))
    for one in waiting:
        one.result()


def ingest(context, name, daemon):
    """Reports of one step each, as trainers send them, and of 50 steps, as a backlog is sent."""
    steps, block = (200, 10) if context.quick else (1000, 40)
    each = LAYERS * len(NAMES)
    for case, span, count in (("a step a report", 1, steps), ("50 steps a report", 50, block)):
        run = f"ingest-{span}"
        reports = [report_of(run, index * span, span) for index in range(count)]
        monitor, screens = Monitor(daemon), Dashboards(daemon, run)
        started = time.monotonic()
        send_all(monitor, reports)
        rate = count * span * each / (time.monotonic() - started)
        screens.close()
        monitor.close()
        context.report(record.shared(
            "history", f"ingest, {case}, {name}", "points a second", rate, INGEST_BARS[name], 1.0,
            "1/s", note=f"{count * span * each} points, {screens.messages} messages to 3 watchers, "
                        f"{screens.drawn} heatmaps drawn meanwhile"))


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def timed(monitor, method, request, count):
    """Milliseconds of `count` calls, and the bytes of the last answer."""
    times = []
    for _ in range(count):
        started = time.monotonic()
        answer = monitor.call(method, request)
        times.append((time.monotonic() - started) * 1e3)
    return times, len(answer)


def fill(context, monitor):
    """The large run and the small ones."""
    steps = STEPS // 10 if context.quick else STEPS
    send_all(monitor, (report_of("large", first, 100) for first in range(0, steps, 100)))
    names = NAMES[:2]
    length = SMALL_POINTS // (10 * len(names))
    send_all(monitor, (report_of(f"small-{index}", 0, length, 10, names, index)
                       for index in range(SMALL_RUNS)))
    return steps * LAYERS * len(NAMES)


def reading(context, name, daemon):
    count = context.round_count(40, 15)
    monitor = Monitor(daemon)
    points = fill(context, monitor)
    for case, names in (("one statistic", ["dfi"]), ("three statistics", list(NAMES[:3]))):
        times, size = timed(monitor, "Query", message.query_request("large", names, RESOLUTION),
                            count)
        context.report(record.limited(
            "history", f"heatmap of {points} points, {case}, {name}", "p95", percentile(times, .95),
            QUERY_MS, "ms", spread=(min(times), max(times)), rounds=count,
            note=f"median {statistics.median(times):.1f} ms, {size} bytes"))
    cold, _ = timed(monitor, "ListRuns", b"", 1)
    times, size = timed(monitor, "ListRuns", b"", count)
    context.report(record.limited(
        "history", f"list of 200 runs, {name}", "p95", percentile(times + cold, .95), LIST_MS, "ms",
        spread=(min(times), max(times + cold)), rounds=count,
        note=f"the first {cold[0]:.1f} ms, median {statistics.median(times):.1f} ms, {size} bytes"))
    monitor.close()


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(context, daemon):
    """CPU seconds of the daemon for the same Reinits, recorded and not, round by round."""
    rounds, calls = context.round_count(15, 5), 24
    arrays = [inputs.gaussian((256, 256), 700 + index) for index in range(20)]
    channel = grpc.insecure_channel(daemon.unix, [("grpc.max_send_message_length", -1),
                                                  ("grpc.max_receive_message_length", -1)])
    reinit = channel.unary_unary("/fire.v1.ReinitService/Reinit")
    plain = message.reinit_request(arrays)
    reinit(plain, timeout=60)
    before = daemon.total("fired_history_points_total")
    reinit(message.reinit_request(arrays, run="cost", step=1), timeout=60)
    while daemon.total("fired_history_points_total") == before:
        time.sleep(0.02)
    each = daemon.total("fired_history_points_total") - before
    step = [2]

    def side(recorded):
        requests = [plain] * calls
        if recorded:
            requests = [message.reinit_request(arrays, run="cost", step=step[0] + index)
                        for index in range(calls)]
            step[0] += calls
        started, used = time.monotonic(), cpu_seconds(daemon.process.pid)
        for index, request in enumerate(requests):
            time.sleep(max(0.0, started + index * each / RATE - time.monotonic()))
            reinit(request, timeout=60)
        time.sleep(0.5)  # what is recorded is written up to 0.2 s after the answer
        return cpu_seconds(daemon.process.pid) - used

    times = record.interleave({"with": lambda _: side(True), "without": lambda _: side(False)},
                              rounds)
    ratios = [a / b for a, b in zip(times["with"], times["without"])]
    channel.close()
    context.report(record.limited(
        "history", f"CPU of Reinit at {RATE:g} points/s", "not recorded",
        statistics.median(ratios), COST, "x", spread=(min(ratios), max(ratios)), rounds=rounds,
        note=f"{each:g} points a Reinit of 20 256²; {calls} Reinits take "
             f"{statistics.median(times['without']):.2f} CPU s"))


def run(context):
    with Daemon(context) as daemon:
        ingest(context, "sqlite", daemon)
        if context.has_time_for("reading"):
            reading(context, "sqlite", daemon)
    with Daemon(context) as daemon:
        cost(context, daemon)
    if not programs():
        context.report(record.failed("history", "ingest, postgres", "points a second", 1.0,
                                     MISSING))
        return
    if not context.has_time_for("PostgreSQL"):
        return
    postgres = Postgres(sync=True).start()
    try:
        with Daemon(context, "--history", "postgres", "--history-url", postgres.url) as daemon:
            ingest(context, "postgres", daemon)
            if not context.quick:
                reading(context, "postgres", daemon)
    finally:
        postgres.close()
