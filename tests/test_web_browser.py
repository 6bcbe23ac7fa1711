"""The page in a real browser: real numbers in every view, no errors, keyboard, phone, animation, downloads, accessibility."""

from __future__ import annotations

import csv
import json
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rooftop.views._pdf import browser as installed

sync_api = pytest.importorskip("playwright.sync_api", reason="drives the browser")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="knows what is accessible")
pytestmark = pytest.mark.skipif(installed() is None, reason="no Chromium is installed (apt-get install chromium)")

TRACES = Path(__file__).parent / "data" / "traces"
#: View -> (a figure that it draws, a word of its answer).
VIEWS = {
    "train": ("roofline", "MFU"),
    "step": ("timeline", "memory per chip"),
    "scaling": ("scaling", "tokens/s"),
    "serve": ("frontier", "token to token"),
    "whatif": ("tornado", "of the time"),
    "sweep": ("heatmap", "bound by"),
    "simulate": ("simulation", "requests/s"),
    "matmul": ("topology", "all-reduce"),
    "collective": ("topology", "effective bandwidth"),
    "roofline": ("roofline", "FLOP/byte"),
}
SMALL = {
    "whatif": "?model=llama-3-8b&on=v5e:4x4&set=batch=256k&number=hbm_bandwidth ici_bandwidth&fixed=true",
    "sweep": "?model=llama-3-8b&on=v5e:4x4&vary=batch=256k,512k seq=2048,4096",
    "train": "?model=llama-3-8b&on=h100:64&batch=1M&tokens=1T",
    "scaling": "?model=llama-3-8b&on=h100&batch=1M&scale=8..64",
    "serve": "?model=llama-3-8b&on=h100:1",
    "simulate": "?model=llama-3-8b&on=h100:1&workload=poisson:rate=4,requests=200,input=500,output=50&max_batch=256&max_tokens=8192",
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=installed(), args=root)
        yield found
        found.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    opened = context.new_page()
    faults: list[str] = []
    opened.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on(
        "request", lambda r: None if r.url.startswith(("http://127.0.0.1", "data:", "blob:")) else faults.append(r.url)
    )
    opened.faults = faults
    yield opened
    context.close()
    assert not faults


def show(page: Any, server: str, view: str) -> None:
    page.goto(f"{server}/#{view}{SMALL.get(view, '')}")
    answered(page)


def until(page: Any, expression: str, argument: Any = None) -> None:
    """Wait for an expression to hold; the page's own policy forbids what Playwright would inject for this."""
    for _ in range(600):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(expression)


