"""Every view, at a desk and on a phone, light and dark: it opens, it fits, it can be read."""

from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import EVIL, EVIL_LAYER, LAYERS, SHOTS

VIEWS = {
    "fleet": "#/",
    "run": "#/run/run-1",
    "layer": f"#/layer/run-1/{quote(LAYERS[0], safe='')}",
    "compare": "#/compare?runs=run-1&runs=run-2&runs=run-3",
    "service": "#/service",
    "events": "#/events",
}
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
ACCESSIBLE = (Path(__file__).parent / "accessible.js").read_text()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_opens_fits_and_can_be_read(open_page, view, size, dark):
    width, height = SIZES[size]
    watched = open_page(width, height, dark)
    page = watched.show(VIEWS[view], view)
    page.wait_for_selector("h1")
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{view}-{size}-{'dark' if dark else 'light'}.png",
                    full_page=True)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, f"the page is {wide} pixels wide"
    assert page.evaluate(ACCESSIBLE) == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark


@pytest.mark.parametrize("view", ["fleet", "run", "layer", "compare"])
def test_charts_have_ink(open_page, view):
    """A canvas that stays empty is a chart that was not drawn."""
    page = open_page().show(VIEWS[view], view)
    selector = "svg.spark polyline" if view == "fleet" else ".chart canvas:not(.over)"
    page.wait_for_selector(selector, state="attached")
    if view != "fleet":
        colors = page.evaluate("""() => {
            const canvas = document.querySelector(".chart canvas:not(.over)");
            const data = canvas.getContext("2d")
                .getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(data.buffer)).size;
        }""")
        assert colors > 8


def test_names_that_look_like_markup_are_text(open_page):
    watched = open_page()
    for address, view in (("#/", "fleet"), ("#/run/run-2", "run"),
                          (f"#/layer/run-2/{quote(EVIL_LAYER, safe='')}", "layer"),
                          ("#/compare?runs=run-2", "compare"), ("#/events?run=run-2", "events"),
                          (f"#/run/{quote(EVIL, safe='')}", "error")):
        if view == "error":
            watched.expected = ("404",)
        page = watched.show(address, view)
        assert page.locator("main img, main script").count() == 0
        if view in ("fleet", "run", "layer", "compare"):
            assert EVIL in page.locator("main").inner_text()
    watched.show("#/run/run-2", "run")
    assert EVIL_LAYER in watched.page.locator("main table").inner_text()


def test_what_is_not_there_is_said(open_page):
    watched = open_page()
    watched.expected = ("404",)
    page = watched.show("#/run/of-nobody", "error")
    assert "no run" in page.locator("[role=alert]").inner_text()
    page.goto(f"{watched.address}/#/no-such-view")
    page.wait_for_selector("text=There is no such view")
