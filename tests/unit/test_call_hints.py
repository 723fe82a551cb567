"""What a picker may know of a call, and the keys that are set around calls."""

import asyncio

import pytest

from lbclient.core.call_hints import (
    LONGEST_KEY,
    MOST_KEYS,
    CallHints,
    KeysAndCost,
    current,
    key,
)
from lbclient.core.errors import ConfigError
from lbclient.core.routing.keyed_picks import PickerForCall, sees_calls
from lbclient.pickers import PICKERS
from lbclient.testing import FakeNode, fake_nodes


def test_keys_are_those_of_the_innermost_block() -> None:
    assert current() is None
    with key("session-42", "tenant-7", cost=3):
        assert current() == KeysAndCost(("session-42", "tenant-7"), 3.0)
        with key("session-43"):
            assert current() == KeysAndCost(("session-43",), 1.0)
        assert current() == KeysAndCost(("session-42", "tenant-7"), 3.0)
    assert current() is None


async def test_tasks_that_start_in_the_block_have_its_keys() -> None:
    async def found() -> KeysAndCost | None:
        await asyncio.sleep(0)
        return current()

    with key("session-42"):
        task = asyncio.create_task(found())
    assert await task == KeysAndCost(("session-42",), 1.0)
    assert await found() is None


@pytest.mark.parametrize(
    ("keys", "cost", "words"),
    [
        ((), 1.0, "key = '0 keys': want 1 to 256 keys"),
        (("",), 1.0, "key = '': want text of 1 to 1000 characters"),
        ((42,), 1.0, "key = 42: want text of 1 to 1000 characters"),
        (("a" * (LONGEST_KEY + 1),), 1.0, "want text of 1 to 1000 characters"),
        (("a",) * (MOST_KEYS + 1), 1.0, "key = '257 keys': want 1 to 256 keys"),
        (("a",), 0.0, "cost = 0.0: want a number above 0"),
        (("a",), float("nan"), "cost = nan: want a number above 0"),
        (("a",), "much", "cost = 'much': want a number above 0"),
    ],
)
def test_what_is_no_key_or_cost_is_refused(
    keys: "tuple[str, ...]", cost: float, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        key(*keys, cost=cost)
    assert words in str(caught.value)


class Telling:
    """Tells what it was asked for, and picks the first node."""

    def __init__(self) -> None:
        self.asked: list[CallHints] = []

    def pick_for(
        self, call: CallHints, ready: tuple[FakeNode, ...], now: float
    ) -> FakeNode:
        self.asked.append(call)
        return ready[0]

    def weights(self, ready: tuple[FakeNode, ...], now: float) -> list[float]:
        return [1.0] * len(ready)


def test_a_picker_for_one_call_is_asked_for_that_call() -> None:
    nodes, telling, call = fake_nodes(3), Telling(), CallHints("/a.A/A", ("k",))
    picker = PickerForCall(telling, call)
    assert picker.pick(nodes, 0.0) is nodes[0]
    assert telling.asked == [call]
    assert picker.weights(nodes, 0.0) == [1.0, 1.0, 1.0]
    assert "for /a.A/A>" in repr(picker)


def test_no_picker_sees_calls_that_has_no_use_for_them() -> None:
    assert sees_calls(Telling())
    assert not sees_calls(PICKERS["weighted_least_loaded"])
