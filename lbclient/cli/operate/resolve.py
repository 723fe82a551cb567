"""What a target gives, now and as it changes: discovery without a channel.

Asks as a channel would, by the same environment. Nothing connects to a backend.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from random import Random
from typing import Any

from lbclient.cli.colour import paint
from lbclient.cli.layout import item, short, table
from lbclient.cli.run import run
from lbclient.config import ChannelConfig
from lbclient.core.backends.pool import parted
from lbclient.core.backoff import Backoff
from lbclient.core.errors import ConfigError, ResolveError
from lbclient.core.model import Endpoint, Endpoints
from lbclient.core.protocols import Resolver
from lbclient.core.text import printable
from lbclient.resolvers import parse_target
from lbclient.resolvers.following import FIRST_PAUSE
from lbclient.subsets.numbered import number, with_tasks

EPILOG = """\
targets:
  dns:///search.prod:50051        the addresses of a name
  srv:///_grpc._tcp.search.prod   SRV records, with the extra dns
  k8s:///search.prod:50051        EndpointSlices, in a pod, with the extra k8s
  file:///etc/backends.json       Prometheus' file_sd format; YAML with the extra yaml
  ipv4:1.2.3.4:1,5.6.7.8:1, ipv6:[::1]:1, unix:/run/search.sock

With --watch each change is one line: + added, - removed, ~ changed, ! an error. After
an error the last endpoints stay, and the command looks the target up again.

example:
  lbclient resolve --watch dns:///search.prod:50051

