"""How the workers of a task share its `maximum_concurrent_rpcs`, on virtual time."""

import asyncio
from dataclasses import dataclass, field

import pytest

from lbclient.core.quotas.quota import INTERVAL
from lbclient.server.overload.task_places import TaskPlaces
from lbclient.server.workers.membership import Membership
from lbclient.server.workers.messages import UsageTold
from lbclient.server.workers.usage import TaskUsage


@dataclass
class Served:
    """A worker that is sent `wanted` requests, which stay; each second those that find
    no place come again."""

    member: Membership
    wanted: int = 0
    refused: int = 0
    taken: list[int] = field(default_factory=list)

    def follow(self, most: int) -> TaskPlaces:
        places = TaskPlaces(self.member, most, self.taken.append, lambda: self.refused)
        places.start()
        return places

    def serve(self) -> int:
        """The requests that it has."""
        active = min(self.wanted, self.taken[-1])
        self.refused += self.wanted - active
        return active


def workers(count: int) -> list[Served]:
    usage = TaskUsage(asyncio.get_running_loop().time)
    found = []
    for number in range(count):
        member = Membership(number + 1, 7, number, count)

        def tell(told: UsageTold, member: Membership = member) -> None:
            asyncio.ensure_future(usage.answer(member.number, told, member.hear_usage))

        member.tell_usage = tell
        found.append(Served(member))
    return found


async def serve(all_: list[Served], places: list[TaskPlaces], seconds: int) -> None:
    for _ in range(seconds):
        for one, own in zip(all_, places, strict=True):
            own.seen(one.serve())
        await asyncio.sleep(INTERVAL)


@pytest.mark.parametrize(("most", "count"), [(32, 8), (16, 4), (8, 2)])
async def test_workers_that_had_few_places_come_to_have_as_many_as_others(
    most: int, count: int
) -> None:
    all_ = workers(count)
    places = [one.follow(most) for one in all_]
    await asyncio.sleep(INTERVAL / 2)
    all_[0].wanted = most
    await serve(all_, places, 20)
    assert all_[0].taken[-1] >= 0.75 * most
    for one in all_:
        one.wanted = most
    await serve(all_, places, 20)
    assert [one.taken[-1] for one in all_] == [most // count] * count
    for each in places:
        each.stop()


async def test_places_are_taken_only_when_they_change() -> None:
    all_ = workers(2)
    places = [one.follow(8) for one in all_]
    await serve(all_, places, 5)
    assert [one.taken for one in all_] == [[4], [4]]
    for each in places:
        each.stop()
