"""What usually goes wrong with a target, checked one by one, and what to do about it.

Asks as a channel would, by the same environment. A check that finds nothing wrong says
what it saw, so that it can be disbelieved.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from random import Random

import grpc

from lbclient import __version__, wire
from lbclient.cli.colour import paint
from lbclient.cli.layout import count as how_many
from lbclient.cli.operate import peer, probe, refusal_rate
from lbclient.cli.operate.ask_workers import NO_WORKERS, WorkersSeen, ask_workers
from lbclient.cli.operate.resolve import once, trouble_of
from lbclient.cli.run import run
from lbclient.client.health.refused_services import LOAD, in_words
from lbclient.config import ChannelConfig, is_disabled
from lbclient.config.identity import find_identity
from lbclient.core.backends.pool import parted
from lbclient.core.errors import ConfigError, ResolveError
from lbclient.core.model import Endpoints, TaskState
from lbclient.resolvers import parse_target
from lbclient.subsets.numbered import number
from lbclient.wire.datagram import Seal

TIMEOUT = 3.0  # seconds: for the target, and for each backend
MOST_TABLES = 5  # of other channels, that are named
MOST_ASKED = 10  # backends; the first ones by address stand for all
OLDEST_GRPCIO = (1, 66)  # pyproject.toml

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # in gRPC's order

OK, WARN, FAIL = "ok", "warn", "fail"

HEADLESS = (
    "behind a virtual address or a proxy there is nothing to balance: make the Service"
    " headless, or use k8s:///"
)

LET_PASS = (
    "let the health services pass the server's interceptors, as lbclient.server does"
    " unless intercept_health is set, and the rules of proxies; or give credentials,"
    " here by -H, in a channel as call credentials: else a lame duck cannot say so"
)

EPILOG = """\
Each line is one check: ok, warn or fail, its name, the finding, and what to do. At most
ten backends are asked. UDP health checks use the secret of LBCLIENT_CONFIG or
LBCLIENT_UDP_SECRET, as a channel does, or without one what a server gives over TLS.
With --refusals the command starts a server on this machine for less than a second, and
measures how many requests it can refuse.

{insecure}

examples:
  lbclient doctor dns:///search.prod:50051
  lbclient doctor --tls-ca ca.pem --json k8s:///search.prod:grpc
  lbclient doctor -H 'authorization: Bearer TOKEN' dns:///search.prod:50051

