"""Tests that hang, each in another way: test_time_limit.py runs them."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest


async def test_waits_for_what_never_happens() -> None:
    await asyncio.Event().wait()


def test_waits_for_a_thread() -> None:
    threading.Event().wait()


def test_never_ends() -> None:
    while True:
        pass


@pytest.fixture
async def without_end() -> AsyncIterator[None]:
    yield
    await asyncio.Event().wait()


async def test_has_a_fixture_that_never_ends(without_end: None) -> None:
    pass


def test_is_quick() -> None:
    pass
