"""A channel's own life: its states, its end, its loop, and what it may be."""

import asyncio
import gc
import sys
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.both import (
    NEVER,
    Side,
    answered,
    attempted,
    comes_true,
    each_kind,
    end_of,
    on_both,
    once,
    outcome,
    when_ready,
)
from tests.conformance.script import KINDS, path
from tests.hosts import hosting
from tests.waiting import eventually, let_pass

IDLE = grpc.ChannelConnectivity.IDLE
CONNECTING = grpc.ChannelConnectivity.CONNECTING
READY = grpc.ChannelConnectivity.READY
FAILURE = grpc.ChannelConnectivity.TRANSIENT_FAILURE


@on_both
@once
async def test_a_channel_begins_idle_and_connects_when_asked(side: Side) -> Any:
    channel = side.insecure()
    seen: list[Any] = [channel.get_state(), channel.get_state()]
    await let_pass(0.02)
    seen += [channel.get_state(), channel.get_state(try_to_connect=True)]
    await channel.channel_ready()
    return *seen[:3], channel.get_state()


@on_both
@once
async def test_asking_for_a_connection_tells_the_state_before(side: Side) -> Any:
    return side.insecure().get_state(try_to_connect=True)


@on_both
@once
async def test_a_call_connects(side: Side) -> Any:
    channel = side.insecure()
    await (await side.begin("unary_unary", on=channel))
    return channel.get_state()


@on_both
@once
async def test_a_channel_passes_through_its_states(side: Side) -> Any:
    channel = side.insecure()
    states = [channel.get_state(True)]
    while states[-1] is not READY:
        await channel.wait_for_state_change(states[-1])
        states.append(channel.get_state(True))
    # Whether it is seen connecting is chance.
    return states[-1], set(states) <= {IDLE, CONNECTING, READY}


@on_both
@once
async def test_a_wait_for_another_state_than_this_is_over_at_once(
    side: Side,
) -> Any:
    channel = side.insecure()
    await channel.wait_for_state_change(READY)
    return channel.get_state()


@on_both
@once
async def test_a_wait_does_not_connect(side: Side) -> Any:
    channel = side.insecure()
    seen = await outcome(channel.wait_for_state_change(IDLE), 0.1)
    return seen, channel.get_state()


@on_both
@when_ready
async def test_nothing_changes_while_all_is_well(side: Side) -> Any:
    channel = await side.channel()
    return await outcome(channel.wait_for_state_change(READY), 0.1)


@on_both
@once
async def test_a_channel_to_nobody_is_in_trouble(side: Side) -> Any:
    channel = side.insecure("127.0.0.1:1")
    state = channel.get_state(True)
    turns = 0
    while state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE and turns < 20:
        await channel.wait_for_state_change(state)
        state, turns = channel.get_state(), turns + 1
    return state, await outcome(channel.channel_ready(), 0.05)


@on_both
async def test_many_wait_until_a_channel_is_ready(side: Side) -> Any:
    channel = await side.channel()
    return await asyncio.gather(*(channel.channel_ready() for _ in range(5)))


@on_both
@when_ready
async def test_a_channel_notices_that_its_server_is_gone(side: Side) -> Any:
    async with hosting(server=grpc.aio.server()) as (_, address, _):
        channel = side.insecure(address)
        await channel.channel_ready()
        waiting = asyncio.create_task(_awaited(channel.wait_for_state_change(READY)))
    return await outcome(waiting, 5), channel.get_state() is READY


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


@on_both
@once
async def test_a_wait_for_a_state_is_given_up(side: Side) -> Any:
    channel = side.insecure("127.0.0.1:1")
    waiting = asyncio.create_task(_awaited(channel.channel_ready()))
    await eventually(lambda: channel.get_state() is FAILURE)
    waiting.cancel()
    return await outcome(waiting)


@on_both
async def test_a_closed_channel_is_shut_down(side: Side) -> Any:
    channel = await side.channel()
    await channel.close()
    return channel.get_state(), attempted(channel.get_state, True)


@on_both
@pytest.mark.parametrize("what", ["wait", "wait for another", "ready"])
async def test_a_closed_channel_is_not_waited_for(side: Side, what: str) -> Any:
    channel = await side.channel()
    await channel.close()
    shutdown = grpc.ChannelConnectivity.SHUTDOWN
    waits: dict[str, Any] = {
        "wait": lambda: channel.wait_for_state_change(shutdown),
        "wait for another": lambda: channel.wait_for_state_change(READY),
        "ready": channel.channel_ready,
    }
    return await outcome(waits[what](), NEVER)


@on_both
@pytest.mark.parametrize("state", [IDLE, READY], ids=lambda state: state.name)
async def test_close_ends_a_wait_for_a_state(side: Side, state: Any) -> Any:
    channel = await side.channel()
    if channel.get_state() is not state:
        return "not in this state"
    waiting = asyncio.create_task(outcome(channel.wait_for_state_change(state)))
    await asyncio.sleep(0)
    await channel.close()
    return await outcome(waiting, NEVER)


