"""page: the dashboard's view of a large run in a real Chromium.

The run is that of bench history: 100 layers, 10,000 steps, 6 statistics. The first picture counts
from the start of the navigation to the moment the heatmap is painted, so that it has the page, its
scripts, the query, its JSON and the drawing in it. While the pointer moves over the heatmap and
zooms in and out, the script time of every frame is taken: event handlers and animation callbacks.
"""
import os
import shutil
import statistics

import record
from bench_history import LAYERS, NAMES, STEPS, Monitor, percentile, report_of, send_all
from daemon import Daemon

FIRST_MS, FRAME_MS = 1500.0, 33.0
MOVES, ZOOMS = 120, 8
WAIT_MS = 60_000
# Adds up what scripts do between one frame and the next.
PROBE = """
(() => {
    const frames = window.benchFrames = [];
    let spent = 0, open = false;
    const timed = (work) => function (...values) {
        const start = performance.now();
        try {
            return work.apply(this, values);
        } finally {
            spent += performance.now() - start;
        }
    };
    const frame = window.requestAnimationFrame.bind(window);
    const flush = () => frame(() => {
        frames.push(spent);
        spent = 0;
        open = false;
    });
    window.requestAnimationFrame = (work) => {
        const asked = frame(timed(work));
        if (!open) {
            open = true;
            frame(() => flush());
        }
        return asked;
    };
    const listen = EventTarget.prototype.addEventListener;
    EventTarget.prototype.addEventListener = function (name, work, options) {
        return listen.call(this, name, /^(pointer|mouse|key|wheel)/.test(name) &&
            typeof work === "function" ? timed(work) : work, options);
    };
})();
"""


def chromium():
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


def first_pictures(browser, address, rounds):
    """Milliseconds of each of some fresh pages, without anything kept from the last."""
    times = []
    for _ in range(rounds):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(address)
        page.wait_for_function("() => performance.getEntriesByName('first picture').length",
                               timeout=WAIT_MS)
        times.append(page.evaluate(
            "() => performance.getEntriesByName('first picture')[0].startTime"))
        context.close()
    return times


def frames_of(page, act):
    """Script time of the frames that were drawn while `act` ran."""
    page.evaluate("() => { window.benchFrames.length = 0; }")
    act()
    page.evaluate("() => new Promise((done) => setTimeout(done, 300))")
    return page.evaluate("() => window.benchFrames")


def hover(page, place):
    for index in range(MOVES):
        page.mouse.move(place["x"] + 160 + index * (place["width"] - 200) / MOVES,
                        place["y"] + 12 + (index * 7) % (place["height"] - 60))


def zoom(page, place):
    for index in range(ZOOMS):
        page.mouse.move(place["x"] + 300 + 40 * index, place["y"] + 40)
        page.mouse.down()
        page.mouse.move(place["x"] + 800 + 30 * index, place["y"] + 60, steps=8)
        page.mouse.up()
        page.wait_for_function("() => location.hash.includes('from=')", timeout=WAIT_MS)
        page.keyboard.press("Escape")
        page.wait_for_function("() => !location.hash.includes('from=')", timeout=WAIT_MS)


def measure(context, browser, address, points):
    rounds = context.round_count(10, 4)
    times = first_pictures(browser, address, rounds)
    context.report(record.limited(
        "page", f"first picture of a run of {points} points", "the worst", max(times), FIRST_MS,
        "ms", spread=(min(times), max(times)), rounds=rounds,
        note=f"median {statistics.median(times):.0f} ms"))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(PROBE)
    page.goto(address)
    page.wait_for_selector('main[data-shown="run"]', timeout=WAIT_MS)
    place = page.locator(".chart canvas.over").first.bounding_box()
    for case, act in (("hover", hover), ("zoom", zoom)):
        frames = frames_of(page, lambda act=act: act(page, place))
        if len(frames) < 10:
            context.report(record.failed("page", f"{case}: script time a frame", "p95", 1.0,
                                         f"only {len(frames)} frames were drawn"))
            continue
        context.report(record.limited(
            "page", f"{case}: script time a frame", "p95", percentile(frames, 0.95), FRAME_MS, "ms",
            spread=(max(min(frames), 1e-3), max(frames)), rounds=len(frames),
            note=f"median {statistics.median(frames):.2f} ms of {len(frames)} frames"))
    page.close()


def run(context):
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if not sync_playwright or not chromium():
        context.report(record.failed("page", "first picture", "p95", 1.0, "needs chromium and "
                                     "playwright: deploy/install-deps --test installs them"))
        return
    steps = STEPS // 10 if context.quick else STEPS
    with Daemon(context) as daemon, sync_playwright() as playwright:
        monitor = Monitor(daemon)
        send_all(monitor, (report_of("large", first, 100) for first in range(0, steps, 100)))
        monitor.close()
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            measure(context, browser, f"http://127.0.0.1:{daemon.http}/#/run/large?statistic=dfi",
                    steps * LAYERS * len(NAMES))
        finally:
            browser.close()
