"""A client in a process of its own, for a network namespace.

What it is told: `client`, "ours" or "theirs" (plain grpc.aio); `target`, and how many
`backends` it stands for; `rate`, calls a second with a deadline of `timeout`; `held`,
calls without a deadline, all begun at the start; `settings` of a ChannelConfig;
`options` of the channel; `replaced_period`, `REPLACED_PERIOD` of `former_connections`.
Says "ready" when the first call was answered, or the held ones are on their way. Orders
are "tally", for all calls that have ended so far, and "states", for what `statistics()`
says.
"""

import asyncio
from typing import Any

import grpc

import lbclient
from benchmarks.faults.fleet import ROUND_ROBIN, Tally, send_one, states
from benchmarks.harness.load import until
from benchmarks.harness.processes import orders, say
from lbclient.client.backends import former_connections


def channel_of(told: dict[str, Any]) -> Any:
    options = [tuple(pair) for pair in told.get("options", ())]
    if told["client"] == "theirs":
        return grpc.aio.insecure_channel(
            told["target"], options=[*ROUND_ROBIN, *options]
        )
    replaced_period = told.get("replaced_period", former_connections.REPLACED_PERIOD)
    former_connections.REPLACED_PERIOD = replaced_period
    config = lbclient.ChannelConfig(**told.get("settings", {}))
    return lbclient.insecure_channel(told["target"], options=options, config=config)


async def call(told: dict[str, Any]) -> None:
    tally = Tally()
    async with channel_of(told) as channel:
        await channel.channel_ready()
        sent: set[asyncio.Task[None]] = set()

        def send(timeout: float | None) -> None:
            task = asyncio.create_task(send_one(channel, tally, timeout))
            sent.add(task)
            task.add_done_callback(sent.discard)

        async def load() -> None:
            while told.get("rate"):
                send(told["timeout"])
                await asyncio.sleep(1 / told["rate"])

        if isinstance(channel, lbclient.Channel):
            await until(lambda: states(channel).count(": ready:") == told["backends"])
        for _ in range(told.get("held", 0)):
            send(None)
        loading = asyncio.create_task(load())
        if told.get("rate"):
            await until(lambda: any(call.status == "OK" for call in tally))
        await asyncio.sleep(1.0)
        say("ready")
        async for [word] in orders():
            if word == "tally":
                say(tally)
            else:
                say(states(channel) if isinstance(channel, lbclient.Channel) else "")
        loading.cancel()