@on_both
@each_kind
async def test_a_call_on_a_closed_channel_is_refused(side: Side, kind: str) -> Any:
    channel = await side.channel()
    before: Any = getattr(channel, kind)(path(kind))
    await channel.close()
    after: Any = getattr(channel, kind)(path(kind))
    return attempted(before, b"a"), attempted(after, b"a")


@on_both
@each_kind
async def test_an_intercepted_call_on_a_closed_channel_is_refused(
    side: Side, kind: str
) -> Any:
    class Passing(
        grpc.aio.UnaryUnaryClientInterceptor,
    ):
        async def intercept_unary_unary(self, go: Any, details: Any, it: Any) -> Any:
            return await go(details, it)

    channel = await side.open(interceptors=[Passing()])
    await channel.close()
    method: Any = getattr(channel, kind)(path(kind))
    call = attempted(method, b"a" if kind.startswith("unary") else iter([b"a"]))
    if isinstance(call, Exception):
        return call
    return (await answered(call, kind))[-1]


@on_both
async def test_close_may_be_called_again(side: Side) -> Any:
    channel = await side.channel()
    await channel.close()
    await channel.close()
    await asyncio.gather(channel.close(), channel.close(1), channel.close(0))
    return channel.get_state()


@on_both
@pytest.mark.parametrize("grace", [-1, "1", -0.001])
async def test_a_grace_that_is_none_is_refused(side: Side, grace: Any) -> Any:
    channel = await side.channel()
    error = await outcome(channel.close(grace))
    return type(error).__name__, channel.get_state() is READY, side.is_ready


@on_both
@each_kind
@pytest.mark.parametrize("grace", [None, 0.03])
async def test_close_cancels_what_the_server_works_at(
    side: Side, kind: str, grace: float | None
) -> Any:
    channel = await side.channel()
    call = await side.begin(kind, sending="write", do="hang")
    waiting = asyncio.create_task(answered(call, kind))
    await side.at_work()
    await channel.close(grace)
    seen = call.done(), call.cancelled(), await waiting, await end_of(call)
    return seen, await comes_true(lambda: "released" in side.script.events)


@on_both
@each_kind
async def test_close_with_grace_lets_calls_end(side: Side, kind: str) -> Any:
    channel = await side.channel()
    call = await side.begin(kind, do="hold")
    waiting = asyncio.create_task(answered(call, kind))
    # A call that has not been sent has no grace: docs/differences.md.
    await side.at_work("holds")
    closing = asyncio.create_task(_awaited(channel.close(5)))
    await asyncio.sleep(0)
    side.script.let_go.set()
    await closing
    return await waiting, await call.code()


@on_both
@each_kind
async def test_close_cancels_what_waits_for_a_connection(side: Side, kind: str) -> Any:
    channel = side.insecure("127.0.0.1:1")
    call = await side.begin(kind, sending="write", on=channel, wait_for_ready=True)
    waiting = asyncio.create_task(answered(call, kind))
    await eventually(lambda: channel.get_state() is FAILURE)
    await channel.close()
    return call.done(), call.cancelled(), await waiting, await call.code()


@on_both
@each_kind
@when_ready
async def test_a_call_during_a_graceful_close_is_refused(side: Side, kind: str) -> Any:
    channel = await side.channel()
    running = await side.begin("unary_unary", do="hold")
    await side.at_work("holds")
    closing = asyncio.create_task(_awaited(channel.close(2)))
    await asyncio.sleep(0)
    method: Any = getattr(channel, kind)(path(kind))
    refused = attempted(method, b"a")
    side.script.let_go.set()
    await closing
    return type(refused).__name__, await running


@on_both
@each_kind
async def test_a_block_closes_its_channel(side: Side, kind: str) -> Any:
    async with side.insecure() as channel:
        same = await channel.__aenter__() is channel
        seen = await answered(await side.begin(kind, on=channel), kind)
    return same, seen, channel.get_state()


@on_both
async def test_an_error_leaves_a_block(side: Side) -> Any:
    try:
        async with side.insecure() as channel:
            raise LookupError("in the block")
    except LookupError as error:
        return error, channel.get_state()


@on_both
@once
async def test_a_call_keeps_its_stub_and_a_stub_its_channel(side: Side) -> Any:
    seen = []
    for kind in KINDS:
        make = getattr(side.library.insecure_channel(side.address), kind)
        method = make(path(kind))
        call = method(b"a" if kind.startswith("unary") else iter([b"a"]))
        gc.collect()
        seen.append(await answered(call, kind))
        del make, method, call
    gc.collect()  # the channels, which nobody closes
    return seen


