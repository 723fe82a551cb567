"""When a watch of the Kubernetes API is doubted and opened again, to the second.

The API is a fake, for virtual time knows no sockets; tests/wire has a real one.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Self

import aiohttp
import pytest

from lbclient.resolvers import kubernetes
from lbclient.resolvers.kubernetes import DEBOUNCE, QUIET, Api, Kubernetes
from tests.wire.kubernetes_api import endpoint, endpoint_slice

MOMENT = 0.01


def now() -> float:
    return asyncio.get_running_loop().time()


def listing() -> bytes:
    some = endpoint_slice("search-a", endpoint("10.0.0.1"))
    return json.dumps({"metadata": {"resourceVersion": "1"}, "items": [some]}).encode()


def bookmark() -> bytes:
    event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "2"}}}
    return json.dumps(event).encode() + b"\n"


class Content:
    """The body of an answer, as it comes."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()
        self._error: Exception | None = None

    def put(self, part: bytes) -> None:
        self._parts.put_nowait(part)

    def fail(self, error: Exception) -> None:
        self._error = error
        self.put(b"")

    async def readany(self) -> bytes:
        part = await self._parts.get()
        if self._error is not None:
            raise self._error
        return part

    def read_nowait(self, _: int) -> bytes:
        return b""


class Response:
    status = 200
    headers: dict[str, str]
    closed = False

    def __init__(self) -> None:
        self.headers = {}
        self.content = Content()

    def close(self) -> None:
        self.closed = True
        self.content.fail(aiohttp.ClientConnectionError("Connection closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True


class Session:
    """The API. `watched_at` is when each watch was opened; `watch` is the last."""

    def __init__(self) -> None:
        self.watched_at: list[float] = []
        self.watch = Response()

    async def get(self, _: str, params: dict[str, str], **options: Any) -> Response:
        response = Response()
        if "watch" in params:
            self.watched_at.append(now())
            self.watch = response
        else:
            response.content.put(listing())
            response.content.put(b"")
        return response

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class Watched(Kubernetes):
    def __init__(self, account: Path) -> None:
        api = Api("http://api", account)
        super().__init__("search", "prod", "grpc", Random(7), api)
        self.session = Session()

    async def _session(self, api: Api) -> Any:
        return self.session


@pytest.fixture
async def watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Watched]:
    """A resolver whose watch was opened a moment ago."""

    async def here(_: str, work: Any, *arguments: Any, **options: Any) -> Any:
        return work(*arguments, **options)

    monkeypatch.setattr(kubernetes, "in_daemon_thread", here)
    (tmp_path / "token").write_text("secret")
    async with following(Watched(tmp_path)) as watched:
        await asyncio.sleep(MOMENT)
        assert len(watched.session.watched_at) == 1
        yield watched


@asynccontextmanager
async def following(watched: Watched) -> AsyncIterator[Watched]:
    async def follow() -> None:
        async for _ in watched.watch():
            pass

    task = asyncio.create_task(follow())
    yield watched
    task.cancel()
    await asyncio.wait((task,))


async def hint_often(watched: Watched, seconds: float) -> None:
    until = now() + seconds
    while now() < until - MOMENT / 2:
        watched.refresh()
        await asyncio.sleep(MOMENT)


async def test_a_hint_reopens_a_watch_that_was_quiet_for_five_seconds(
    watched: Watched,
) -> None:
    opened_at = watched.session.watched_at[0]
    await hint_often(watched, opened_at + QUIET - 2 * MOMENT - now())
    assert len(watched.session.watched_at) == 1
    await hint_often(watched, 5 * MOMENT)
    first, second = watched.session.watched_at
    assert second - first == pytest.approx(QUIET, abs=3 * MOMENT), "without a pause"


async def test_a_watch_that_has_just_spoken_is_not_doubted(watched: Watched) -> None:
    for _ in range(10):
        watched.session.watch.content.put(bookmark())
        await hint_often(watched, QUIET - 2 * DEBOUNCE)
    assert len(watched.session.watched_at) == 1
    await hint_often(watched, 5 * DEBOUNCE)
    assert len(watched.session.watched_at) == 2


async def test_a_quiet_watch_stays_open_as_long_as_nobody_doubts_it(
    watched: Watched,
) -> None:
    await asyncio.sleep(3600.0)
    assert len(watched.session.watched_at) == 1


async def test_after_a_doubt_a_watch_that_ends_is_opened_again_after_a_pause(
    watched: Watched,
) -> None:
    """Half a second to one and a half: clients that were cut off together spread."""
    await asyncio.sleep(QUIET)
    watched.refresh()
    await asyncio.sleep(MOMENT)
    assert len(watched.session.watched_at) == 2
    await asyncio.sleep(60.0)
    ended_at = now()
    watched.session.watch.content.put(b"")
    await asyncio.sleep(10.0)
    assert 0.5 <= watched.session.watched_at[2] - ended_at <= 1.5
    assert len(watched.session.watched_at) == 3
