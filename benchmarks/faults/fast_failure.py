"""One backend of five answers at once, and not with OK.

Whatever the status, and whoever serves, few calls meet it, those included that look
whether it is well again. And what must not happen: that a backend loses calls for a
status that all give, or that its keys bring, or when it is well again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic

import grpc

import lbclient
from benchmarks.faults.fleet import (
    SERVERS,
    Tally,
    Task,
    drive,
    fleet,
    ours,
    states,
    theirs,
)
from benchmarks.faults.row import Result, Row
from benchmarks.harness.load import until
from benchmarks.harness.processes import PATIENCE
from lbclient.pickers import PICKERS
from tests.ports import free_ports

BACKENDS = 5
RATE = 100.0  # calls/s
LATENCY = 0.1  # seconds
LONG = 20.0  # seconds; from there on the whole matrix is run
MOST = int(0.02 * RATE * LONG)  # calls; of a shorter run half: it fails from its start
SETTLE = 2.0  # seconds of calls until shares are compared
# The same for one of ours that had no calls. At a utilization of 1 % what it does
# beside its calls makes each of few look dear, so its share grows from a third.
RELEARN = 10.0
CLOSE = 0.2  # of a share

DEFAULT = "weighted_least_loaded"
UNREGISTERED = "service not registered"
HTTP_404 = "HTTP 404"
CHOSEN = (
    UNREGISTERED,
    HTTP_404,
    "UNIMPLEMENTED",
    "UNAUTHENTICATED",
    "NOT_FOUND",
    "CANCELLED",
    "INTERNAL",
    "RESOURCE_EXHAUSTED",
)
STATUSES = [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
REST = [status for status in STATUSES if status not in CHOSEN]
# So many channels at a time: with all pickers at once a machine of two cores is busy.
HALVES = (list(PICKERS)[::2], list(PICKERS)[1::2])

SHORT = (
    ("stock", UNREGISTERED, [DEFAULT]),
    ("stock", HTTP_404, [DEFAULT]),
    ("ours", "UNAUTHENTICATED", ["least_loaded", DEFAULT]),
    ("ours", "CANCELLED", ["prequal"]),
)


async def run(seconds: float) -> list[Row]:
    rows = []
    for kind, status, pickers in combinations(seconds):
        rows += await one_fails(kind, status, pickers, seconds)
    for kind in ("stock",) if seconds < LONG else ("stock", "ours"):
        rows.append(await all_are_alike(kind, 0.3, seconds))
        rows.append(await keys_differ(kind, 0.3, 0.9, seconds))
        rows.append(await keys_differ(kind, 0.1, 0.3, seconds))
        rows.append(await all_fail(kind, seconds))
        rows.append(await mended(kind, seconds))
    return rows


def combinations(seconds: float) -> list[tuple[str, str, list[str]]]:
    """Whose servers, which status, and the pickers that meet it at the same time."""
    if seconds < LONG:
        return list(SHORT)
    kinds = ("stock", "ours")
    matrix = [(k, s, half) for k in kinds for s in CHOSEN for half in HALVES]
    return matrix + [(kind, status, [DEFAULT]) for kind in kinds for status in REST]


@asynccontextmanager
async def backends(kind: str, status: str) -> AsyncIterator[list[Task]]:
    """Of which the first fails, so, from the first call on."""
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(fleet(BACKENDS, kind, latency=LATENCY))
        if status == HTTP_404:
            await tasks[0].close()
            tasks[0] = Task("404", free_ports(1)[0])
            stack.push_async_callback(tasks[0].close)
            await tasks[0].start()
        elif status == UNREGISTERED:
            await tasks[0].behave(registered=False)
        else:
            await tasks[0].behave(status=status)
        yield tasks


@asynccontextmanager
async def ready(tasks: list[Task], picker: str) -> AsyncIterator[lbclient.Channel]:
    async with ours(tasks, picker=picker) as channel:
        await channel.channel_ready()

        def are_ready() -> bool:
            return {each.state for each in channel.statistics().backends} == {"ready"}

        await until(are_ready, lambda: states(channel))
        yield channel


async def one_fails(
    kind: str, status: str, pickers: list[str], seconds: float
) -> list[Row]:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(backends(kind, status))
        channels = [
            await stack.enter_async_context(ready(tasks, picker)) for picker in pickers
        ]
        control = await stack.enter_async_context(theirs(tasks))
        await control.channel_ready()
        *here, there = await asyncio.gather(
            *(drive(channel, RATE, seconds) for channel in (*channels, control))
        )
        said = [ejected(channel) for channel in channels]
    plain = Result(len(there), len(there.failed()))
    most = MOST if seconds >= LONG else MOST // 2
    return [
        Row(
            f"1 of {BACKENDS} fails fast: {status} ({SERVERS[kind]})",
            f"at most {MOST} calls meet it in {LONG:.0f} s",
            Result(len(tally), len(tally.failed()), said=words),
            plain,
            holds=meetings(tally) <= most,
            variant=picker,
        )
        for picker, tally, words in zip(pickers, here, said, strict=True)
    ]


def meetings(tally: Tally) -> int:
    """Failed calls, but for those that only a busy machine makes fail: what was sent
    before the end of the one counted last, of which the client could not know, and what
    a server refused as it was overloaded."""
    count, known_at = 0, 0.0
    for call in sorted(tally.failed()):
        if call.sent_at >= known_at and not call.words.startswith("overloaded: "):
            count += 1
            known_at = call.sent_at + call.seconds
    return count


def ejected(channel: lbclient.Channel) -> str:
    return "; ".join(
        f"{backend.address} is ejected: {each.why}"
        for backend in channel.statistics().backends
        for each in backend.ejected
    )


async def shares(
    channel: lbclient.Channel, tasks: list[Task], seconds: float, settle: float = SETTLE
) -> tuple[list[float], int, int]:
    """Of each task of the calls, 1.0 is the mean; how many there were, and failed."""
    await drive(channel, RATE, settle)
    tally = await drive(channel, RATE, seconds)
    counts = [tally.by_port()[str(task.port)] for task in tasks]
    mean = len(tally) / len(tasks)
    return [count / mean for count in counts], len(tally), len(tally.failed())


async def balanced(
    name: str, promise: str, kind: str, seconds: float, *behaviours: dict[str, object]
) -> Row:
    """The first task does as the first behaviour says, the others as the last."""
    async with fleet(BACKENDS, kind) as tasks:
        first, rest = behaviours[0], behaviours[-1]
        await tasks[0].behave(**first)
        await asyncio.gather(*(task.behave(**rest) for task in tasks[1:]))
        async with ready(tasks, DEFAULT) as channel:
            told, calls, failed = await shares(channel, tasks, seconds)
            total = channel.statistics().ejections
    said = f"{total} ejections; shares {' '.join(f'{each:.2f}' for each in told)}"
    holds = not total and all(abs(each - 1.0) <= CLOSE for each in told)
    return Row(f"{name} ({SERVERS[kind]})", promise, Result(calls, failed, said=said),
               None, holds)  # fmt: skip


def not_found(share: float) -> dict[str, object]:
    return {"latency": LATENCY, "status": "NOT_FOUND", "share": share}


async def all_are_alike(kind: str, share: float, seconds: float) -> Row:
    name = f"all give NOT_FOUND to {share:.0%} of the calls"
    return await balanced(name, "equal shares", kind, seconds, not_found(share))


async def keys_differ(kind: str, usual: float, its: float, seconds: float) -> Row:
    name = f"NOT_FOUND to {its:.0%} of the calls by one, to {usual:.0%} by the others"
    promise = f"it keeps its share within {CLOSE:.0%}"
    return await balanced(
        name, promise, kind, seconds, not_found(its), not_found(usual)
    )


async def all_fail(kind: str, seconds: float) -> Row:
    fails: dict[str, object] = {"latency": 0.01, "status": "PERMISSION_DENIED"}
    name = "all answer every call with PERMISSION_DENIED"
    return await balanced(name, "none is singled out", kind, seconds, fails)


async def called_until(
    channel: lbclient.Channel, condition: Callable[[], bool]
) -> None:
    begun_at = monotonic()
    while not condition():
        await drive(channel, RATE, 0.5)
        assert monotonic() - begun_at < PATIENCE, "it never came true"


async def mended(kind: str, seconds: float) -> Row:
    """It fails until it is ejected, and is mended then."""
    async with (
        backends(kind, "UNIMPLEMENTED") as tasks,
        ready(tasks, DEFAULT) as channel,
    ):
        await called_until(channel, lambda: bool(ejected(channel)))
        said = ejected(channel)
        await tasks[0].behave(latency=LATENCY)
        mended_at = monotonic()
        await called_until(channel, lambda: not ejected(channel))
        took = monotonic() - mended_at
        settle = SETTLE if kind == "stock" else RELEARN
        told, calls, failed = await shares(channel, tasks, seconds, settle)
    return Row(
        f"1 of {BACKENDS} failed fast, and is well again ({SERVERS[kind]})",
        f"{settle:.0f} s later it has its share again, within {CLOSE:.0%}",
        Result(calls, failed, took, f"{said}; then its share was {told[0]:.2f}"),
        None,
        holds=not failed and abs(told[0] - 1.0) <= CLOSE,
    )
