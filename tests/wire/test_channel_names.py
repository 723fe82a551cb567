"""Channels that have settings of their own, by the target or by the name."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import lbclient


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a text into the file that channels read."""

    def write(text: str) -> Path:
        path = tmp_path / "lb.toml"
        path.write_text(text)
        monkeypatch.setenv("LBCLIENT_CONFIG", str(path))
        return path

    return write


async def test_a_channel_takes_the_table_of_its_target(
    start: Callable[..., Awaitable[Any]], settings: Callable[[str], Path]
) -> None:
    tasks = [await start(lbclient.server) for _ in range(3)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    other = f"{target},127.0.0.1:1"
    settings(f"[channel]\nsubset_size = 2\n[channel.'{target}']\nsubset_size = 1\n")
    async with (
        lbclient.insecure_channel(target) as one,
        lbclient.insecure_channel(other) as two,
        lbclient.insecure_channel(target, config=lbclient.ChannelConfig()) as three,
    ):
        for channel, size in ((one, 1), (two, 2), (three, 3)):
            await channel.channel_ready()
            assert channel.statistics().subset_size == size
