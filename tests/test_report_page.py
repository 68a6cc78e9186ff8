"""The page in a real Chromium: what a person sees, on a phone and in the dark too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from fixtures.report import html
from fixtures.report.contents import Report
from tests.kit import kept_picture, reports
from tests.kit.chromium import PROGRAM, REQUIRED, Page, chromium

pytestmark = pytest.mark.skipif(
    PROGRAM is None and not REQUIRED, reason="no Chromium here, so nobody looks at the page: apt-get install chromium"
)
ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/pictures/report.png"

CONTRASTS = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = colour => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 :
    ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
    if (c[3] == 255) return c; } throw "no ground"; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((m, n) => n - m); return (x + .05) / (y + .05); };
  const own = e => [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim());
  const seen = [...document.querySelectorAll("body *")].filter(e => own(e) && e.getClientRects().length).map(e => {
    const s = getComputedStyle(e), colour = rgba(e.ownerSVGElement ? s.fill : s.color);
    return {text: e.textContent.slice(0, 40), ratio: ratio(colour, ground(e)), solid: colour[3] == 255}; });
  const drawn = [...document.querySelectorAll("figure path, figure use")].filter(e => !e.closest("defs"));
  const marks = drawn.map(e => getComputedStyle(e)).flatMap(s => [s.fill, s.stroke]).filter(c => c.startsWith("rgb"))
    .map(c => ({colour: c, ratio: ratio(rgba(c), ground(document.body))}));
  return {seen, marks};
})()
"""
"""WCAG 2.2's contrast of every text and mark with what lies under it, on colours as they are drawn."""

TOO_WIDE = """
[...document.querySelectorAll("body *")].filter(e => !e.closest(".wide > *, svg *") && !e.classList.contains("skip") &&
  e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 90))
"""

Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    return {name: html.write(folder / name, made()) for name, made in MADE.items()}


MADE: dict[str, Callable[[], Report]] = {
    "h200": reports.h200,
    "full": reports.full,
    "empty": reports.empty,
    "thin": reports.thin,
}
ALL = pytest.mark.parametrize("name", MADE)
BOTH = pytest.mark.parametrize("scheme", ["light", "dark"])


@pytest.fixture
def opened(browser: Page, written: dict[str, Path]) -> Opened:
    def open_(name: str, *, width: int = 1280, height: int = 900, scheme: str = "light") -> Page:
        browser.show(width, height, scheme=scheme)
        browser.open(written[name].as_uri())
        return browser

    return open_


