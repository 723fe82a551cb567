"""Why a backend was picked: the picker's rule, and beside each pick what it went by."""

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import lbclient
from lbclient.admin import shape
from lbclient.admin.snapshot import of_channel, rule_of
from lbclient.cli.operate.inspect import channel as told
from lbclient.core.call_hints import CallHints
from lbclient.core.routing.spillover import Spillover
from lbclient.pickers import PICKERS, RoundRobin
from tests.loop.fleet import Fleet

METHOD = "/search.Search/Search"


def looked_at(fleet: Fleet) -> dict[str, Any]:
    page = of_channel(1, fleet.channel, room=9)
    assert shape.flaw(page, shape.CHANNEL) == ""
    return page


def reason_of_last(fleet: Fleet) -> str:
    because: str = looked_at(fleet)["picks"][0]["because"]
    return because


@pytest.mark.parametrize("name", PICKERS)
async def test_the_rule_is_shown_above_the_picks(name: str) -> None:
    async with Fleet(3, picker=name) as fleet:
        fleet.balancer.picks.keep()
        await fleet.call()
        page = looked_at(fleet)
        lines = list(told(page, None, 0.0))
    assert page["rule"] == vars(PICKERS[name])["rule"]
    assert re.fullmatch(r"[A-Z][^.]+\.", page["rule"]), "a sentence"
    text = " ".join(" ".join(lines).split())
    assert f"rule of picks {page['rule']} picked" in text


async def test_a_page_without_a_rule_is_shown() -> None:
    async with Fleet(3) as fleet:
        fleet.balancer.picks.keep()
        await fleet.call()
        text = "\n".join(told(looked_at(fleet) | {"rule": ""}, None, 0.0))
    assert "rule of picks" not in text
    assert "\npicked" in text


async def test_a_pick_of_another_kind_says_which() -> None:
    async with Fleet(3, picker="consistent_hashing") as fleet:
        balancer = fleet.balancer
        balancer.picks.keep()
        await fleet.call()
        assert re.match(r"0 in flight", reason_of_last(fleet))
        with lbclient.key("session-42"):
            await fleet.call()
        assert re.match(r"a call with a key; 0 in flight", reason_of_last(fleet))
        balancer.pick(balancer.clock(), {}, CallHints(METHOD, is_resumable=True))
        start = "a resumable stream: to the backend with the fewest streams"
        assert reason_of_last(fleet).startswith(start)


async def test_a_pick_in_place_of_a_picker_that_raised_says_so() -> None:
    class Broken(RoundRobin):
        def pick(self, ready: Any, now: float) -> Any:
            raise LookupError("mine")

    async with Fleet(3, picker=Broken) as fleet:
        fleet.balancer.picks.keep()
        await fleet.call()
        assert reason_of_last(fleet) == "in turn, as the picker raised an error"


async def test_a_pick_in_a_zone_is_compared_with_those_that_it_was_among() -> None:
    """With all zones it looked as if a busier backend had been picked."""
    async with Fleet(4) as fleet:
        balancer = fleet.balancer
        await fleet.call()
        nodes = tuple(balancer.pool.nodes.values())
        for number, node in enumerate(nodes):
            zone = "home" if number < 2 else "away"
            node.endpoint = replace(node.endpoint, zone=zone)
        nodes[3].load.begin()
        picker = Spillover(RoundRobin, "home", Random(7))
        picks = balancer.picks
        picks.keep()
        for ready, told in (
            (nodes, "0 in flight (0 to 0 on the 2 ready of its zone and priority)"),
            (nodes[1:], "the only one of its zone and priority that is ready"),
        ):
            node = picker.pick(ready, balancer.clock())
            picks.picked(node, ready, balancer.clock(), "", picker)
            assert reason_of_last(fleet).startswith(told)


def test_a_picker_of_a_user_may_have_a_rule_or_a_docstring() -> None:
    class SameZone(RoundRobin):
        """Round robin in our own zone.

        And more.
        """

    class Nearest(SameZone):
        rule = "A call goes to the nearest."

    class Quiet(Nearest):
        pass

    assert rule_of(SameZone) == "Round robin in our own zone."
    assert rule_of(Nearest) == rule_of(Quiet) == "A call goes to the nearest."
    assert rule_of(type("Silent", (), {})) == ""