Exit status: 0 no check fails, though there may be warnings; 1 a check fails, as where
one backend does not answer, or the output cannot be written; 2 for bad arguments; 130
after Ctrl-C; 141 if the reader of the output has gone.
"""


ASKED_AGAIN = 6  # times; a proxy in front of two tasks is missed once in 32

ASK = "is it the right name, and may this machine ask for it?"
ASK_FILE = "is it the right file, may this user read it, and is it as file_sd has it?"


@dataclass(frozen=True, slots=True)
class Check:
    """One line. `do` is empty where nothing is to be done."""

    name: str
    level: str
    found: str
    do: str = ""

    def line(self) -> str:
        do = f": {self.do}" if self.do else ""
        level = paint(self.level, f"{self.level:4}")
        return f"{level}  {self.name:9}  {self.found}{do}"


@dataclass(frozen=True, slots=True)
class BackendSeen:
    """What one backend showed; `trouble` says why there is no more."""

    address: str
    trouble: str = ""
    health: str = ""  # the service that told
    state: str = ""
    has_reports: bool = False
    udp: str = ""  # empty: answered, or not offered; else what went wrong
    offers_udp: bool = False
    tasks: int = 1  # that answered there
    refused: Mapping[str, str] = field(default_factory=dict)  # statuses by method
    workers: WorkersSeen = NO_WORKERS

    def refuses_health(self) -> bool:
        return not self.health and any(method not in LOAD for method in self.refused)


def main(argv: list[str]) -> int:
    try:
        given = parse(argv)
        config = ChannelConfig.from_environment(target=given.target, name=given.name)
        resolver = parse_target(
            given.target, resolve_interval=config.resolve_interval, rng=Random()
        ).resolver
        identity = find_identity(config.task_index)
        checks = [*surroundings(os.environ), of_settings(config)]
        try:
            endpoints = run(asyncio.wait_for(once(resolver), given.timeout))
        except (ResolveError, TimeoutError) as error:
            late = f"to resolve {given.target} takes more than {given.timeout:g} s"
            words = late if isinstance(error, TimeoutError) else str(error)
            do = ASK_FILE if given.target.startswith("file:") else ASK
            checks.append(Check("target", FAIL, words, do))
        else:
            members, _ = parted(endpoints)
            checks += of_endpoints(endpoints, config, identity.index)
            if trouble := trouble_of(resolver):
                do = "mend what is asked: half of the fleet may be all that is known"
                checks.append(Check("source", WARN, trouble, do))
            asked = members[:MOST_ASKED]
            seen = run(ask_all(asked, given, probe.secret_of(config)))
            checks += of_backends(seen, is_tls=given.tls)
        if given.refusals:
            checks.append(run(of_refusals()))
    except ConfigError as error:
        print(f"lbclient doctor: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        print("\n".join(check.line() for check in checks))
    return int(any(check.level == FAIL for check in checks))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient doctor",
        description="Checks a target for the usual problems, and says what to do.",
        epilog=EPILOG.format(insecure=peer.NO_INSECURE),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("target", metavar="TARGET", help="target, as for a channel")
    add("--timeout", default=f"{TIMEOUT:g}", metavar="SECONDS",
        help="of the lookup, and of each backend (default: %(default)s)")  # fmt: skip
    add("--name", default="", metavar="NAME",
        help="name of the channel, if the program gives it one")  # fmt: skip
    peer.add_connection(parser, "the servers' certificates are")
    what = "measure how many requests a second a server on this machine can refuse"
    add("--refusals", action="store_true", help=what)
    add("--json", action="store_true", help="print JSON")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    given = make_parser().parse_args(argv)
    peer.check(given)
    return given


# --- this machine -------------------------------------------------------------


def surroundings(environ: Mapping[str, str]) -> Iterator[Check]:
    yield of_versions(grpc.__version__)
    yield from of_kill_switch(environ)
    found = [name for name in PROXIES if environ.get(name)]
    if not found:
        yield Check("proxy", OK, "no proxy in the environment")
        return
    do = (
        "lbclient ignores it and connects by itself; if that is no way to the servers,"
        ' options=[("grpc.enable_http_proxy", 1)]'
    )
    yield Check("proxy", WARN, f"{', '.join(found)} is set", do)


def of_kill_switch(environ: Mapping[str, str]) -> Iterator[Check]:
    try:
        if is_disabled(environ):
            found = "LBCLIENT_DISABLE: channels are grpc.aio's"
            yield Check("disabled", WARN, found, "unset it to have lbclient's")
    except ConfigError as error:
        yield Check("disabled", FAIL, str(error), "no channel and no server is made")


def of_settings(config: ChannelConfig) -> Check:
    """Checks which settings are not defaults, where they come from, and which tables do
    not apply."""
    by_source: dict[str, list[str]] = {}
    for name, source in config.sources().items():
        if source != "default":
            by_source.setdefault(source, []).append(name)
    said = [f"{', '.join(names)} from {source}" for source, names in by_source.items()]
    others = [place for place, is_own in config.tables().items() if not is_own]
    if others:
        more = len(others) - MOST_TABLES
        named = ", ".join(others[:MOST_TABLES])
        named += f" and {more:,} more" if more > 0 else ""
        said.append(f"not for this target and name: {named}")
    return Check("settings", OK, "; ".join(said or ["all by default"]))


def of_versions(grpcio: str) -> Check:
    """
    >>> of_versions("1.62.1").level, of_versions("1.85.1").level
    ('warn', 'ok')
    """
    protobuf = "unknown"
    with suppress(PackageNotFoundError):
        protobuf = version("protobuf")
    words = (
        f"lbclient {__version__}, grpcio {grpcio}, protobuf {protobuf},"
        f" Python {platform.python_version()}"
    )
    parts = tuple(int(part) for part in grpcio.split(".")[:2] if part.isdecimal())
    if parts >= OLDEST_GRPCIO:
        return Check("versions", OK, words)
    do = f"install grpcio {'.'.join(map(str, OLDEST_GRPCIO))} or newer"
    return Check("versions", WARN, words, do)


async def of_refusals() -> Check:
    try:
        rate = await refusal_rate.refused_in_a_second()
    except (refusal_rate.NotMeasured, OSError) as error:
        return Check("refusals", WARN, f"not measured: {error}", "try it once more")
    found = (
        f"a server here can refuse some {float(f'{rate:.2g}'):,.0f} requests a second"
        " with all of one core: near that there is little left to serve with, and what"
        " comes beyond it is ended whatever its criticality"
    )
    return Check("refusals", OK, found)


# --- the list -----------------------------------------------------------------


def of_endpoints(
    endpoints: Endpoints, config: ChannelConfig, task: int | None
) -> Iterator[Check]:
    count = len(endpoints)
    if not count:
        do = "is any backend up, and is the name or the selector right?"
        yield Check("target", FAIL, "no endpoints", do)
        return
    if count == 1:
        found = f"one address only, {endpoints[0].address}"
        yield Check("target", WARN, found, HEADLESS)
    else:
        yield of_leaving(endpoints)
    members, _ = parted(endpoints)
    yield of_numbers(members, config, task)
    if config.locality:
        yield of_zones(members, config)


def of_leaving(endpoints: Endpoints) -> Check:
    found = f"{len(endpoints):,} endpoints"
    leaving = sum(endpoint.lame_duck for endpoint in endpoints)
    if leaving == len(endpoints):
        do = "they get calls because nothing else does: are replacements starting?"
        return Check("target", WARN, f"{found}, all of them lame ducks", do)
    if leaving:
        found += f", {how_many(leaving, 'lame duck')}"
    return Check("target", OK, found)


def of_numbers(endpoints: Endpoints, config: ChannelConfig, task: int | None) -> Check:
    if len(endpoints) <= config.subset_size:
        found = f"not needed: all fit in a subset of {config.subset_size}"
        return Check("numbers", OK, found)
    numbering = number(endpoints)
    who = "no number" if task is None else f"number {task}"
    found = f"this client has {who}, {numbering}"
    if task is None:
        do = "for even subsets set LBCLIENT_TASK_INDEX in each client"
        return Check("numbers", WARN, found, do)
    if numbering.why_not:
        do = "for even subsets use a StatefulSet with srv:/// or k8s:///, or label task"
        return Check("numbers", WARN, found, do)
    return Check("numbers", OK, found)


def of_zones(endpoints: Endpoints, config: ChannelConfig) -> Check:
    zone = config.zone
    near = sum(endpoint.zone == zone for endpoint in endpoints)
    found = f"{near:,} of {len(endpoints):,} endpoints in zone {zone!r}"
    if zone and near:
        return Check("zone", OK, found)
    do = "locality has no effect: set LBCLIENT_ZONE to a zone that the source names"
    return Check("zone", WARN, found, do)


# --- the backends -------------------------------------------------------------


async def ask_all(
    endpoints: Endpoints, given: argparse.Namespace, secret: bytes
) -> list[BackendSeen]:
    return await asyncio.gather(
        *(ask(endpoint.address, given, secret) for endpoint in endpoints)
    )


async def ask(address: str, given: argparse.Namespace, secret: bytes) -> BackendSeen:
    until = asyncio.get_running_loop().time() + given.timeout
    async with peer.reach(address, given, until) as server:
        reply = await server.call(wire.CHECK_METHOD)
        if why := server.why_unanswered(reply):
            return BackendSeen(address, why)
        health = wire.parse_health(reply) if isinstance(reply, bytes) else None
        if health is None:
            refused = {wire.CHECK_METHOD: peer.refusal(reply)}
            return await ask_another(address, server, refused)
        tasks = await count_tasks(server, health)
    workers = await ask_workers(address, health.workers, given)
    port, seal, trouble = health.udp_port, Seal(secret), ""
    if health.udp_session is not None and not secret:
        port, seal = health.udp_session
    if port:
        trouble = await udp_trouble(address, port, given.timeout, seal)
    return BackendSeen(
        address,
        health="lbclient.v1.BackendHealth",
        state=probe.STATES[health.state],
        has_reports=health.report is not None,
        offers_udp=bool(port),
        udp=trouble,
        tasks=tasks,
        workers=workers,
    )


async def count_tasks(server: peer.AskedServer, health: wire.Health) -> int:
    """How many answer over one connection, as behind a proxy: asks some times more."""
    found = set()
    for _ in range(ASKED_AGAIN):
        found.add(0 if health.report is None else health.report.task_id)
        reply = await server.call(wire.CHECK_METHOD)
        again = wire.parse_health(reply) if isinstance(reply, bytes) else None
        if again is None:
            break
        health = again
    return max(1, len(found - {0}))


async def ask_another(
    address: str, server: peer.AskedServer, refused: dict[str, str]
) -> BackendSeen:
    """A server that is not ours, or refuses ours: what of gRPC's own has it?"""
    reply = await server.call(wire.SERVING_CHECK_METHOD)
    is_known = isinstance(reply, bytes)
    if why := server.why_unanswered(reply):
        return BackendSeen(address, why)
    refused[wire.SERVING_CHECK_METHOD] = peer.refusal(reply)
    load = await server.read_first(wire.ORCA_METHOD)
    if isinstance(load, grpc.aio.AioRpcError):
        refused[wire.ORCA_METHOD] = peer.refusal(load)
    return BackendSeen(
        address,
        health="grpc.health.v1" if is_known else "",
        state=probe.serving_state(reply) if isinstance(reply, bytes) else "",
        has_reports=isinstance(load, bytes),
        refused={method: status for method, status in refused.items() if status},
    )


