"""Three tasks behind one address of nginx or haproxy, restarted one after the other."""

import asyncio
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import grpc

import lbclient
from benchmarks.faults.fleet import (
    HOST,
    NO_SHEDDING,
    Front,
    Tally,
    Task,
    drive,
    fleet,
    ours,
    theirs,
)
from benchmarks.faults.goaway import is_no_worse, lost_of
from benchmarks.faults.row import Result, Row
from benchmarks.harness.processes import PATIENCE
from tests.ports import free_ports

TASKS = 3
RATE = 50.0  # calls a second, of each client
LATENCY = 0.02  # seconds; of a call
HEALTH = ("/lbclient.v1.BackendHealth/", "/grpc.health.v1.Health/")

# By default nginx ends a connection by GOAWAY after 1,000 requests, whoever restarts.
NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000;
  upstream tasks {{ {servers} keepalive 16; keepalive_requests 1000000; }}
  server {{
    listen {place} http2;
    grpc_next_upstream error timeout non_idempotent;
    {denied}
    location / {{ grpc_pass grpc://tasks; }}
  }}
}}
"""
HAPROXY = """
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  retries 3
  option redispatch
  retry-on conn-failure empty-response
frontend front
  bind {place} proto h2
  {denied}
  default_backend tasks
backend tasks
  balance roundrobin
  {servers}
