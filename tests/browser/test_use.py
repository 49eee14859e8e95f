"""The dashboard in use: pointer, keyboard, addresses, exports, live points, tokens."""

import csv
import io
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import LAYERS, report
from daemon import Daemon, fired


def box(page, selector=".chart canvas.over"):
    return page.locator(selector).first.bounding_box()


def zoomed(page):
    return page.wait_for_function("() => /from=\\d+&to=\\d+/.test(location.hash)")


def test_hover_shows_the_value_and_moves_every_chart(open_page):
    watched = open_page()
    page = watched.show("#/run/run-1?statistic=dfi", "run")
    place = box(page)
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + 20)
    page.wait_for_selector(".tip:not([hidden])")
    text = page.locator(".tip:not([hidden])").first.inner_text()
    assert LAYERS[0] in text and "dfi" in text and "step" in text
    page.mouse.move(5, 5)
    page.wait_for_function("() => [...document.querySelectorAll('.tip')].every((t) => t.hidden)")


def test_missing_is_shown_as_missing(open_page):
    watched = open_page()
    page = watched.show("#/run/run-1?statistic=dfi", "run")
    place = box(page)
    row = (place["height"] - 30) / len(LAYERS)
    left = place["x"] + 150
    across = place["width"] - 160
    page.mouse.move(left + across * 400 / 995, place["y"] + 8 + 5.5 * row)
    page.wait_for_selector(".tip:not([hidden])")
    assert "no value" in page.locator(".tip:not([hidden])").first.inner_text()


def test_a_brush_zooms_all_charts_and_is_in_the_address(open_page):
    watched = open_page()
    page = watched.show("#/run/run-1", "run")
    place = box(page)
    page.mouse.move(place["x"] + 400, place["y"] + 50)
    page.mouse.down()
    page.mouse.move(place["x"] + 700, place["y"] + 60, steps=5)
    page.mouse.up()
    zoomed(page)
    page.wait_for_selector("button:has-text('Whole range')")
    address = page.url
    other = open_page()
    other.page.goto(address)
    other.shown("run")
    assert other.page.locator("button:has-text('Whole range')").is_visible()
    page.locator("button:has-text('Whole range')").click()
    page.wait_for_function("() => !location.hash.includes('from=')")


def test_the_keyboard_reaches_everything(open_page):
    watched = open_page()
    page = watched.show("#/run/run-1", "run")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator(".chart canvas.over").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".tip:not([hidden])")
    assert LAYERS[0] in page.locator(".tip:not([hidden])").first.inner_text()
    page.keyboard.press("+")
    zoomed(page)
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('from=')")
    page.locator(".chart canvas.over").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    watched.shown("layer")
    assert page.locator("h1").inner_text() in LAYERS


def test_focus_is_seen(open_page):
    page = open_page().show("#/", "fleet")
    for _ in range(4):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_the_metric_switch_is_in_the_address(open_page):
    watched = open_page()
    page = watched.show("#/run/run-1", "run")
    page.get_by_label("Statistic").select_option("dormant_ratio")
    page.wait_for_function("() => location.hash.includes('statistic=dormant_ratio')")
    watched.show(page.url.partition("/#")[2] and "#" + page.url.partition("#")[2], "run")
    assert page.get_by_label("Statistic").input_value() == "dormant_ratio"