async def udp_trouble(address: str, port: int, timeout: float, seal: Seal) -> str:
    if address.startswith("unix:"):
        return ""
    place = f"{address.rpartition(':')[0]}:{port}"
    # It offers UDP and is known to be up: a third of the patience will do.
    patience = timeout / 3
    until = asyncio.get_running_loop().time() + patience
    found = await probe.by_udp(place, patience, until, seal)
    return "" if found.state else found.detail


def of_backends(seen: list[BackendSeen], *, is_tls: bool) -> Iterator[Check]:
    if not seen:
        return
    up = [each for each in seen if not each.trouble]
    silent = [each for each in seen if each.trouble]
    if silent:
        first = f"{silent[0].address}: {silent[0].trouble}"
        found = f"{len(up)} of {len(seen)} that were asked answer; {first}"
        tls = "does it want TLS (--tls)?"
        if is_tls:
            tls = "are CAs (--tls-ca) and name (--tls-name) its certificate's?"
        do = f"is the port right, does it speak gRPC, {tls}"
        yield Check("answer", FAIL, found, do)
    else:
        yield Check("answer", OK, f"{len(up)} of {len(seen)} that were asked")
    if up:
        yield from of_health(up)
        yield of_reports(up)
        yield from of_fronts(up)
        yield from of_workers(up)
        yield of_udp(up)


