"""The page in a real browser: it loads, goes on, tells of a lame duck, and has keys.

The servers and the client are processes, as the browser would have them stand still.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chromium import TAB, Browser, browsing
from tests.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"

# Runs until its stdin is closed. A backend stays a lame duck for as long.
SERVER = """
import asyncio, sys
import lbclient, search_pb2 as pb, search_pb2_grpc as grpc_pb

class Search(grpc_pb.SearchServicer):
    async def Search(self, request, context):
        await asyncio.sleep(0.005)
        return pb.Answer(text="here")

async def main():
    config = lbclient.ServerConfig(lame_duck_quiet=60.0)
    server = lbclient.server(config=config)
    grpc_pb.add_SearchServicer_to_server(Search(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await lbclient.serve(server)

asyncio.run(main())
"""
CLIENT = """
import asyncio, sys
import lbclient, search_pb2 as pb, search_pb2_grpc as grpc_pb
from lbclient import admin

async def main():
    server = lbclient.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = lbclient.insecure_channel(sys.argv[1], name="search")
    port = int(sys.argv[2])
    async with admin.page(port=port) as url, admin.page(port=port), channel:
        stub = grpc_pb.SearchStub(channel)
        await channel.channel_ready()
        print(url, flush=True)
        while True:
            await stub.Search(pb.Query(), timeout=5)
            await asyncio.sleep(0.01)

asyncio.run(main())
"""

# The rows of the first channel's first table, as text.
ROWS = (
    "return [...(document.querySelector('#channel1 tbody')?.rows ?? [])]"
    ".map(row => row.innerText.replace(/\\s+/g, ' '))"
)
CALLS = "return +document.body.innerText.match(/([\\d,]+) OK/)[1].replaceAll(',', '')"


def run(program: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, *arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(EXAMPLES)])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[str, dict[str, "subprocess.Popen[str]"]]]:
    """The page's URL, and backends by address."""
    processes = [run(SERVER) for _ in range(3)]
    try:
        backends = {f"127.0.0.1:{line(one)}": one for one in processes}
        target = "ipv4:" + ",".join(backends)
        processes.append(run(CLIENT, target, str(free_port())))
        yield line(processes[-1]), backends
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=30)


@pytest.fixture
def page(browser: Browser, fleet: tuple[str, object]) -> Browser:
    browser.complaints()
    browser.go(fleet[0])
    browser.wait(f"{ROWS}.length === 3")
    return browser


def test_it_loads_and_goes_on_by_itself(page: Browser) -> None:
    text = page.run("return document.body.innerText")
    assert re.search(r"weighted ?least ?loaded", text, re.IGNORECASE)
    assert "Server 127.0.0.1:" in text
    assert page.run("return document.querySelector('#channel1 h2').innerText") == (
        "Channel search"
    )
    assert re.search(r"Target\s+ipv4:127.0.0.1:", text, re.IGNORECASE)
    page.wait("return document.querySelectorAll('.chart canvas').length === 8")
    page.wait(f"{CALLS} > arguments[0]", page.run(CALLS))
    page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.wait("return document.body.innerText.includes('in flight (')")
    assert "default" in page.run("return document.body.innerText")
    assert page.complaints() == []


def test_it_links_to_the_pages_of_other_workers(page: Browser) -> None:
    links = "return [...document.querySelectorAll('#siblings a')]"
    page.wait(f"{links}.length > 0")
    url = page.run(f"{links}[0].href")
    page.go(url)
    page.wait(f"{ROWS}.length === 3")
    assert page.run("return location.href") == url


def test_errors_that_are_held_against_a_backend_are_shown(page: Browser) -> None:
    page.run(
        "const ask = window.fetch;"
        "window.fetch = async (...words) => {"
        "  const said = await (await ask(...words)).json();"
        "  const [first, second] = said.channels[0].backends;"
        "  [first.recent_errors, second.recent_errors] = [2.14, 0.04];"
        "  return new Response(JSON.stringify(said));"
        "};"
    )
    page.wait(f"{ROWS}[0].includes('; 2.1 recent errors held against it')")
    assert "recent errors" not in "".join(page.run(ROWS)[1:])
    assert page.complaints() == []


def test_it_says_whether_retries_are_refused_too(page: Browser) -> None:
    page.run(
        "const ask = window.fetch; let [looks, refused] = [0, 1];"
        "window.fetch = async (...words) => {"
        "  const said = await (await ask(...words)).json();"
        "  looks += 1;"
        "  const [channel] = said.channels;"
        "  channel.sent_attempts = {0: 1000 * looks, 1: 100 * looks, 2: 0};"
        "  channel.refused_attempts = {0: 500 * looks, 1: refused * looks, 2: 0};"
        "  return new Response(JSON.stringify(said));"
        "};"
        "window.refuse = (many) => { refused = many; };"
    )
    row = (
        "([...document.querySelectorAll('#channel1 tr')].map(row => row.innerText)"
        ".find(text => text.startsWith('retry 1')) ?? '')"
    )
    page.wait(f"return {row}.includes('\\t1.0 %\\t')")
    text = "document.getElementById('channel1').innerText"
    page.wait(f"return {text}.includes('1.0 % refused')")
    assert "others are overloaded" not in page.run(f"return {text}")
    page.run("window.refuse(90)")
    page.wait(f"return {text}.includes(' refused: others are overloaded, too')")
    assert page.complaints() == []


def test_a_backend_whose_requests_cost_more_than_usual_is_shown(page: Browser) -> None:
    page.run(
        "const ask = window.fetch;"
        "window.fetch = async (...words) => {"
        "  const said = await (await ask(...words)).json();"
        "  const [first, second] = said.channels[0].backends;"
        "  [first.is_slowed, first.cost_rise] = [1, 2.14];"
        "  [second.is_slowed, second.cost_rise] = [0, 1.4];"
        "  return new Response(JSON.stringify(said));"
        "};"
    )
    page.wait(f"{ROWS}[0].includes('a request costs it 2.1 times as much as usual')")
    assert "as much as usual" not in "".join(page.run(ROWS)[1:])
    assert page.complaints() == []


def test_refused_health_checks_of_a_ready_backend_are_shown(page: Browser) -> None:
    page.run(
        "const ask = window.fetch;"
        "window.fetch = async (...words) => {"
        "  const said = await (await ask(...words)).json();"
        "  const [first, second] = said.channels[0].backends;"
        "  first.health_refused = 'refused: INTERNAL: oh (a.B)';"
        "  second.health_refused = 'refused: UNKNOWN: no (a.B)';"
        "  second.reason = 'health checks are refused: UNKNOWN: no (a.B)';"
        "  return new Response(JSON.stringify(said));"
        "};"
    )
    page.wait(f"{ROWS}.some((row) => row.includes('; refused: INTERNAL: oh (a.B)'))")
    [unknown] = [row for row in page.run(ROWS) if "UNKNOWN" in row]
    assert unknown.count("UNKNOWN") == 1
    assert page.complaints() == []


@contextmanager
def of_width(page: Browser, pixels: int) -> Iterator[None]:
    page.command(
        "Emulation.setDeviceMetricsOverride",
        width=pixels,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    try:
        yield
    finally:
        page.command("Emulation.clearDeviceMetricsOverride")


def test_nothing_on_it_is_wider_than_a_telephone(page: Browser) -> None:
    page.run(
        "document.getElementById('news').textContent = '127.0.0.1:50051,'.repeat(50)"
    )
    with of_width(page, 400):
        assert page.run("return document.documentElement.scrollWidth") <= 400


# What the second backend is: out, for reasons that take some words. Then a look.
TROUBLE = (
    "const ask = window.fetch;"
    "window.fetch = async (...words) => {"
    "  const said = await (await ask(...words)).json();"
    "  const [channel] = said.channels;"
    "  Object.assign(channel.backends[1], {state: 'refusing', weight: 0.25,"
    "    reason: 'it refuses connections: '.repeat(8), last_error_age: 3.5,"
    "    last_error: 'a call ended with UNAVAILABLE'.repeat(4),"
    "    why: 'stands in for another: choice 120 of 1500', zone: 'europe-west-4'});"
    "  return new Response(JSON.stringify(said));"
    "};"
)


def test_the_worst_backends_come_first(page: Browser) -> None:
    page.run(TROUBLE)
    page.wait(f"{ROWS}[0].includes('✕ refusing')")
    assert len(page.run(ROWS)) == 3
    assert page.complaints() == []


def test_no_table_is_cut_off_at_1500_pixels(page: Browser) -> None:
    page.run(TROUBLE)
    page.wait(f"{ROWS}[0].includes('✕ refusing')")
    with of_width(page, 1500):
        cut = page.run(
            "return [...document.querySelectorAll('.scroll')].filter("
            "one => one.scrollWidth > one.clientWidth)"
            ".map(one => `${one.innerText}: ${one.scrollWidth} of ${one.clientWidth}`)"
        )
    assert cut == []


def test_backends_are_sorted_by_a_column_and_filtered(page: Browser) -> None:
    page.run(TROUBLE)
    page.wait(f"{ROWS}[0].includes('✕ refusing')")
    head = "[...document.querySelectorAll('#channel1 .sort')]"
    click = f"{head}.find(one => one.textContent === arguments[0]).click()"
    page.run(click, "Backend")
    first = page.run(ROWS)
    assert first == sorted(first)
    page.run(click, "Backend")
    assert [row.split()[0] for row in page.run(ROWS)] == [
        row.split()[0] for row in reversed(first)
    ]
    order = f"return {head}[0].closest('th').getAttribute('aria-sort')"
    assert page.run(order) == "descending"
    page.run(click, "Weight")
    page.run(click, "Weight")
    assert "0.25" in page.run(ROWS)[0]
    page.run(
        "const input = document.querySelector('#channel1 input');"
        "input.value = 'REFUSING europe'; input.dispatchEvent(new Event('input'));"
    )
    assert len(page.run(ROWS)) == 1
    assert "1 of 3 shown" in page.run("return document.body.innerText")
    page.wait(f"{CALLS} > arguments[0]", page.run(CALLS))
    assert len(page.run(ROWS)) == 1, "the next look filters, too"
    assert page.complaints() == []


def test_what_happened_before_anybody_looked_is_shown(page: Browser) -> None:
    text = page.run("return document.getElementById('channel1').innerText")
    assert re.search(r"resolver\s+3 endpoints", text)
    assert re.search(r"127.0.0.1:\d+\s+ready, was connecting", text)
    page.wait(
        "const line = [...charts][0].data[0];"
        "return line.at(-1) - line[0] > 4.9 + (Date.now() - performance.timeOrigin)"
        " / 1000"
    )


def test_keys_reach_everything_that_can_be_used(page: Browser) -> None:
    wanted = page.run(
        "return document.querySelectorAll("
        "'a, button, input, summary, .scroll:not([hidden])')"
        ".length - document.querySelectorAll('details:not([open]) .scroll').length"
    )
    reached = set()
    page.run("document.activeElement.blur()")
    for _ in range(wanted + 5):
        page.press(TAB)
        reached.add(
            page.run(
                "const one = document.activeElement;"
                "return [...document.querySelectorAll('*')].indexOf(one)"
                " + one.tagName"
            )
        )
    assert len({one for one in reached if not one.endswith("BODY")}) == wanted
    page.run("document.getElementById('pause').focus()")
    page.press(" ")
    pressed = "return document.getElementById('pause').getAttribute('aria-pressed')"
    assert page.run(pressed) == "true"


def test_every_table_and_chart_has_a_name(page: Browser) -> None:
    bare = page.run(
        "return [...document.querySelectorAll('table')].filter(one => !one.caption"
        " || ![...one.tHead.rows[0].cells].every(cell => cell.scope === 'col')"
        " || [...one.tBodies[0].rows].some(row => row.cells[0].scope !== 'row')).length"
    )
    assert bare == 0
    page.wait("return document.querySelector('[role=img][aria-label]')")
    assert page.run("return document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_a_contrast_of_4_5(page: Browser, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.command("Emulation.setEmulatedMedia", features=[feature])
    faint = page.run(CONTRAST)
    assert faint == []


# By WCAG 2.1, "contrast ratio", against the nearest background that is not transparent.
CONTRAST = """
const numbers = color => color.match(/[\\d.]+/g).map(Number);
const linear = one => (one /= 255) <= 0.03928
  ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
const luminance = color => { const [r, g, b] = numbers(color).map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = one => { for (; one; one = one.parentElement) {
  const color = getComputedStyle(one).backgroundColor;
  if (numbers(color)[3] !== 0) return color; } return "rgb(255, 255, 255)"; };
const faint = new Set();
const hasText = one => [...one.childNodes].some(
  node => node.nodeType === 3 && node.data.trim());
for (const one of document.querySelectorAll("body *")) {
  if (!hasText(one)) continue;
  if (!one.checkVisibility()) continue;
  const [a, b] = [getComputedStyle(one).color, behind(one)].map(luminance);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) faint.add(`${one.tagName}.${one.className} ${ratio.toFixed(2)}`);
}
return [...faint];
"""


def test_names_from_elsewhere_stay_text(page: Browser) -> None:
    """What a peer could call itself, put where its state would be."""
    evil = "<img src=x onerror=document.title='evil'>"
    page.run(
        "const said = structuredClone(past.at(-1));"
        "said.clock += 1; said.channels[0].backends[0].reason = arguments[0];"
        "said.channels[0].name = said.channels[0].target = arguments[0]; show(said);",
        evil,
    )
    assert evil in page.run("return document.querySelector('#channel1 h2').innerText")
    assert page.run("return document.querySelectorAll('img').length") == 0


def test_tables_that_no_channel_takes_are_shown_as_text(page: Browser) -> None:
    table = '/lb.toml [channel."<b>serch</b>"]'
    page.run(
        "const said = structuredClone(past.at(-1));"
        "said.clock += 1; said.unused_tables = [arguments[0]]; show(said);",
        table,
    )
    assert table in page.run("return document.querySelector('header').innerText")


def test_one_that_cannot_be_described_is_shown_with_its_error(page: Browser) -> None:
    why_not = {"kind": "channel", "number": 7, "name": "moody", "error": "not today"}
    page.run(
        "const said = structuredClone(past.at(-1));"
        "said.clock += 1; said.untold = [arguments[0]]; show(said);",
        why_not,
    )
    shown = page.run("return document.querySelector('#untold-channel7').innerText")
    assert shown.split("\n")[0] == "Channel moody"
    assert "not today" in shown
    assert "Channel moody" in page.run("return document.querySelector('nav').innerText")
    assert page.run(f"{ROWS}.length") == 3, "the others are as ever"


def test_contention_that_is_not_known_is_said_to_be_unknown(page: Browser) -> None:
    shown = page.run(
        "const said = structuredClone(past.at(-1));"
        "said.clock += 1;"
        "said.servers[0].contention = arguments[0];"
        "show(said);"
        "return document.body.innerText",
        {"waiting": 0.25, "throttled": None, "stolen": 0.0, "loop": 0.75, "lag": 0.001},
    )
    assert "waiting 25 %, throttled unknown, stolen 0 %" in shown
    assert "75 % busy, timers 1" in shown


def test_what_is_left_out_is_counted(page: Browser) -> None:
    said = page.run(
        "const said = structuredClone(past.at(-1));"
        "said.clock += 1; said.channels_left_out = 3; show(said);"
        "return document.getElementById('left-out').innerText"
    )
    assert said == "Not shown: 3 channels more."


def test_a_lame_duck_is_told_of_in_words(
    page: Browser, fleet: tuple[str, dict[str, "subprocess.Popen[str]"]]
) -> None:
    address, process = next(iter(fleet[1].items()))
    process.send_signal(signal.SIGTERM)
    told = f"{address} ▲ lame duck"
    page.wait(f"{ROWS}.some(row => row.startsWith(arguments[0]))", told)
    news = page.run("return document.querySelector('[role=status]').innerText")
    assert f"{address} of search is lame duck" in news
    assert news.endswith("is lame duck")
    assert page.complaints() == []
