"""Half a minute of the soak: what a channel holds is flat while its servers break."""

import asyncio
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
async def test_what_a_channel_holds_stays_flat() -> None:
    soak = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.soak", "--minutes", "0.4", "--seed", "3"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await soak.communicate()
    assert soak.returncode == 0, said.decode()
    assert "round   2" in said.decode()
