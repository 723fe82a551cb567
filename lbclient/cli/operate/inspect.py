"""What a process's page tells, in a terminal: see `lbclient.admin`.

What comes from there is bounded, checked by `shape`, and shown without control
characters: it may be anybody's.
"""

import argparse
import asyncio
import json
import re
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lbclient.admin.shape import VERSION, filled, flaw
from lbclient.cli.colour import paint
from lbclient.cli.layout import count, item, short, table
from lbclient.cli.run import run
from lbclient.core.errors import ConfigError
from lbclient.core.load import errors_held
from lbclient.core.outliers.relative_costs import TUNING as RELATIVE_COSTS
from lbclient.core.text import harmless, printable

TIMEOUT = 5.0  # seconds; for a whole answer, however it comes
MOST = 16 * 1024 * 1024  # bytes; what our page tells is a tenth of that
WORDS = 200  # characters of what is no answer
LONGEST = 1000  # characters of a text; ours has 400
DEPTH = 20  # of lists and records; ours has 5
INTERVAL = 1.0  # seconds
PICKS = 8  # of the last ones; --json has more
EVENTS = 10  # of the last ones, too

IS_IT = ": is this the address of lbclient.admin.page?"

CLEAR = "\x1b[H\x1b[2J"

EPILOG = """\
URL is the address of lbclient.admin.page: host:port, or http://host:port/lbz. Rates
cover the last second; with --watch the time between two updates. Default settings are
left out, and only the last 10 events and 8 picks are shown; --json has everything, and
docs/admin.md explains the fields.

examples:
  lbclient inspect 127.0.0.1:9465
  lbclient inspect --watch http://127.0.0.1:9465/lbz
  lbclient inspect --json 127.0.0.1:9465 | jq '.channels[].backends[].state'

Exit status: 0; 1 if no page answers, the answer is not valid, or the output cannot
be written; 2 for bad arguments; 130 after Ctrl-C; 141 if the reader has gone.
"""


class UnreadableError(Exception):
    """There is no answer, or none that is understood."""


class Look(NamedTuple):
    """What was seen, and what was seen before it; None: nothing was."""

    now: dict[str, Any]
    before: dict[str, Any] | None = None


def main(argv: list[str]) -> int:
    try:
        given = parse(argv)
        if given.watch:
            watch(given)
        else:
            once(given)
    except ConfigError as error:
        return complain(error, 2)
    except UnreadableError as error:
        return complain(error, 1)
    return 0


def complain(error: Exception, status: int) -> int:
    print(f"lbclient inspect: {error}", file=sys.stderr)
    return status


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient inspect",
        description="Shows the state of a process's channels, backends and servers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="address of the page")
    add("--watch", action="store_true", help="repeat until Ctrl-C")
    add("--interval", default=f"{INTERVAL:g}", metavar="SECONDS",
        help="time between two updates (default: %(default)s)")  # fmt: skip
    add("--json", action="store_true",
        help="print JSON; with --watch a line for each update")  # fmt: skip
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    given = make_parser().parse_args(argv)
    given.url = url_of(given.url)
    with suppress(ValueError):
        given.interval = float(given.interval)
    if not isinstance(given.interval, float) or not 0.5 <= given.interval <= 3600:
        raise ConfigError("interval", given.interval, "seconds, 0.5 to 3600")
    return given


def url_of(text: str) -> str:
    """
    >>> url_of("127.0.0.1:9465"), url_of("https://a:1/lbz")
    ('http://127.0.0.1:9465/lbz.json', 'https://a:1/lbz.json')
    """
    want = "host:port, or http://host:port/lbz"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        raise ConfigError("URL", harmless(text), want) from None
    if "@" in parts.netloc:
        raise ConfigError("URL", harmless(text), f"{want}, without a user")
    is_page = parts.path in ("", "/", "/lbz", "/lbz.json") and not parts.query
    if not (parts.scheme in ("http", "https") and parts.hostname and is_page):
        raise ConfigError("URL", harmless(text), want)
    if port is None:
        raise ConfigError("URL", harmless(text), f"{want}, with its port")
    return f"{parts.scheme}://{parts.netloc}/lbz.json"


def once(given: argparse.Namespace) -> None:
    now = fetch(given.url)
    if given.json:
        print(json.dumps(now, indent=2))
        return
    time.sleep(given.interval)
    print("\n".join(lines(Look(fetch(given.url), now))))


