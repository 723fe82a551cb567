"""Which backends a channel connects to, and that it says why."""

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

import lbclient
from lbclient.config import ChannelConfig
from lbclient.core.model import Endpoint, Endpoints
from lbclient.subsets import Rendezvous, subset

SIZE = 3
# However slow this machine is, nobody is replaced.
PATIENT = ChannelConfig(subset_size=SIZE, replace_after=60)

CONFIG_ERROR = "lbclient.core.errors.ConfigError"


class Told:
    """A resolver that says what it is told to say."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self._answers: asyncio.Queue[Endpoints] = asyncio.Queue()
        self.tell(*endpoints)

    def __repr__(self) -> str:
        return "told"

    def tell(self, *endpoints: Endpoint) -> None:
        self._answers.put_nowait(endpoints)

    async def watch(self) -> AsyncIterator[Endpoints]:
        while True:
            yield await self._answers.get()


def numbered(tasks: list[Any]) -> list[Endpoint]:
    return [Endpoint(task.address, task=n) for n, task in enumerate(tasks)]


def unnumbered(tasks: list[Any]) -> list[Endpoint]:
    return [Endpoint(task.address) for task in tasks]


def ready(channel: lbclient.Channel) -> set[str]:
    """Who is connected; of an earlier subset some may be, until the new one settles."""
    backends = channel.statistics().backends
    return {backend.address for backend in backends if backend.state == "ready"}


def logged(caplog: pytest.LogCaptureFixture, level: int, text: str = "") -> list[str]:
    """What follows `text` in the lines of this level that have it."""
    lines = [r.getMessage() for r in caplog.records if r.levelno == level]
    return [line.partition(text)[2] if text else line for line in lines if text in line]


@pytest.fixture
async def tasks(start: Any) -> list[Any]:
    return [await start(lbclient.server) for _ in range(12)]


async def test_clients_and_backends_with_numbers_make_the_channels_rocksteadier(
    tasks: list[Any], eventually: Any
) -> None:
    """The connections are counted at the servers, which have a watcher for each."""
    clients = range(8)
    wanted = [subset("rocksteadier", n, len(tasks), SIZE) for n in clients]
    async with AsyncExitStack() as stack:
        for n in clients:
            config = replace(PATIENT, task_index=n)
            channel = await stack.enter_async_context(
                lbclient.insecure_channel(Told(*numbered(tasks)), config=config)
            )
            channel.get_state(try_to_connect=True)
            ours = {tasks[backend].address for backend in wanted[n]}
            await eventually(lambda ours=ours, of=channel: ready(of) == ours)
            assert channel.statistics().subset == (
                f"rocksteadier as client {n} (task_index={n}) of 12 numbered backends"
            )
        counted = [task.server.statistics().watchers for task in tasks]
        planned = Counter(backend for each in wanted for backend in each)
        assert counted == [planned[n] for n in range(len(tasks))]


async def test_backends_without_numbers_make_it_rendezvous(
    tasks: list[Any], eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient.balancer")
    target = "ipv4:" + ",".join(task.address for task in tasks)
    config = replace(PATIENT, task_index=7, client_id="me")
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        order = Rendezvous("me")(tuple(sorted(unnumbered(tasks))))
        ours = {endpoint.address for endpoint in order[:SIZE]}
        await eventually(lambda: ready(channel) == ours)
        said = "rendezvous as client 'me': backends have no task numbers"
        assert channel.statistics().subset == said
    assert logged(caplog, logging.INFO, "subset is ") == [said]
    assert logged(caplog, logging.WARNING) == []


async def test_the_choice_follows_the_resolver_and_is_told_when_it_changes(
    tasks: list[Any], eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient.balancer")
    resolver = Told(*unnumbered(tasks))
    config = replace(PATIENT, task_index=7, client_id="me")
    async with lbclient.insecure_channel(resolver, config=config) as channel:
        seen = channel.statistics
        assert seen().subset == "", "nothing is chosen before the first use"
        channel.get_state(try_to_connect=True)
        await eventually(lambda: seen().subset.startswith("rendezvous"))
        for times in (2, 3):
            resolver.tell(*numbered(tasks))
            await eventually(lambda times=times: seen().resolver.updates == times)
        await eventually(lambda: seen().subset.startswith("rocksteadier"))
        ours = {tasks[n].address for n in subset("rocksteadier", 7, len(tasks), SIZE)}
        await eventually(lambda: ready(channel) >= ours)
        [first] = logged(caplog, logging.INFO, "subset is ")
        assert first.startswith("rendezvous")
        assert logged(caplog, logging.WARNING, "subset is ") == [seen().subset]


async def test_an_algorithm_by_name_goes_by_place_and_warns_once_of_churn(
    tasks: list[Any], eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    resolver = Told(*unnumbered(tasks))
    config = replace(PATIENT, subset="ringsteady", task_index=1)
    async with lbclient.insecure_channel(resolver, config=config) as channel:
        channel.get_state(try_to_connect=True)
        by_place = sorted(task.address for task in tasks)
        ours = {by_place[n] for n in subset("ringsteady", 1, len(tasks), SIZE)}
        await eventually(lambda: ready(channel) == ours)
        resolver.tell(*unnumbered(tasks[1:]))
        await eventually(
            lambda: "11 backends numbered by position" in channel.statistics().subset
        )
    (warned,) = logged(caplog, logging.WARNING)
    assert warned == (
        "told: backends are numbered by position: "
        "ringsteady as client 1 (task_index=1) of 12"
        " backends numbered by position: backends have no task numbers"
        "; each that comes or goes moves others"
    )


async def test_an_order_of_ones_own_is_obeyed(
    tasks: list[Any], eventually: Any
) -> None:
    class Backwards:
        def __call__(self, endpoints: Endpoints) -> Iterable[Endpoint]:
            return reversed(endpoints)

        def __repr__(self) -> str:
            return "the last ones first"

    resolver = Told(*unnumbered(tasks))
    config = replace(PATIENT, subset=Backwards())
    async with lbclient.insecure_channel(resolver, config=config) as channel:
        channel.get_state(try_to_connect=True)
        last = sorted(task.address for task in tasks)[-SIZE:]
        await eventually(lambda: ready(channel) == set(last))
        assert channel.statistics().subset == "the last ones first"


PROGRAM = """
import asyncio
import lbclient

