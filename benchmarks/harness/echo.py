"""Servers that echo, in processes of their own, and stubs that call them."""

import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.wrappers_pb2 import DoubleValue, StringValue

import lbclient
from benchmarks.harness.processes import all_entered, orders, running, say
from benchmarks.harness.servers import listen
from benchmarks.harness.turns import Echo
from lbclient import wire
from lbclient.v1 import load_pb2

PROCESSES = 2
MESSAGES = 3  # each way, of a stream
CPU = "/benchmark.Echo/Cpu"
ECHO = "/benchmark.Echo/Echo"
ARITIES = {
    "unary": ECHO,
    "server streaming": "/benchmark.Echo/Answers",
    "client streaming": "/benchmark.Echo/Requests",
    "both streaming": "/benchmark.Echo/Both",
}
REQUEST = StringValue(value="hello")


# --- servers ------------------------------------------------------------------


async def echo(request: StringValue, context: Any) -> StringValue:
    return request


async def answers(request: StringValue, context: Any) -> AsyncIterator[StringValue]:
    for _ in range(MESSAGES):
        yield request


async def requests(come: AsyncIterator[StringValue], context: Any) -> StringValue:
    return [request async for request in come][-1]


async def both(
    come: AsyncIterator[StringValue], context: Any
) -> AsyncIterator[StringValue]:
    async for request in come:
        yield request


async def echo_with_trailers(request: StringValue, context: Any) -> StringValue:
    """What reporting costs at the least: the same trailers, never changing."""
    context.set_trailing_metadata(
        ((wire.LOAD_KEY, REPORT), (wire.ORCA_KEY, REPORT)),
    )
    return request


async def cpu(request: Empty, context: Any) -> DoubleValue:
    return DoubleValue(value=time.process_time())


REPORT = load_pb2.LoadReport(
    cpu_utilization=0.3,
    rps_fractional=100.0,
    application_utilization=0.4,
    state=load_pb2.SERVING,
    active_requests=7,
).SerializeToString()

# Nobody is refused, but all there is to ask is asked, and CPU is billed by request.
EVERYTHING = lbclient.ServerConfig(
    default_quota=1000.0, max_cpu=1.0, max_memory=0.99, signals={"own": lambda: 0.5}
)

COSTS = lbclient.ServerConfig(request_cost=True)

SERVERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "lbclient": (lambda: lbclient.server(), echo),
    "lbclient, request costs": (lambda: lbclient.server(config=COSTS), echo),
    "lbclient, quotas and signals": (lambda: lbclient.server(config=EVERYTHING), echo),
    "grpcio": (lambda: grpc.aio.server(), echo),
    "grpcio + trailers": (lambda: grpc.aio.server(), echo_with_trailers),
}


async def serve(kind: str, count: int) -> None:
    """Serves until this process ends; says the ports first."""
    await serve_echo(*SERVERS[kind], count)


async def serve_echo(make: Callable[[], Any], handler: Any, count: int) -> None:
    codec = StringValue.FromString, StringValue.SerializeToString
    unary, answering, requesting, both_ways = ARITIES.values()
    methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]] = {
        unary: grpc.unary_unary_rpc_method_handler(handler, *codec),
        answering: grpc.unary_stream_rpc_method_handler(answers, *codec),
        requesting: grpc.stream_unary_rpc_method_handler(requests, *codec),
        both_ways: grpc.stream_stream_rpc_method_handler(both, *codec),
        CPU: grpc.unary_unary_rpc_method_handler(
            cpu, Empty.FromString, DoubleValue.SerializeToString
        ),
    }
    servers = [make() for _ in range(count)]
    say([await listen(server, methods) for server in servers])
    async for _ in orders():
        pass


@contextlib.asynccontextmanager
async def spawned(kind: str, count: int) -> AsyncIterator[list[int]]:
    async with running(serve, kind, count) as process:
        yield await process.hear()


@contextlib.asynccontextmanager
async def many_spawned(count: int) -> AsyncIterator[list[int]]:
    """Servers of ours, in a few processes; neighbours in the list are in different
    ones, so that a part of the list is on all of them."""
    each = [spawned("lbclient", count // PROCESSES) for _ in range(PROCESSES)]
    async with contextlib.AsyncExitStack() as stack:
        ports = await all_entered(stack, each)
        yield list(itertools.chain.from_iterable(zip(*ports, strict=True)))


# --- clients ------------------------------------------------------------------


def echo_on(channel: grpc.aio.Channel) -> Echo:
    method = channel.unary_unary(
        ECHO,
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )
    return lambda: method(REQUEST, timeout=10.0)


def calling(channel: grpc.aio.Channel, arity: str) -> Echo:
    """One call of that arity, and all its messages."""
    if arity == "unary":
        return echo_on(channel)
    path = ARITIES[arity]
    factory = {
        "server streaming": channel.unary_stream,
        "client streaming": channel.stream_unary,
        "both streaming": channel.stream_stream,
    }[arity]
    method: Any = factory(
        path,
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )

    async def several() -> AsyncIterator[StringValue]:
        for _ in range(MESSAGES):
            yield REQUEST

    async def answered() -> None:
        given = REQUEST if arity == "server streaming" else several()
        async for _ in method(given, timeout=10.0):
            pass

    async def requested() -> None:
        await method(several(), timeout=10.0)

    return requested if arity == "client streaming" else answered


def native(target: str, policy: str) -> grpc.aio.Channel:
    # Without the blackout of 10 s it is at work from the start.
    settings = {"blackoutPeriod": "0.1s"} if policy.startswith("weighted") else {}
    config = json.dumps({"loadBalancingConfig": [{policy: settings}]})
    options = [
        ("grpc.service_config", config),
        ("grpc.use_local_subchannel_pool", 1),  # connections of its own, as ours has
    ]
    return grpc.aio.insecure_channel(target, options)


def cpu_of(channel: grpc.aio.Channel) -> Callable[[], Awaitable[float]]:
    """Asks the server's process for its own CPU time."""
    method = channel.unary_unary(
        CPU,
        request_serializer=Empty.SerializeToString,
        response_deserializer=DoubleValue.FromString,
    )

    async def read() -> float:
        answer = await method(Empty(), timeout=10.0)
        return float(answer.value)

    return read