def watch(given: argparse.Namespace) -> None:
    """Prints the state again and again. Keeps trying if nobody answers for a while;
    raises if nobody ever did."""
    before: dict[str, Any] | None = None
    start = CLEAR if sys.stdout.isatty() else ""
    while True:
        try:
            now = fetch(given.url)
            text = (
                json.dumps(now) if given.json else "\n".join(lines(Look(now, before)))
            )
            before = now
            print(f"{start if not given.json else ''}{text}", flush=True)
        except UnreadableError as error:
            if before is None:
                raise
            complain(error, 1)
        time.sleep(given.interval)


# --- the answer -----------------------------------------------------------------


def fetch(url: str) -> dict[str, Any]:
    """Raises UnreadableError."""
    try:
        data = run(read(url))
    except (OSError, ValueError) as error:
        words = printable(str(error), WORDS)
        raise UnreadableError(f"{url}: no answer: {words}{IS_IT}") from None
    return understood(url, data)


async def read(url: str) -> bytes:
    """Up to a byte more than `MOST`, and all of it within `TIMEOUT`.

    Raises UnreadableError for what is no answer, and OSError where there is none.
    """
    place = urlsplit(url)
    context = ssl.create_default_context() if place.scheme == "https" else None
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(
                place.hostname, place.port, ssl=context
            )
            try:
                # 1.0: a body ends with the connection, if not before.
                ask = f"GET {place.path} HTTP/1.0\r\nHost: {place.netloc}\r\n"
                writer.write(f"{ask}Accept: application/json\r\n\r\n".encode())
                return await answer(url, reader)
            finally:
                writer.transport.abort()
    except TimeoutError:
        words = f"it does not come to an end in {TIMEOUT:g} s"
        raise TimeoutError(words) from None


