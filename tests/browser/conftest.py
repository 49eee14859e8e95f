"""A daemon with runs in it, and Chromium looking at it."""

import json
import math
import os
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from daemon import Daemon, firectl, gaussian, save  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "build" / "screenshots"
CHROMIUM = os.environ.get("CHROMIUM", shutil.which("chromium") or "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
WAIT_MS = 60_000  # most a test waits for one thing: machines are shared
EVIL = "<img src=x onerror=alert(1)>"
EVIL_LAYER = "<script>alert(2)</script>"
LAYERS = [f"blocks.{block}.{part}" for block in range(6)
          for part in ("attn.q", "attn.k", "mlp.up", "mlp.down")] + [EVIL_LAYER]


def report(daemon, run, series, **info):
    body = json.dumps({"run": run, "info": info, "series": series}).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{daemon.http_port}/api/v1/report", body,
                                   {"Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(asked, timeout=60))
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from None


def curve(number, step, reinit):
    """Something that grows, faster in deeper layers, and falls when it is reinitialised."""
    since = step - reinit if step >= reinit else step
    return (1 + 0.2 * number) * (1 + since / 300) * (1 + 0.1 * math.sin(step / 25 + number))


def series(steps, reinit=10**9):
    made = []
    for number, layer in enumerate(LAYERS):
        # One layer is silent for a while: missing must be seen as missing.
        own = [step for step in steps if number != 5 or not 300 < step < 480]
        for statistic, factor in (("dfi", 1), ("dormant_ratio", 0.01), ("gradient_norm", 0.1)):
            made.append({"layer": layer, "statistic": statistic, "steps": own,
                         "values": [factor * curve(number, step, reinit) for step in own],
                         "shape": [64, 32]})
    made.append({"layer": "", "statistic": "loss", "steps": list(steps),
                 "values": [2 * math.exp(-step / 300) + 0.1 for step in steps]})
    return made


def fill(daemon, folder):
    steps = range(0, 1000, 5)
    report(daemon, "run-1", series(steps, reinit=500), name="gpt2 continual", framework="torch",
           labels={"team": "llm", "seed": "1"})
    report(daemon, "run-2", series(range(0, 800, 5)), name=EVIL, framework="jax",
           labels={"team": EVIL})
    report(daemon, "run-3", series(range(0, 1200, 10), reinit=700), name="ppo ant")
    # A real reinit, which records itself: a line in the heatmap, a spectrum, a row of the table.
    for run, step in (("run-1", 500), ("run-3", 700)):
        save(folder / "in.safetensors", {name: gaussian(64, 32, seed=number) for number, name in
                                         enumerate(LAYERS[:3])})
        firectl("reinit", "--addr", daemon.address, folder / "in.safetensors", "-o",
                folder / "out.safetensors", "--arch", "none", "--spectrum", "--run", run,
                "--step", step)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    folder = tmp_path_factory.mktemp("d")
    made = Daemon(folder).start().wait_ready()
    try:
        fill(made, folder)
        yield made
        assert made.stop() == 0, made.text()[-4000:]
    finally:
        if made.process.poll() is None:
            made.kill()


@pytest.fixture(scope="session")
def address(daemon):
    return f"http://127.0.0.1:{daemon.http_port}"


@pytest.fixture(scope="session")
def browser():
    assert Path(CHROMIUM).exists(), "no chromium: deploy/install-deps --test"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield made
        made.close()


class Watched:
    """A page, and everything it should not have said."""

    def __init__(self, browser, address, **options):
        self.address, self.wrong, self.expected = address, [], ()
        self.context = browser.new_context(accept_downloads=True, **options)
        self.context.set_default_timeout(WAIT_MS)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: message.type in ("error", "warning") and
                     self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"),
                                               dialog.dismiss()))
        self.page.on("request", lambda request: request.url.startswith(("data:", "blob:",
                                                                        self.address)) or
                     self.wrong.append(f"asked {request.url}"))

    def show(self, view, name):
        """Opens an address and waits until its view is there."""
        self.page.goto(f"{self.address}/{view}")
        self.shown(name)
        return self.page

    def shown(self, name):
        self.page.wait_for_selector(f'main[data-shown="{name}"]')
        self.settle()

    def settle(self):
        """Until what was asked to be drawn has been drawn."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => "
                           "requestAnimationFrame(done)))")

    def check(self):
        wrong = [text for text in self.wrong
                 if not any(part in text for part in self.expected)]
        assert not wrong, wrong

    def close(self):
        self.context.close()


@pytest.fixture
def open_page(browser, address):
    """Opens pages; at the end none of them may have complained."""
    opened = []

    def begin(width=1280, height=900, dark=False, at=None, **options):
        made = Watched(browser, at or address, viewport={"width": width, "height": height},
                       color_scheme="dark" if dark else "light", **options)
        opened.append(made)
        return made

    yield begin
    for made in opened:
        made.close()
    for made in opened:
        made.check()
