"""What a call costs through lbclient and through plain grpcio, side by side.

    python -m benchmarks.overhead            about 5 minutes
    python -m benchmarks.overhead --quick    about 70 s
    python -m benchmarks.overhead --only servers --json FILE --plot FILE.png

Clients: our channel against grpcio's native policies, over the same 20 backends; unary
calls, and streams of three messages each way. Servers: `lbclient.server` against a bare
`grpc.aio.server`, several processes each. They take turns in slices of some 50 ms, see
`benchmarks.harness.turns`; a ratio is the median of those of neighbouring slices. CPU
time is that of the whole process, its C threads included. Exit status 1 if a target is
missed.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

import lbclient
from benchmarks.harness.echo import (
    ARITIES,
    SERVERS,
    calling,
    cpu_of,
    many_spawned,
    native,
    spawned,
)
from benchmarks.harness.figures import say_machine
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import all_entered
from benchmarks.harness.servers import target_of
from benchmarks.harness.turns import (
    Contender,
    Ratio,
    compare,
    draw_all,
    measured_of,
    own_cpu,
    ratio,
    say_absolute,
    say_ratios,
)

BACKENDS = 20  # the subset that a channel has by default
SERVER_PROCESSES = 5
STREAM_PROCESSES = 3
TARGET_CONCURRENCY = 64
CLIENT_TARGET, CLIENT_MOST = 1.05, 1.10  # at that concurrency, and at any other
THROUGHPUT_TARGET = 0.95
SERVER_TARGET = 1.15
FEATURES_TARGET = 1.2
DEFAULT = "weighted_least_loaded"
NATIVE = ("pick_first", "round_robin", "weighted_round_robin")
PEER = "weighted_round_robin"  # the native policy that the targets are about

# Calls of a slice by concurrency, and seconds of all slices.
UNARY = {1: (60, 10), 16: (128, 12), 64: (192, 36), 256: (512, 24)}
STREAMS = {1: (32, 8), 16: (64, 8), 64: (128, 16), 256: (256, 12)}
QUICK_STREAMS = (1, 64)


async def compare_clients(effort: float) -> list[Ratio]:
    async with contextlib.AsyncExitStack() as stack:
        target = target_of(await stack.enter_async_context(many_spawned(BACKENDS)))
        channels: dict[str, grpc.aio.Channel] = {}
        for policy in NATIVE:
            channels[f"grpcio {policy}"] = await stack.enter_async_context(
                native(target, policy)
            )
        for policy in ("round_robin", DEFAULT):
            config = lbclient.ChannelConfig(picker=policy, subset_size=BACKENDS)
            channels[f"lbclient {policy}"] = await stack.enter_async_context(
                lbclient.insecure_channel(target, config=config)
            )
        ratios: list[Ratio] = []
        for arity in ARITIES:
            is_unary = arity == "unary"
            plan = UNARY if is_unary else STREAMS
            contenders = {
                name: Contender(name, calling(channel, arity), own_cpu)
                for name, channel in channels.items()
                if is_unary or name in STREAMING
            }
            for concurrency, (calls, seconds) in plan.items():
                if effort < 1.0 and not is_unary and concurrency not in QUICK_STREAMS:
                    continue
                everyone = [*contenders.values()]
                await compare(everyone, concurrency, calls, seconds * effort)
                say_absolute(arity, everyone, concurrency)
                ratios += ratios_of(arity, contenders, concurrency)
        return ratios


STREAMING = {"grpcio round_robin", f"grpcio {PEER}", f"lbclient {DEFAULT}"}


def ratios_of(
    arity: str, contenders: dict[str, Contender], concurrency: int
) -> Iterator[Ratio]:
    """Each of ours over each of theirs."""
    for ours in (each for each in contenders if each.startswith("lbclient")):
        for theirs in (each for each in contenders if each.startswith("grpcio")):
            is_target = ours == f"lbclient {DEFAULT}" and theirs == f"grpcio {PEER}"
            most = CLIENT_MOST
            if concurrency == TARGET_CONCURRENCY:
                most = CLIENT_TARGET
            yield ratio(
                f"client, {arity}",
                contenders[ours],
                contenders[theirs],
                concurrency,
                most if is_target else None,
                THROUGHPUT_TARGET if is_target else None,
            )


async def server_contenders(
    arity: str, kinds: tuple[str, ...], processes: int, seconds: float, calls: int
) -> list[Contender]:
    """Each kind in several processes: where one lands in memory is worth 3 %."""
    concurrency = TARGET_CONCURRENCY
    async with contextlib.AsyncExitStack() as stack:
        contenders = []
        everyone = kinds * processes
        ports = await all_entered(stack, [spawned(kind, 1) for kind in everyone])
        for kind, [port] in zip(everyone, ports, strict=True):
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            )
            call = calling(channel, arity)
            contenders.append(Contender(f"{kind} server", call, cpu_of(channel)))
        await compare(contenders, concurrency, calls, seconds)
    for i, contender in enumerate(contenders[len(kinds) :]):
        contenders[i % len(kinds)].cpu_per_call += contender.cpu_per_call
        contenders[i % len(kinds)].calls_per_second += contender.calls_per_second
    say_absolute(f"server, {arity}", contenders[: len(kinds)], concurrency)
    return contenders[: len(kinds)]


async def compare_servers(effort: float) -> list[Ratio]:
    concurrency, kinds = TARGET_CONCURRENCY, (*SERVERS,)
    found = await server_contenders("unary", kinds, SERVER_PROCESSES, 75 * effort, 200)
    ours, costs, everything, bare, by_hand = found
    ratios = [
        ratio("server, unary", ours, bare, concurrency, SERVER_TARGET),
        ratio("server, unary", costs, ours, concurrency),
        ratio("server, unary", everything, bare, concurrency, FEATURES_TARGET),
        ratio("server, unary", ours, by_hand, concurrency),
        ratio("server, unary", by_hand, bare, concurrency),
    ]
    for arity in [*ARITIES][1:]:
        ours, bare = await server_contenders(
            arity, ("lbclient", "grpcio"), STREAM_PROCESSES, 16 * effort, 96
        )
        ratios.append(ratio(f"server, {arity}", ours, bare, concurrency, SERVER_TARGET))
    return ratios


async def compare_all(effort: float, only: str | None) -> list[Ratio]:
    clients = [] if only == "servers" else await compare_clients(effort)
    servers = [] if only == "clients" else await compare_servers(effort)
    return clients + servers


def main() -> int:
    parser = parser_of("overhead", __doc__, quick="a quarter of the time", plot=True)
    parser.add_argument("--only", choices=("clients", "servers"), help="one part")
    given = parser.parse_args()
    found: dict[str, Any] = say_machine()
    ratios = asyncio.run(compare_all(0.25 if given.quick else 1.0, given.only))
    say_ratios(ratios)
    found |= {"backends": BACKENDS, "ratios": ratios}
    return conclude(
        given,
        found,
        None,
        lambda: draw_all(ratios),
        measured=measured_of(ratios),
    )


if __name__ == "__main__":
    exit_with(main)