@on_both
@each_kind
async def test_a_channel_makes_what_a_stub_wants(side: Side, kind: str) -> Any:
    channel = await side.channel()
    make: Any = getattr(channel, kind)
    named = {
        "unary_unary": grpc.aio.UnaryUnaryMultiCallable,
        "unary_stream": grpc.aio.UnaryStreamMultiCallable,
        "stream_unary": grpc.aio.StreamUnaryMultiCallable,
        "stream_stream": grpc.aio.StreamStreamMultiCallable,
    }
    made = [
        make(path(kind)),
        make(path(kind), None, None),
        make(path(kind), request_serializer=None, response_deserializer=None),
        make(path(kind), _registered_method=True),
        make(path(kind), None, None, _registered_method=None),
        make(path(kind).encode()),
    ]
    request = b"a" if kind.startswith("unary") else [b"a"]
    is_of = [isinstance(method, cls) for method in made for cls in named.values()]
    return is_of, [await answered(method(request), kind) for method in made]


@on_both
@each_kind
async def test_what_a_stub_may_not_ask_for(side: Side, kind: str) -> Any:
    make: Any = getattr(await side.channel(), kind)
    tried = [make, lambda: make(7), lambda: make(path(kind), colour="red")]
    return [type(attempted(attempt)).__name__ for attempt in tried]


@on_both
@once
async def test_a_channel_is_one(side: Side) -> Any:
    channel = side.insecure()
    return [
        isinstance(channel, grpc.aio.Channel),
        isinstance(channel, grpc.Channel),
        [callable(getattr(channel, name)) for name in (*KINDS, "close", "get_state")],
        channel == channel,
        {channel: 1}[channel],
    ]


LOOPS = """
import asyncio, importlib, sys, warnings
warnings.simplefilter("ignore")
library, address, what = importlib.import_module(sys.argv[1]), *sys.argv[2:]

async def call(channel):
    return await channel.unary_unary("/conformance.Script/unary_unary")(b"a", timeout=9)

async def make_and_call():
    channel = library.insecure_channel(address)
    await call(channel)
    return channel

try:
    if what == "outside":
        channel = library.insecure_channel(address)
    else:
        channel = asyncio.run(make_and_call())
    print(asyncio.run(call(channel)))
except Exception as error:
    print(type(error).__name__, error)
"""


async def _in_a_process_of_its_own(side: Side, what: str) -> str:
    """For grpc's poller would tell a loop of later tests of those that are closed."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LOOPS, side.name, side.address, what),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await child.communicate()
    return said.decode().strip().split(": ")[0]


@on_both
@once
async def test_a_channel_made_outside_of_a_loop_is_used_in_one(side: Side) -> Any:
    said = await _in_a_process_of_its_own(side, "outside")
    return said if said.startswith("b") else said.split()[0]


@on_both
@once
async def test_use_from_a_second_loop_is_a_clear_error(side: Side) -> Any:
    said = await _in_a_process_of_its_own(side, "second")
    return said.split()[0], "this channel belongs to another event loop" in said


@on_both
@once
@pytest.mark.parametrize("given", ["options", "compression", "interceptors"])
async def test_nothing_may_be_given_as_none(side: Side, given: str) -> Any:
    channel = side.insecure(**{given: None})
    return await (await side.begin("unary_unary", on=channel))


@on_both
@once
async def test_arguments_may_go_by_position(side: Side) -> Any:
    channel = side.library.insecure_channel(
        side.address, (("grpc.primary_user_agent", "me"),), grpc.Compression.Gzip, []
    )
    async with channel:
        return await (await side.begin("unary_unary", on=channel))


TARGETS = {
    "plain": "{address}",
    "ipv4": "ipv4:{address}",
    "dns": "dns:///{address}",
    "dns without slashes": "dns:{address}",
    "a name": "localhost:{port}",
    "dns of a name": "dns:///localhost:{port}",
}


@on_both
@once
@pytest.mark.parametrize("form", TARGETS)
async def test_a_target_is_written_in_many_ways(side: Side, form: str) -> Any:
    port = side.address.rpartition(":")[2]
    channel = side.insecure(TARGETS[form].format(address=side.address, port=port))
    return await outcome(
        await side.begin("unary_unary", on=channel, timeout=5, wait_for_ready=True)
    )


@on_both
@once
async def test_a_unix_socket_is_a_target(side: Side, tmp_path: Any) -> Any:
    server, address = grpc.aio.server(), f"unix:{tmp_path}/socket"
    async with hosting(side.script.methods(), server=server, at=address):
        channel = side.insecure(address)
        seen = await outcome(await side.begin("unary_unary", on=channel, timeout=5))
        await channel.close()
    return seen


@on_both
@once
@each_kind
async def test_a_name_that_nobody_has_is_unavailable(side: Side, kind: str) -> Any:
    channel = side.insecure("dns:///no-such-name.invalid:1")
    call = await side.begin(kind, sending="write", on=channel, timeout=9)
    (error,) = await answered(call, kind)
    return type(error).__mro__[-4].__name__, error.code(), await call.code()