def of_health(up: list[BackendSeen]) -> Iterator[Check]:
    refusing = [each for each in up if each.refuses_health()]
    mute = [each for each in up if not each.health and not each.refuses_health()]
    if refusing:
        found = f"{in_words(refusing[0].refused)} at {addresses(refusing)}"
        yield Check("health", WARN, found, LET_PASS)
    if mute:
        found = f"no health service at {addresses(mute)}"
        do = "use lbclient.server, or add grpc.health.v1: a lame duck cannot say so"
        yield Check("health", WARN, found, do)
    out = [each for each in up if each.health and each.state != STATE_SERVING]
    if out:
        do = "they get no calls while they say so"
        yield Check("health", WARN, f"{out[0].state}: {addresses(out)}", do)
    if not (refusing or mute or out):
        kinds = sorted({each.health for each in up})
        words = [f"serving, by {' and '.join(kinds)}"]
        words += [in_words(each.refused) for each in up if each.refused][:1]
        yield Check("health", OK, "; ".join(words))


def of_fronts(up: list[BackendSeen]) -> Iterator[Check]:
    fronts = [each for each in up if each.tasks > 1]
    if fronts:
        found = f"{addresses(fronts)} fronts several tasks, as a proxy does"
        do = (
            "what stands there chooses the task of each call; for lbclient to choose,"
            " give it the tasks' own addresses"
        )
        yield Check("fronts", WARN, found, do)


def of_workers(up: list[BackendSeen]) -> Iterator[Check]:
    several = [each for each in up if each.workers.places]
    if hidden := [each for each in several if each.workers.unreached]:
        first = hidden[0].workers
        found = (
            f"{len(first.unreached)} of {how_many(first.serving, 'worker')} not reached"
            f" by their own ports, such as {first.unreached[0]}: {addresses(hidden)}"
        )
        do = (
            "channels make several connections to the shared port instead, until each"
            " is at another worker: better let clients through to the own ports, which"
            " LBCLIENT_WORKER_PORTS=next makes known ones"
        )
        yield Check("workers", WARN, found, do)
    elif several:
        serving = sum(each.workers.serving for each in several)
        places = sum(each.workers.places for each in several)
        tasks = how_many(len(several), "task")
        found = (
            f"{serving} of {how_many(places, 'worker')} of {tasks} serve, and answer"
        )
        yield Check("workers", OK, found)


STATE_SERVING = probe.STATES[TaskState.SERVING]


def of_reports(up: list[BackendSeen]) -> Check:
    without = [each for each in up if not each.has_reports]
    if not without:
        return Check("reports", OK, "all report their load")
    if refusing := [each for each in without if each.refused]:
        words = in_words(refusing[0].refused)
        found = f"no load reports by {addresses(without)}; {words}"
        return Check("reports", WARN, found, LET_PASS)
    do = "pickers go by this client's own calls: use lbclient.server, or serve ORCA"
    return Check("reports", WARN, f"no load reports by {addresses(without)}", do)


def of_udp(up: list[BackendSeen]) -> Check:
    if blocked := [each for each in up if each.udp]:
        found = f"{addresses(blocked)}: {blocked[0].udp}"
        do = "let UDP through to the gRPC port; TCP, which is used else, costs more"
        return Check("udp", WARN, found, do)
    offering = sum(each.offers_udp for each in up)
    if not offering:
        return Check("udp", OK, "not offered: inactive backends are looked at over TCP")
    return Check("udp", OK, f"{offering} of {len(up)} answer")


def addresses(seen: list[BackendSeen]) -> str:
    more = f" and {len(seen) - 1} more" if len(seen) > 1 else ""
    return f"{seen[0].address}{more}"