def answered(page: Any) -> None:
    until(page, "document.getElementById('status').textContent.startsWith('Answered')")


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_real_numbers_and_is_accessible(page: Any, server: str, view: str) -> None:
    figure, word = VIEWS[view]
    show(page, server, view)
    text = page.inner_text("#answer")
    assert word.lower() in text.lower()
    assert "NaN" not in text
    assert "undefined" not in text
    drawn = page.eval_on_selector_all(
        "figure.rt-figure", "all => all.map(f => [f.rooftop.name, !!f.querySelector('svg')])"
    )
    assert [figure, True] in drawn
    assert all(done for _, done in drawn)
    assert page.locator("#form input").first.input_value()
    faults = [v for v in axe.Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert not faults, [(v["id"], v["nodes"][0]["html"][:200]) for v in faults]


def test_the_dark_page_is_accessible(page: Any, server: str) -> None:
    show(page, server, "serve")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    faults = [v for v in axe.Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert not faults, [(v["id"], v["nodes"][0]["html"][:200]) for v in faults]


def test_an_answer_follows_its_inputs_and_the_address(page: Any, server: str) -> None:
    show(page, server, "train")
    before = page.inner_text(".card dd >> nth=0")
    page.fill("#field-batch", "2M")
    until(
        page,
        "b => document.querySelector('.card dd').innerText !== b && !document.getElementById('answer').classList.contains('stale')",
        before,
    )
    assert "batch=2M" in page.url
    after = page.inner_text(".card dd >> nth=0")
    page.goto("about:blank")
    page.goto(page.url if "batch" in page.url else f"{server}/#train?model=llama-3-8b&on=h100:64&batch=2M&tokens=1T")
    answered(page)
    assert page.inner_text(".card dd >> nth=0") == after


def test_an_error_is_beside_its_field(page: Any, server: str) -> None:
    show(page, server, "train")
    page.fill("#field-on", "h100:3x3")
    page.wait_for_selector("#field-on[aria-invalid=true]")
    assert "number of chips" in page.inner_text("#field-on-error")
    page.fill("#field-on", "h100:32")
    until(page, "document.getElementById('field-on-error').textContent === ''")
    page.faults[:] = [f for f in page.faults if "422" not in f]  # the browser notes what was refused


def test_numbers_are_explained_in_place(page: Any, server: str) -> None:
    show(page, server, "step")
    page.click("button[aria-label='Explain MFU']")
    page.wait_for_selector("#explain .tree code")
    assert "FLOPs per token" in page.inner_text("#explain")
    page.keyboard.press("Escape")
    assert not page.is_visible("#explain")


def test_tables_sort_and_the_chart_picks(page: Any, server: str) -> None:
    show(page, server, "serve")
    page.click("th button:has-text('tokens/s')")
    assert page.get_attribute("th:has-text('tokens/s')", "aria-sort") == "ascending"
    rates = [float(t.replace(",", "")) for t in page.locator("tbody tr td:nth-child(5)").all_inner_texts()]
    assert rates == sorted(rates)
    plot = page.locator("figure[class*=rt-figure] .rt-plot").first
    plot.scroll_into_view_if_needed()
    box = plot.locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.35, box["y"] + box["height"] - 5, steps=8)
    page.mouse.up()
    everything = len(rates)
    page.wait_for_selector(".picked:not([hidden])")
    assert 0 < page.locator("table.data tbody tr").count() < everything
    assert f"of {everything} rows" in page.inner_text(".picked")
    page.click(".picked button")
    assert page.locator("table.data tbody tr").count() == everything


def test_the_keyboard_reaches_everything(page: Any, server: str) -> None:
    show(page, server, "train")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.textContent.trim().slice(0, 20)"))
    assert {"explain", "Download plan.json", "Numbers", "CSV", "open"} <= seen
    page.focus("nav a[data-view=roofline]")
    page.keyboard.press("Enter")
    until(page, "document.title.startsWith('Roofline')")
    answered(page)


@pytest.mark.parametrize("view", ["train", "serve", "collective"])
def test_a_phone_is_wide_enough(chromium: Any, server: str, view: str) -> None:
    context = chromium.new_context(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page = context.new_page()
    show(page, server, view)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#form input").first.bounding_box()["width"] > 250
    context.close()


def test_the_animation_advances(page: Any, server: str) -> None:
    show(page, server, "collective")
    plot = page.locator(".rt-plot[data-step]").first
    assert plot.get_attribute("data-step") == "0"
    page.click("button:has-text('Play')")
    until(page, "Number(document.querySelector('.rt-plot[data-step]').dataset.step) >= 2")
    page.click("button:has-text('Pause')")
    now = int(plot.get_attribute("data-step"))
    page.click("button:text-is('Step')")
    assert int(plot.get_attribute("data-step")) == now + 1
    where = "[...document.querySelectorAll('.rt-plot g:last-of-type circle')].map(c => c.getAttribute('cx') + ',' + c.getAttribute('cy')).join(' ')"
    first = page.evaluate(where)
    until(page, f"({where}) !== {json.dumps(first)}")
    page.focus(".rt-plot input[type=range]")
    page.keyboard.press("End")
    assert "done" in page.inner_text(".rt-plot [aria-live]")


def test_a_matmul_flows_through_the_matrix_unit(page: Any, server: str) -> None:
    show(page, server, "roofline")
    places = "[...document.querySelectorAll('.rt-plot svg g[transform]')].map(g => g.getAttribute('transform')).join()"
    before = page.evaluate(places)
    page.click("button:text-is('Step')")
    until(page, f"({places}) !== {json.dumps(before)}")
    assert "1 of 16 cells" in page.inner_text(".rt-plot [aria-live]")
    page.focus(".rt-plot input[type=range]")
    page.keyboard.press("End")
    assert "comes Y[5, 3]" in page.inner_text(".rt-plot [aria-live]")


def test_downloads_parse(page: Any, server: str, tmp_path: Path) -> None:
    show(page, server, "step")

    def got(selector: str) -> bytes:
        with page.expect_download() as download:
            page.locator(selector).first.click()
        return Path(download.value.path()).read_bytes()

    plan = json.loads(got("button:has-text('plan.json')"))
    assert plan["mesh"]["fsdp"] == 8
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    from rooftop.cli import run

    assert run(["step", "--plan", str(path)]) == 0
    assert json.loads(got("button:has-text('answer.json')"))["best"]
    page.select_option("#export-to", "deepspeed")
    assert json.loads(got("button:has-text('its configuration')"))["zero_optimization"]
    until(page, "document.querySelector('.told').textContent.startsWith('Not expressed')")
    rows = list(csv.reader(got("button:text-is('CSV')").decode().splitlines()))
    assert len(rows) > 5
    assert {len(row) for row in rows} == {len(rows[0])}
    assert ET.fromstring(got("button:text-is('SVG')")).tag.endswith("svg")
    assert got("button:text-is('PNG')").startswith(b"\x89PNG")
    show(page, server, "collective")
    assert ET.fromstring(got("button:text-is('SVG')")).tag.endswith("svg")
    assert got("button:text-is('PNG')").startswith(b"\x89PNG")


def test_files_are_dropped_and_profiles_uploaded(page: Any, server: str, tmp_path: Path) -> None:
    show(page, server, "train")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True, "head_dim": 64,
    }))  # fmt: skip
    before = page.inner_text(".card dd >> nth=0")
    page.set_input_files("#drop", str(config))
    until(page, "b => document.querySelector('.card dd')?.innerText !== b", before)
    assert "config.json is used" in page.inner_text(".drop")
    page.goto(f"{server}/#trace")
    page.wait_for_selector("#field-files")
    page.set_input_files("#field-files", str(TRACES / "torch-h100-qwen1.5-0.5b.json.gz"))
    page.wait_for_selector("figure.rt-figure svg")
    assert "PyTorch" in page.inner_text(".headline")
    assert page.locator("table.data tbody tr").count() > 10