async def answer(url: str, reader: asyncio.StreamReader) -> bytes:
    """The body, of which the reader has the head, too."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        head = error.partial
    except asyncio.LimitOverrunError:
        raise UnreadableError(f"{url}: the response header is too long") from None
    found = re.match(rb"HTTP/1\.[01] ([0-9]{3})[ \r]", head)
    if found is None:  # gRPC's port, for one
        words = printable(head.decode("latin-1"), WORDS)
        raise UnreadableError(f"{url}: not an HTTP response: {words}{IS_IT}")
    if found[1] != b"200":
        said = printable((await reader.read(WORDS)).decode(errors="replace").strip())
        raise UnreadableError(f"{url}: {found[1].decode()} {said}")
    length = re.search(rb"(?i)\r\ncontent-length: *([0-9]{1,9})\r", head)
    size = min(int(length[1]), MOST + 1) if length else MOST + 1
    data = bytearray()
    while len(data) < size and (part := await reader.read(size - len(data))):
        data += part
    return bytes(data)


def understood(url: str, data: bytes) -> dict[str, Any]:
    if len(data) > MOST:
        raise UnreadableError(f"{url}: the response has more than {MOST:,} bytes")
    try:
        said = clean(json.loads(data))
    except (ValueError, RecursionError):
        raise UnreadableError(f"{url}: the response is not JSON{IS_IT}") from None
    version = said.get("version") if isinstance(said, dict) else None
    if version != VERSION:
        raise UnreadableError(
            f"{url}: JSON version {version!r} is not supported, only {VERSION}"
        )
    said = filled(said)
    if wrong := flaw(said):
        raise UnreadableError(f"{url}: {wrong}")
    return dict(said)


def clean(value: Any, depth: int = DEPTH) -> Any:
    """Texts without what a terminal would obey. Raises ValueError if it is too deep.

    >>> clean({"a": ["\\x1b[2Jb\\n"]})
    {'a': ['?[2Jb?']}
    """
    if isinstance(value, str):
        return printable(value, LONGEST)
    if not depth:
        raise ValueError(f"lists and records are nested more than {DEPTH} deep")
    if isinstance(value, list):
        return [clean(one, depth - 1) for one in value]
    if isinstance(value, dict):
        return {clean(name): clean(one, depth - 1) for name, one in value.items()}
    return value


# --- as text --------------------------------------------------------------------


def lines(look: Look) -> Iterator[str]:
    now, before = look
    at = time.strftime("%H:%M:%S", time.localtime(now["time"]))
    yield f"{now['program']} on {now['host']}, process {now['pid']}, at {at}"
    if now.get("disabled"):
        yield "disabled: LBCLIENT_DISABLE is set; channels and servers are grpc.aio's"
    same = before is not None and before["pid"] == now["pid"]
    elapsed = now["clock"] - before["clock"] if before is not None and same else 0.0
    for kind, show in (("channels", channel), ("servers", server)):
        old = {one["number"]: one for one in before[kind]} if before and same else {}
        for one in now[kind]:
            yield ""
            yield from show(one, old.get(one["number"]), elapsed)
        if left_out := now[f"{kind}_left_out"]:
            yield ""
            yield f"and {count(left_out, kind.removesuffix('s'))} more"
    if now["unused_tables"]:
        yield ""
    for place in now["unused_tables"]:
        yield item("unused settings", place)
    for one in now["untold"]:
        yield ""
        yield item(one["kind"], one["name"])
        yield item("cannot be described", one["error"])
    if not any(now[kind] for kind in ("channels", "servers", "untold")):
        yield "No channel and no server of lbclient's is open there."


def channel(now: Any, before: Any, elapsed: float) -> Iterator[str]:
    resolver = now["resolver"]
    error = f"; now: {resolver['error']}" if resolver["error"] else ""
    size, endpoints = now["subset_size"], resolver["endpoints"]
    yield item("channel", now["name"] or now["target"])
    if now["name"]:
        yield item("target", now["target"])
    yield item("state", paint(now["state"].replace("_", " ")))
    yield item("picker", now["picker"])
    yield item("subset", f"{size} of {endpoints}: {now['subset']}")
    yield item("resolver", f"{resolver['name']}; {age(resolver['age'])} ago{error}")
    yield item("calls", counts(now["calls"]))
    yield item("under way", f"{now['in_flight']} in flight, {now['waiting']} waiting")
    if stalled := now.get("loop_stall_seconds"):
        yield item("event loop", f"stalled for {stalled:.1f} s so far")
    yield item("latency", _latency(now))
    yield item("sent again", _again(now))
    if now["hedges"] or any(now["hedges_withheld"].values()):
        withheld = f"withheld: {counts(now['hedges_withheld'])}"
        sent = f"{now['hedges']} sent, {now['hedges_won']} won; {withheld}"
        yield item("hedges", sent)
    yield from _sent(now, before)
    standing = (
        f"{count(now['replacements'], 'replacement')}, {now['draining']} draining"
    )
    yield item("beyond the subset", standing)
    yield from _zones(now)
    if now["ejected"] or now["ejections"]:
        ejected = f"{count(now['ejected'], 'backend')} now, {now['ejections']} so far"
        yield item("ejected", ejected)
    if now["task_failures"]:
        yield item("background jobs", f"{now['task_failures']} failed")
    yield item("throttled", f"{now['throttled']}")
    for one in now["throttle"]:
        refused = f"{one['refused_there']} refused there, {one['refused_here']} here"
        held = f"{one['probability']:.0%} held back; {one['accepted']} accepted"
        yield item(f"  {one['criticality']}", f"{held}, {refused}")
    yield ""
    old = {one["address"]: one for one in before["backends"]} if before else {}
    yield from backends(now, old, elapsed)
    yield from troubles(now["backends"])
    if now["events"]:
        yield ""
        for event in now["events"][:EVENTS]:
            words = f"{event['about']} {event['what']}: {event['why']}"
            yield item(f"{age(event['age'])} ago", words)
    yield from _picks(now)
    yield from settings(now["config"])


def _picks(now: Any) -> Iterator[str]:
    if now["rule"] or now["picks"]:
        yield ""
    if now["rule"]:
        yield item("rule of picks", now["rule"])
        if not now["picks"]:
            yield item("picked", "none since this page is looked at; look again")
    for pick in now["picks"][:PICKS]:
        words = f"{pick['backend']}: {pick['because']}"
        yield item(f"picked {age(pick['age'])} ago", words)


def _again(now: Any) -> str:
    """Attempts after the first ones, by why they were made."""
    retries = f"{now['retries']} retries, {now['retries_left']:.1f} left"
    declined = now["attempts"].get("declined")
    others = f"; {declined} declined" if declined else ""
    return f"{now['resends']} not taken, {retries}{others}"


def _zones(now: Any) -> Iterator[str]:
    for one in now["zones"]:
        names = [f"zone {one['zone']}"] if one["zone"] else []
        if any(each["priority"] for each in now["zones"]):
            names.append(f"priority {one['priority']}")
        used = one["utilization"]
        busy = "" if used is None else f", utilization {used:.2f}"
        # Older processes tell no limit.
        busy += f", spills above {one['limit']:.2f}" if one.get("limit") else ""
        ready = f"{one['ready']} of {one['backends']} ready"
        words = f"{one['share']:.0%} of calls; {ready}{busy}"
        yield item(", ".join(names) or "no zone", words)
    if now["spilled"]:
        yield item("spilled", f"{count(now['spilled'], 'pick')} so far")


def _sent(now: Any, before: Any) -> Iterator[str]:
    """Of the attempts since the last look how many were refused, where any was."""
    told, any_refused = [], False
    for number, total in now["sent_attempts"].items():
        refused = now["refused_attempts"].get(number, 0)
        if before:
            total -= before["sent_attempts"].get(number, 0)
            refused -= before["refused_attempts"].get(number, 0)
        any_refused = any_refused or refused > 0
        if total > 0:
            share = min(1.0, refused / total)
            told.append(f"{_attempt(number)} {total:,}, {share:.0%} refused")
    if any_refused:
        yield item("attempts", "; ".join(told))


def _attempt(number: str) -> str:
    return "first" if number == "0" else f"retry {number}"


HEADS = (
    "backend",
    "state",
    "since",
    "weight",
    "in flight",
    "calls/s",
    "errors",
    "p50",
    "p99",
    "utilization",
    "report",
)


def backends(now: Any, old: dict[str, Any], elapsed: float) -> Iterator[str]:
    rows = [HEADS]
    for one in now["backends"]:
        was = old.get(one["address"])
        done = over(one) - over(was) if was and elapsed else None
        wrong = bad(one) - bad(was) if was else 0
        rows.append(
            (
                one["address"],
                paint(one["state"]),
                age(one["state_age"]),
                f"{one['weight']:.2f}",
                str(one["in_flight"]),
                "-" if done is None else short(done / elapsed),
                f"{wrong / done:.1%}" if done else "-",
                ms(one["p50"]),
                ms(one["p99"]),
                "-" if one["utilization"] is None else f"{one['utilization']:.2f}",
                age(one["report_age"]),
            )
        )
    yield from table(rows, left=2) if len(rows) > 1 else ("no backends yet",)
    if now["backends_left_out"]:
        yield f"and {count(now['backends_left_out'], 'backend')} more"


def troubles(told: list[Any]) -> Iterator[str]:
    """Why who is not ready is not, and what went wrong with the others."""
    for one in told:
        words = [] if one["state"] == "ready" else [one["reason"]]
        if one["health_refused"]:
            words.append(f"its health services: {one['health_refused']}")
        if one["last_error"] and one["last_error"] not in words:
            words.append(f"{one['last_error']}, {age(one['last_error_age'])} ago")
        words += filter(None, [errors_held(one["recent_errors"])])
        if one["is_slowed"] and one["cost_rise"]:
            rise = f"{one['cost_rise']:.1f} times as much as usual"
            words.append(f"a request costs it {rise}, compared with the others")
        if (one["own_cost_rise"] or 0.0) >= RELATIVE_COSTS.slowed:
            rise = f"{one['own_cost_rise']:.1f} times as much as usual"
            words.append(f"it says itself that a request costs it {rise}")
        words += [
            f"ejected for {each['method']} since {age(each['age'])}: {each['why']}"
            for each in one["ejected"]
        ]
        if not one["why"].startswith("choice"):
            words.append(one["why"])
        if words:
            yield item(one["address"], "; ".join(words))


def _latency(told: Any) -> str:
    p50, p99 = ms(told["p50"]), ms(told["p99"])
    return f"p50 {p50}, p99 {p99}, of all methods together"


def _cost(told: Any) -> str:
    """What requests cost it, compared with the fleet."""
    if told["rise"] is None:
        return "not compared with the fleet's"
    rise = f"{told['rise']:.1f} times as much as usual"
    slowed = ": it has slowed down" if told["is_slowed"] else ""
    return f"a request costs {rise}, compared with the fleet{slowed}"


def served(server: Any) -> str:
    name = ", ".join(server["ports"]) or "without a port"
    if worker := server.get("worker_number"):
        name += f", worker {worker:.0f}, process {server.get('pid') or 0:.0f}"
    return name


def server(now: Any, before: Any, elapsed: float) -> Iterator[str]:
    yield item("server", served(now))
    yield item("state", paint(now["state"]))
    busy = f"utilization {now['utilization']:.2f}, {now['active']} active"
    rates = f"{now['qps']:.1f} requests/s, {now['eps']:.1f} errors/s"
    yield item("load", f"{busy}, {rates}")
    kept = now["contention"]
    lost = ", ".join(
        f"{kind} {percent(kept[kind])}" for kind in ("waiting", "throttled", "stolen")
    )
    yield item("contention", lost)
    loop = f"{percent(kept['loop'])} busy, timers {ms(kept['lag'])} late"
    yield item("event loop", loop)
    yield item("cost", _cost(now["cost"]))
    yield item("latency", _latency(now))
    yield item("requests", counts(now["requests"]))
    for signal in now["signals"]:
        most = signal["target"]
        limit = "never too much" if most is None else f"too much beyond {most:.2f}"
        yield item(f"signal {signal['name']}", f"{signal['value']:.2f}, {limit}")
    held = {name: share for name, share in now["admitted"].items() if share < 1.0}
    for name, share in held.items():
        yield item("gets in", f"{share:.0%} of {name}")
    yield from _refused(now)
    yield from _attempts(now["attempts"])
    for one in now["usage"]:
        name = one["customer"] or "(no name)"
        yield item("customer", f"{name}: {one['cpu']:.3f} CPU seconds a second")
    if now["usage_left_out"]:
        yield f"and {count(now['usage_left_out'], 'customer')} more"
    if any(now["misread"].values()):
        yield item("not understood", counts(now["misread"]))
    if now["task_failures"]:
        yield item("background jobs", f"{now['task_failures']} failed")
    if now["signal_failures"]:
        yield item("unsound signals", f"{now['signal_failures']} so far")
    yield item("watched by", count(now["watchers"], "stream"))
    if (udp := now["udp"])["port"]:
        dropped = udp["malformed"] + udp["forged"] + udp["limited"]
        told = f"{udp['answered']} answered, {dropped} dropped, {udp['pushed']} told"
        yield item("UDP health checks", told)
    yield from settings(now["config"])


def _attempts(now: dict[str, Any]) -> Iterator[str]:
    retries = {
        _attempt(number): share
        for number, share in now["recent"].items()
        if number != "0" and now["requests"].get(number)
    }
    if retries:
        told = ", ".join(f"{share:.1%} {name}" for name, share in retries.items())
        why = "in vain: others refuse, too" if now["others_refuse"] else ""
        yield item("attempts", "; ".join(filter(None, (f"lately {told}", why))))
    if now["withheld"]:
        granted = f"{now['granted']:.0%} of requests may be retried"
        yield item("stock clients", f"{granted}, {now['withheld']} told not to")


def _refused(now: Any) -> Iterator[str]:
    for one in now["refused"]:
        words = f"{one['requests']} {one['criticality']}: {one['reason']}"
        yield item("refused", words)
    if now["declined"]:
        yield item("declined", f"{now['declined']}, for another pick")


def settings(config: list[Any]) -> Iterator[str]:
    changed = [one for one in config if one["source"] != "default"]
    if changed:
        yield ""
    for one in changed:
        yield item(one["name"], f"{one['value']} ({one['source']})")


def over(backend: Any) -> int:
    neutral = backend["abandoned"] + backend["declined"]
    done: int = backend["served"] + neutral + bad(backend)
    return done


def bad(backend: Any) -> int:
    wrong: int = backend["rejected"] + backend["failed"]
    return wrong


def counts(by_name: dict[str, int]) -> str:
    said = [f"{number:,} {name}" for name, number in by_name.items() if number]
    return ", ".join(said) or "none"


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{short(1000 * seconds)} ms"


def percent(share: float | None) -> str:
    """
    >>> percent(None), percent(0.251)
    ('unknown', '25%')
    """
    return "unknown" if share is None else f"{share:.0%}"


def age(seconds: float | None) -> str:
    """
    >>> age(None), age(0.25), age(90.0), age(7300.0)
    ('-', '0.2 s', '90 s', '2 h')
    """
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86400)} days"