def test_the_fleet_is_filtered_and_compared(open_page):
    watched = open_page()
    page = watched.show("#/", "fleet")
    assert page.locator("tbody tr").count() == 3
    page.get_by_label("Filter").fill("ppo")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    assert "filter=ppo" in page.url
    page.get_by_label("Filter").fill("")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 3")
    for name in ("gpt2 continual", "ppo ant"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare chosen").click()
    watched.shown("compare")
    assert page.locator("table a").count() == 2
    page.get_by_label("Aligned by").select_option("event1")
    page.wait_for_function("() => location.hash.includes('align=event1')")
    assert "700" in page.locator("table").inner_text()


def test_the_layer_shows_its_reinit(open_page):
    watched = open_page()
    page = watched.show(f"#/layer/run-1/{quote(LAYERS[0], safe='')}", "layer")
    page.wait_for_selector("text=Spectrum of the reinit at step 500")
    with page.expect_download() as download:
        page.get_by_label(f"{LAYERS[0]}-spectrum as JSON", exact=True).click()
    values = {}
    for row in json.loads(Path(download.value.path()).read_text(encoding="utf-8")):
        values.setdefault(row["series"], []).append(row)
    assert {name: len(rows) for name, rows in values.items()} == {"before": 32, "after": 32}
    assert "500" in page.get_by_role("region", name="Reinitialisations",
                                     exact=True).last.inner_text()
    assert "fire" in page.get_by_role("region", name="Reinitialisations",
                                      exact=True).last.inner_text()


@pytest.mark.parametrize("where, view, name", [
    ("#/", "fleet", "Runs"), ("#/run/run-1?statistic=dfi", "run", "run-1-heatmap"),
    (f"#/layer/run-1/{LAYERS[0]}", "layer", f"{LAYERS[0]}-dfi"),
    ("#/compare?runs=run-1&runs=run-2", "compare", "compare"),
    ("#/service", "service", "Devices"), ("#/events", "events", "Events")])
def test_what_is_shown_can_be_taken_along(open_page, where, view, name):
    watched = open_page()
    page = watched.show(where, view)
    with page.expect_download() as download:
        page.get_by_label(f"{name} as CSV", exact=True).click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert rows
    with page.expect_download() as download:
        page.get_by_label(f"{name} as JSON", exact=True).click()
    assert len(json.loads(download.value.path().read_text())) == len(rows)
    if view == "run":
        assert {row["series"] for row in rows} == set(LAYERS)


def test_tables_sort(open_page):
    page = open_page().show("#/", "fleet")
    head = page.locator("th", has_text="Step")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    first = page.locator("tbody tr").first.inner_text()
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert page.locator("tbody tr").first.inner_text() != first


def test_new_points_appear_by_themselves(open_page, daemon):
    report(daemon, "run-live", [{"layer": "a", "statistic": "dfi", "steps": [1, 2],
                                 "values": [1, 2]}])
    watched = open_page()
    try:
        page = watched.show("#/run/run-live", "run")
        page.wait_for_selector("#live[data-on]")
        report(daemon, "run-live", [{"layer": "b", "statistic": "dfi", "steps": [3, 4],
                                     "values": [3, 123.5]}])
        page.wait_for_function("() => document.querySelector('table').innerText"
                               ".includes('123.5')")
    finally:
        watched.close()


def test_the_colours_can_be_chosen(open_page):
    page = open_page().show("#/", "fleet")
    button = page.locator("#theme")
    assert button.inner_text() == "Auto"
    button.click()
    button.click()
    assert button.inner_text() == "Dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    page.reload()
    page.wait_for_selector('main[data-shown="fleet"]')
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"


def test_signing_in_and_out(open_page, tmp_path_factory):
    token = "a-token-for-the-dashboard-01"
    folder = tmp_path_factory.mktemp("s")
    path = folder / "credentials.yaml"
    made = fired("--hash-token", input=token).stdout.strip()
    path.write_text(f'tokens:\n  - {{ name: a, tenant: team, hash: "{made}", allow: ["*"] }}\n')
    path.chmod(0o600)
    guarded = Daemon(folder, "--credentials", path).start()
    try:
        guarded.wait_ready()
        watched = open_page(at=f"http://127.0.0.1:{guarded.http_port}")
        watched.expected = ("401",)
        page = watched.page
        page.goto(watched.address)
        page.get_by_label("Token").fill("another-token-that-is-wrong")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector("text=This token is not known")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        watched.shown("fleet")
        assert page.evaluate("document.cookie") == ""
        assert token not in page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
        page.locator("#sign-out").click()
        page.get_by_label("Token").wait_for()
        watched.close()
        assert guarded.stop() == 0
    finally:
        if guarded.process.poll() is None:
            guarded.kill()