def test_a_report_draws_its_figures(page: Any, tmp_path: Path) -> None:
    from rooftop.cli import run

    path = tmp_path / "report.html"
    assert run(["plan", "llama-3-8b", "--on", "v5e:4x4", "--batch", "1M", "--html", str(path)]) == 0
    page.goto(path.as_uri())
    page.wait_for_selector("figure.rt-figure svg.main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.faults[:] = [f for f in page.faults if not f.startswith("file:")]


def test_numbers_are_written_as_in_the_terminal(page: Any, server: str) -> None:
    show(page, server, "roofline")
    values = [10.0**k * f for k in range(-8, 16) for f in (1.0, 1.47, 9.25)]
    shown = page.evaluate(
        "async values => { const p = await import('/static/parts.js'); return values.map(v => [p.count(v), p.bytes(v), p.seconds(v)]); }",
        values,
    )

    def value(text: str, scale: dict[str, float]) -> float:
        number, unit = re.fullmatch(r"([\d.,]+) ?(.*)", text).groups()  # type: ignore[union-attr]
        return float(number.replace(",", "")) * scale[unit]

    prefixes = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15}
    sizes = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}
    times = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    for v, (count, size, time) in zip(values, shown, strict=True):
        if v >= 1:
            assert value(count, prefixes) == pytest.approx(v, rel=6e-3), count
            assert value(size, sizes) == pytest.approx(v, rel=6e-3), size
        assert value(time, times) == pytest.approx(v, rel=6e-3), time