"""


def words_of(kind: str, place: str, ports: list[int], routed: bool, at: str) -> str:
    """A configuration; without `routed` the health services are not found."""
    addresses = [f"{HOST}:{port}" for port in ports]
    if kind == "nginx":
        denied = [f"location {path} {{ return 404; }}" for path in HEALTH]
        return NGINX.format(
            folder=at,
            place=place,
            servers=" ".join(f"server {each} max_fails=0;" for each in addresses),
            denied="" if routed else " ".join(denied),
        )
    denied = [
        f"http-request deny deny_status 404 if {{ path_beg {p} }}" for p in HEALTH
    ]
    return HAPROXY.format(
        place=place,
        servers="\n  ".join(
            f"server t{n} {each} proto h2" for n, each in enumerate(addresses)
        ),
        denied="" if routed else "\n  ".join(denied),
    )


def program(kind: str) -> str | None:
    return shutil.which(kind, path="/usr/sbin:/usr/local/sbin:/usr/bin")


@asynccontextmanager
async def proxy(kind: str, ports: list[int], routed: bool) -> AsyncIterator[Front]:
    (port,) = free_ports(1)
    found = program(kind)
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "conf")
        _write(file, words_of(kind, f"{HOST}:{port}", ports, routed, folder))
        flags = (
            ["-p", folder, "-c", str(file)] if kind == "nginx" else ["-f", str(file)]
        )
        process = await asyncio.create_subprocess_exec(
            found, *flags, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(PATIENCE):
                await _listening(port)
            yield Front(f"{HOST}:{port}")
        finally:
            process.terminate()
            await process.wait()


async def _listening(port: int) -> None:
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.close()
            return
        await asyncio.sleep(0.05)


def _write(file: Path, words: str) -> None:
    file.write_text(words)


class Seen(NamedTuple):
    """Of one front: the calls of both clients; for how long ours had no ready backend,
    and for how long a task was restarted, in seconds; how many tasks `statistics()`
    said that it fronts; the reasons for each state; the least share of calls that a
    task got once all had been restarted."""

    ours: Tally
    theirs: Tally
    out: float
    restarting: float
    fronts: int
    states: Counter[str]
    least_share: float


async def restart(task: Task) -> None:
    task.signal(signal.SIGTERM)
    await task.wait()
    await task.start(latency=LATENCY)


async def roll(kind: str, routed: bool, seconds: float) -> Seen:
    """Restarts each task, with `seconds` of load before, between and after."""
    async with fleet(TASKS, "ours", NO_SHEDDING, latency=LATENCY) as tasks:
        ports = [task.port for task in tasks]
        async with (
            proxy(kind, ports, routed) as front,
            ours([front]) as mine,
            theirs([front]) as plain,
        ):
            await asyncio.wait_for(mine.channel_ready(), PATIENCE)
            over = asyncio.Event()
            states = Counter[str]()
            watching = asyncio.create_task(watch(mine, states, over))
            jobs = [
                asyncio.create_task(load_until(channel, over))
                for channel in (mine, plain)
            ]
            await asyncio.sleep(seconds)
            restarting = 0.0
            for task in tasks:
                begun_at = monotonic()
                await restart(task)
                restarting += monotonic() - begun_at
                await asyncio.sleep(seconds)
            restarted_at = monotonic()
            await more_calls(mine, round(RATE * seconds))
            (backend,) = mine.statistics().backends
            over.set()
            our_calls, their_calls = await asyncio.gather(*jobs)
            out = await watching
    late = our_calls.since(restarted_at).by_port()
    shares = [late[str(port)] / max(1, late.total()) for port in ports]
    return Seen(
        our_calls, their_calls, out, restarting, backend.fronts, states, min(shares)
    )


async def more_calls(channel: lbclient.Channel, count: int) -> None:
    """Waits until so many more calls have ended."""
    wanted = sum(channel.statistics().calls.values()) + count
    async with asyncio.timeout(PATIENCE):
        while True:
            if sum(channel.statistics().calls.values()) >= wanted:
                return
            await asyncio.sleep(0.02)


async def roll_stock(kind: str, seconds: float) -> Tally:
    """The control: a rollout of plain grpc.aio servers, beneath plain grpc.aio."""
    async with fleet(TASKS, "stock", latency=LATENCY) as tasks:
        ports = [task.port for task in tasks]
        async with proxy(kind, ports, routed=True) as front, theirs([front]) as plain:
            await asyncio.wait_for(plain.channel_ready(), PATIENCE)
            over = asyncio.Event()
            job = asyncio.create_task(load_until(plain, over))
            await asyncio.sleep(seconds)
            for task in tasks:
                await restart(task)
                await asyncio.sleep(seconds)
            over.set()
            return await job


async def load_until(channel: grpc.aio.Channel, over: asyncio.Event) -> Tally:
    tally = Tally()
    while not over.is_set():
        tally += await drive(channel, RATE, 0.5)
    return tally


async def watch(
    channel: lbclient.Channel, states: Counter[str], over: asyncio.Event
) -> float:
    """Counts what is seen; returns for how long there was no ready backend."""
    out, before = 0.0, monotonic()
    while not over.is_set():
        (backend,) = channel.statistics().backends
        states[f"{backend.state}: {backend.reason}"] += 1
        now = monotonic()
        if backend.state != "ready":
            out += now - before
        before = now
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await over.wait()
    return out


async def run(seconds: float) -> list[Row]:
    rows = []
    for kind in ("nginx", "haproxy"):
        if program(kind) is None:
            print(f"# {kind} is not installed: left out")
            continue
        control = await roll_stock(kind, seconds / 5)
        for routed in (True, False):
            seen = await roll(kind, routed, seconds / 5)
            path = "health path routed" if routed else "health path not routed"
            said = f"fronts {seen.fronts} tasks; not ready for {seen.out:.1f} s"
            plain = seen.theirs
            said += f"; grpc.aio on our tasks: {len(plain.failed())} of {len(plain)}"
            for ending, count in lost_of(seen.ours.by_ending()).items():
                said += f"; {count} {ending}"
            lost = len(seen.ours.failed())
            is_kept = is_no_worse(seen.ours.by_ending(), control.by_ending())
            rows.append(
                Row(
                    f"three tasks behind {kind}, restarted one by one; {path}",
                    "no call lost but by crossing GOAWAY, and no more than by grpc.aio"
                    " with its own servers, but by chance; the address is not out",
                    Result(len(seen.ours), lost, said=said),
                    Result(len(control), len(control.failed())),
                    holds=is_kept and seen.out < 1.0,
                )
            )
    return rows