Exit status: 0; 1 if the target cannot be resolved or has no endpoints, or the output
cannot be written; 2 for bad arguments; 130 after Ctrl-C; 141 if the reader of the
output has gone.
"""


def main(argv: list[str]) -> int:
    given = parse(argv)
    try:
        interval = ChannelConfig.from_environment(target=given.target).resolve_interval
        resolver = parse_target(
            given.target, resolve_interval=interval, rng=Random()
        ).resolver
    except ConfigError as error:
        return complain(error, 2)
    try:
        if given.watch:
            run(follow(resolver, interval, as_json=given.json))
        else:
            endpoints = numbered(run(once(resolver)))
            if given.json:
                print(json.dumps(facts(resolver, endpoints), indent=2))
            else:
                print(text(resolver, endpoints))
            return 0 if endpoints else 1
    except ResolveError as error:
        return complain(error, 1)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient resolve",
        description="Shows the endpoints that a channel would get for this target.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="TARGET", help="target, as for a channel")
    parser.add_argument("--watch", action="store_true", help="repeat until Ctrl-C")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON; with --watch a line for each answer and each error",
    )
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    return make_parser().parse_args(argv)


def complain(error: Exception, status: int) -> int:
    print(f"lbclient resolve: {error}", file=sys.stderr)
    return status


async def once(resolver: Resolver) -> Endpoints:
    async for endpoints in resolver.watch():
        return endpoints
    raise ResolveError("the resolver ended")


async def follow(resolver: Resolver, interval: float, *, as_json: bool) -> None:
    last: Endpoints | None = None
    async for answer in answers(resolver, interval):
        if not isinstance(answer, ResolveError):
            answer = numbered(answer)
        if as_json:
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            lines = [json.dumps({"at": now} | said(resolver, answer))]
        elif last is None and not isinstance(answer, ResolveError):
            lines = [text(resolver, answer)]
        else:
            now = time.strftime("%H:%M:%S")
            lines = [
                f"{now}  {paint(change[0], change)}"
                for change in changes(last or (), answer)
            ]
        for line in lines:
            print(line, flush=True)
        if not isinstance(answer, ResolveError):
            last = answer


async def answers(
    resolver: Resolver, interval: float
) -> AsyncGenerator[Endpoints | ResolveError, None]:
    """Without end; after an error it is asked again, as a channel does it."""
    pauses = Backoff(FIRST_PAUSE, max(FIRST_PAUSE, interval))
    pause = pauses.first
    while True:
        try:
            async for endpoints in resolver.watch():
                yield endpoints
                pause = pauses.first
        except ResolveError as error:
            yield error
            if getattr(resolver, "paces_itself", False):
                await asyncio.sleep(0)
                continue
        await asyncio.sleep(pause)
        pause = pauses.longer(pause)


def numbered(endpoints: Endpoints) -> Endpoints:
    """The endpoints with the task numbers that subsets go by."""
    return with_tasks(endpoints, parted(endpoints)[0])


def said(resolver: Resolver, answer: Endpoints | ResolveError) -> dict[str, Any]:
    if isinstance(answer, ResolveError):
        return {"error": str(answer)}
    return facts(resolver, answer)


def facts(resolver: Resolver, endpoints: Endpoints) -> dict[str, Any]:
    return {
        "resolver": repr(resolver).strip("<>"),
        "numbers": str(number(parted(endpoints)[0])),
        "trouble": amiss(resolver, endpoints),
        "endpoints": [
            {
                "address": endpoint.address,
                "task": endpoint.task,
                "zone": endpoint.zone,
                "priority": endpoint.priority,
                "weight": endpoint.weight,
                "lame_duck": endpoint.lame_duck,
            }
            for endpoint in endpoints
        ],
    }


def trouble_of(resolver: Resolver) -> str:
    """What is amiss though it answers; empty: nothing that it knows of."""
    return printable(str(getattr(resolver, "trouble", "")))


def amiss(resolver: Resolver, endpoints: Endpoints) -> str:
    """Returns the resolver's trouble, or that there is nobody, which channels take for
    an error."""
    return trouble_of(resolver) or ("" if endpoints else "no endpoints")


def text(resolver: Resolver, endpoints: Endpoints) -> str:
    heads = [
        item("from", repr(resolver).strip("<>")),
        item("endpoints", f"{len(endpoints):,}"),
    ]
    if trouble := amiss(resolver, endpoints):
        heads.append(item("trouble", trouble))
    if not endpoints:
        return "\n".join(heads)
    rows: list[tuple[str, ...]] = [("address", "task", "zone", "weight")]
    rows += [
        (
            endpoint.address,
            "-" if endpoint.task is None else str(endpoint.task),
            endpoint.zone or "-",
            short(endpoint.weight),
        )
        for endpoint in endpoints
    ]
    if any(endpoint.priority for endpoint in endpoints):
        priorities = ["priority", *(str(e.priority) for e in endpoints)]
        rows = [(*row, one) for row, one in zip(rows, priorities, strict=True)]
    if any(endpoint.lame_duck for endpoint in endpoints):
        ducks = ["lame duck", *("yes" if e.lame_duck else "-" for e in endpoints)]
        rows = [(*row, duck) for row, duck in zip(rows, ducks, strict=True)]
    heads.append(item("for subsets", str(number(parted(endpoints)[0]))))
    return "\n".join([*heads, "", *table(rows)])


def changes(before: Endpoints, answer: Endpoints | ResolveError) -> Iterator[str]:
    """What an answer says that the one before did not.

    >>> list(changes((Endpoint("a:1"), Endpoint("b:1")), (Endpoint("b:1", task=7),)))
    ['- a:1', '~ b:1  task 7']
    """
    if isinstance(answer, ResolveError):
        yield f"! {answer}"
        return
    known = {endpoint.address: endpoint for endpoint in before}
    told = {endpoint.address: endpoint for endpoint in answer}
    for address in sorted(known.keys() | told.keys()):
        if address not in told:
            yield f"- {address}"
        elif address not in known:
            yield f"+ {described(told[address])}"
        elif told[address] != known[address]:
            yield f"~ {described(told[address])}"


def described(endpoint: Endpoint) -> str:
    parts = [endpoint.address]
    if endpoint.task is not None:
        parts.append(f"task {endpoint.task}")
    if endpoint.zone:
        parts.append(f"zone {endpoint.zone}")
    if endpoint.priority:
        parts.append(f"priority {endpoint.priority}")
    if endpoint.weight != 1.0:
        parts.append(f"weight {short(endpoint.weight)}")
    if endpoint.lame_duck:
        parts.append("lame duck")
    return "  ".join(parts)
