"""The core in memory answers grpcio's classes as gRPC's own core does.

The cases are those of tests/conformance that speak of what a core in memory claims.
Each runs with grpc.aio over loopback, and with grpc.aio over the core in memory, and
what the caller sees must be equal. A channel to nobody, files and TLS are left out, and
so is what `LEFT_OUT` names.
"""

import asyncio
import gc
import inspect
import warnings
from collections.abc import Iterator
from itertools import product
from random import Random
from types import ModuleType
from typing import Any

import grpc.aio
import pytest

from tests.conformance import (
    test_callbacks,
    test_cancellation,
    test_channels,
    test_deadlines,
    test_results,
    test_streams,
)
from tests.conformance.both import LIMIT, Case, Side, plain
from tests.conformance.script import Script
from tests.hosts import add_methods, hosting
from tests.worlds.clock import Clock
from tests.worlds.datagrams import Datagrams
from tests.worlds.installed import installed
from tests.worlds.network import Host, Link, Network

MODULES: tuple[ModuleType, ...] = (
    test_callbacks,
    test_cancellation,
    test_channels,
    test_deadlines,
    test_results,
    test_streams,
)
ADDRESS = "10.0.0.1:50051"
NO_NAMES = "there are no names, only addresses"
NO_LIMIT = "messages of a world are small"
SENDABLE = "worlds send what can be sent"
LEFT_OUT = {
    "test_a_call_is_compressed": "nothing is compressed",
    "test_a_channel_made_outside_of_a_loop_is_used_in_one": "it has two loops",
    "test_a_deadline_passes_before_there_is_a_connection": "it has a real socket",
    "test_a_message_over_the_limit_is_an_error": NO_LIMIT,
    "test_a_name_that_nobody_has_is_unavailable": NO_NAMES,
    "test_a_request_over_the_limit_in_a_stream_says_so": NO_LIMIT,
    "test_a_request_over_the_limit_is_not_sent": NO_LIMIT,
    "test_a_request_that_is_not_bytes_is_an_error": "lbclient sends bytes only",
    "test_a_target_is_written_in_many_ways": NO_NAMES,
    "test_a_unary_call_with_characters_that_are_not_allowed_says_so": SENDABLE,
    "test_metadata_that_cannot_be_sent_is_an_error": SENDABLE,
    "test_use_from_a_second_loop_is_a_clear_error": "it has two loops",
}


def arguments_of(test: Any) -> Iterator[dict[str, Any]]:
    """Every combination of a test's parameters; `both` is the channel's state."""
    columns: list[list[dict[str, Any]]] = []
    states = ["fresh", "ready"]
    for mark in getattr(test, "pytestmark", ()):
        if mark.name != "parametrize":
            continue
        names, values = mark.args[:2]
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",")]
        if names == ["both"]:
            states = values
            continue
        rows = [_row(value, len(names)) for value in values]
        columns.append([dict(zip(names, row, strict=True)) for row in rows])
    for state in states:
        for parts in product(*columns):
            merged: dict[str, Any] = {"both": state}
            for part in parts:
                merged |= part
            yield merged


def _row(value: Any, width: int) -> Any:
    """The values of one run, which may be a `pytest.param`."""
    if hasattr(value, "marks"):
        return value.values
    return value if width > 1 else (value,)


def cases() -> Iterator[Any]:
    for module in MODULES:
        for name, test in vars(module).items():
            case = getattr(test, "case", None)
            if case is None or name in LEFT_OUT:
                continue
            wanted = set(inspect.signature(case).parameters) - {"side"}
            for arguments in arguments_of(test):
                if wanted <= set(arguments):
                    state = arguments.pop("both")
                    told = "-".join([state, *map(str, arguments.values())])
                    yield pytest.param(case, state, arguments, id=f"{name}[{told}]")


async def seen_by(side: Side, case: Case, arguments: dict[str, Any]) -> Any:
    async with asyncio.timeout(LIMIT), side:
        return plain(await case(side, **arguments))


async def over_loopback(case: Case, state: str, arguments: dict[str, Any]) -> Any:
    script = Script()
    options = (("grpc.max_receive_message_length", -1),)
    server = grpc.aio.server(options=options)
    async with hosting(script.methods(), server=server) as (_, address, _):
        side = Side("grpc.aio", address, script, state == "ready")
        return await seen_by(side, case, arguments)


async def in_memory(case: Case, state: str, arguments: dict[str, Any]) -> Any:
    script = Script()
    server = add_methods(grpc.aio.server(), script.methods())
    server.add_insecure_port(ADDRESS)
    await server.start()
    side = Side("grpc.aio", ADDRESS, script, state == "ready")
    try:
        return await seen_by(side, case, arguments)
    finally:
        await server.stop(None)


def run_in_memory(case: Case, state: str, arguments: dict[str, Any]) -> Any:
    rng = Random(7)
    clock = Clock(rng)
    network = Network(clock)
    hosts: dict[str, Host] = {}

    def find(address: str) -> Host:
        if address.endswith(":0"):
            address = address[:-1] + str(40_000 + len(hosts))
        if address not in hosts:
            hosts[address] = Host(address, Link(rng, 0.0001))
        return hosts[address]

    with installed(clock, network, find, 7, Datagrams(clock, lambda _: None)):
        loop = clock.start("both")
        task = loop.create_task(in_memory(case, state, arguments))
        clock.run(3600.0, task.done)
        assert task.done(), f"never over: {task} {loop.errors}"
        result = task.result()
        clock.run(clock.now + 1.0)
        del task
        gc.collect()
        loop.close()
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("case", "state", "arguments"), list(cases()))
def test_a_core_in_memory_does_as_grpcs(
    case: Case, state: str, arguments: dict[str, Any]
) -> None:
    theirs = asyncio.run(over_loopback(case, state, arguments))
    with warnings.catch_warnings():
        assert run_in_memory(case, state, arguments) == theirs