@ALL
@BOTH
def test_it_opens_without_an_error_and_asks_for_nothing_else(opened: Opened, name: str, scheme: str) -> None:
    page = opened(name, scheme=scheme)
    assert page.value("document.querySelectorAll('h1').length") == 1
    asked = [e["request"]["url"] for e in page.seen("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [page.value("location.href")]
    assert page.seen("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []


@ALL
@BOTH
def test_every_word_can_be_read_against_its_ground(opened: Opened, name: str, scheme: str) -> None:
    page = opened(name, scheme=scheme)
    page.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    seen: dict[str, Any] = page.value(CONTRASTS)
    assert len(seen["seen"]) > 20
    assert [s for s in seen["seen"] if s["ratio"] < 4.5 or not s["solid"]] == []


@BOTH
def test_marks_stand_out_from_the_ground_and_only_grid_and_bands_do_not(opened: Opened, scheme: str) -> None:
    marks = opened("full", scheme=scheme).value(CONTRASTS)["marks"]
    faint = {m["colour"] for m in marks if m["ratio"] < 3}
    assert len(marks) > 100
    assert faint == {"rgb(222, 222, 218)" if scheme == "light" else "rgb(59, 60, 57)"}


def test_the_dark_page_is_dark(opened: Opened) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert opened("h200", scheme="light").value(ground) == "rgb(255, 255, 255)"
    assert opened("h200", scheme="dark").value(ground) == "rgb(22, 23, 22)"


@ALL
def test_nothing_sticks_out_on_a_phone(opened: Opened, name: str) -> None:
    page = opened(name, width=390, height=844)
    page.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.value("document.documentElement.scrollWidth") <= 390
    assert page.value(TOO_WIDE) == []


def test_words_in_pictures_are_large_enough_on_a_phone(opened: Opened) -> None:
    page = opened("full", width=390, height=844)
    sizes = page.value(
        "[...document.querySelectorAll('svg text')].map(t => Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b) * "
        "parseFloat(getComputedStyle(t).fontSize))"
    )
    assert len(sizes) > 50
    assert min(sizes) > 9


def test_what_a_model_wrote_is_shown_and_not_obeyed(opened: Opened) -> None:
    page = opened("full")
    assert "owned" not in page.value("document.title")
    assert page.value("document.querySelectorAll('script, img, iframe').length") == 0
    shown = page.value("document.body.textContent")
    assert "<script>document.title = 'owned'</script>" in shown
    assert "\u202e" not in shown
    assert "\x1b" not in shown


@ALL
def test_a_screen_reader_finds_its_way(opened: Opened, name: str) -> None:
    page = opened(name)
    assert page.value("document.documentElement.lang") == "en"
    assert page.value("['header', 'nav', 'main'].map(n => document.querySelectorAll(n).length)") == [1, 1, 1]
    assert page.value("[...document.querySelectorAll('th')].filter(t => !t.scope).length") == 0
    assert page.value("[...document.querySelectorAll('table')].filter(t => !t.caption).length") == 0
    assert page.value("document.querySelectorAll('svg:not([role=img])').length") == 0
    dangling = (
        "[...document.querySelectorAll('[aria-labelledby], [aria-describedby]')].flatMap(e => [e.getAttribute("
        "'aria-labelledby'), e.getAttribute('aria-describedby')]).filter(id => id && !document.getElementById(id))"
    )
    assert page.value(dangling) == []
    ids = page.value("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    levels = page.value("[...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))")
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_keyboard_reaches_links_and_tables_and_is_seen_there(opened: Opened) -> None:
    page = opened("h200")
    reached = []
    for _ in range(13):
        page.press("Tab")
        reached.append(
            page.value("(e => [e.tagName, getComputedStyle(e).outlineStyle, e.className])(document.activeElement)")
        )
    assert reached[0] == ["A", "solid", "skip"]
    assert ["DIV", "solid", "wide"] in reached
    assert all(style == "solid" for _, style, _ in reached)


def test_the_picture_by_itself_is_drawn_in_the_readers_colours(browser: Page, written: dict[str, Path]) -> None:
    picture = written["h200"].with_name("throughput.svg")
    fills = []
    for scheme in ("light", "dark"):
        browser.show(640, 480, scheme=scheme)
        browser.open(picture.as_uri())
        fills.append(browser.value("getComputedStyle(document.querySelector('rect')).fill"))
    assert fills == ["rgb(255, 255, 255)", "rgb(22, 23, 22)"]


def test_the_readmes_picture_can_be_taken(opened: Opened, written: dict[str, Path], tmp_path: Path) -> None:
    """With EAGLE3_KEEP_PICTURE=1 it is taken anew."""
    page = opened("h200", width=1280, height=920)
    shown = page.value("document.querySelector('.where').textContent")
    assert shown == "1 × NVIDIA H200 · SGLang 0.5.17 · 2026-11-29 18:38 UTC"
    place = PICTURE if os.environ.get("EAGLE3_KEEP_PICTURE") else tmp_path / "report.png"
    page.screenshot(place)
    digest = kept_picture.shown(written["h200"].read_text(encoding="utf-8"))
    place.write_bytes(kept_picture.marked(place.read_bytes(), digest))
    assert kept_picture.size(place.read_bytes()) == (1280, 920)
    assert 20_000 < place.stat().st_size < 400_000