class Two:
    async def watch(self):
        yield [lbclient.Endpoint(f"127.0.0.1:{n + 1}", task=n) for n in range(2)]
        await asyncio.sleep(60)

async def main():
    config = {config}
    async with lbclient.insecure_channel(Two(), config=config) as channel:
        channel.get_state(try_to_connect=True)
        while not channel.statistics().backends:
            await asyncio.sleep(0.01)
        print(channel.statistics().subset)

asyncio.run(main())
"""

READ_HERE = ("LBCLIENT_", "JOB_", "KUBERNETES_", "NOMAD_")


@pytest.mark.parametrize(
    ("config", "environ", "said"),
    [
        (
            "None",
            {"LBCLIENT_TASK_INDEX": "7"},
            "rocksteadier as client 7 (LBCLIENT_TASK_INDEX=7) of 2 numbered backends",
        ),
        (
            "lbclient.ChannelConfig(subset_size=1)",
            {"LBCLIENT_TASK_INDEX": "7"},
            "rocksteadier as client 7 (LBCLIENT_TASK_INDEX=7) of 2 numbered backends",
        ),
        (
            "None",
            {"LBCLIENT_SUBSET": "consistent", "JOB_COMPLETION_INDEX": "3"},
            "consistent as client 3 (JOB_COMPLETION_INDEX=3) of 2 numbered backends",
        ),
        (
            "lbclient.ChannelConfig(client_id='me')",
            {},
            "rendezvous as client 'me': the client has no task number",
        ),
        (
            "None",
            {"LBCLIENT_SUBSET": "ringsteady"},
            f"{CONFIG_ERROR}: task_index = None: want this client's number",
        ),
        (
            "lbclient.ChannelConfig()",
            {"LBCLIENT_TASK_INDEX": "-1"},
            f"{CONFIG_ERROR}: LBCLIENT_TASK_INDEX = '-1': want a whole",
        ),
    ],
)
async def test_a_process_finds_its_number_in_its_environment(
    config: str, environ: dict[str, str], said: str
) -> None:
    ours = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(READ_HERE)
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM.replace("{config}", config),
        env={**ours, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await child.communicate()
    assert output.decode().splitlines()[-1].startswith(said), output.decode()


async def test_whole_is_all_of_them_whatever_the_size(
    tasks: list[Any], eventually: Any
) -> None:
    config = ChannelConfig(subset="whole", subset_size=SIZE)
    async with lbclient.insecure_channel(
        Told(*unnumbered(tasks)), config=config
    ) as channel:
        await channel.channel_ready()
        await eventually(lambda: ready(channel) == {t.address for t in tasks})
        assert channel.statistics().subset_size == len(tasks)
