"""Makes a plan smaller as long as the same promise is broken: fewer of everything.

Faults, calls and servers are taken out in halves, quarters and at last one by one, and
settings set back to what they are without a word.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.worlds.invariants import broken
from tests.worlds.plan import Plan
from tests.worlds.world import World

T = TypeVar("T")
MOST_WORLDS = 300  # that one shrinking runs


def breaches(plan: Plan) -> list[tuple[str, str]]:
    world = World(plan)
    world.run()
    return broken(world)


class Shrinking:
    """Of one plan, which breaks the promise of that name."""

    def __init__(self, plan: Plan, name: str, most: int = MOST_WORLDS) -> None:
        self.plan = plan
        self.runs = 0
        self._name = name
        self._most = most

    def run(self) -> Plan:
        before = None
        while before != self.plan and self.runs < self._most:
            before = self.plan
            self._fewer(self.plan.faults, lambda some: self._with(faults=some))
            self._fewer(self.plan.calls, lambda some: self._with(calls=some))
            self._fewer(self.plan.settings, lambda some: self._with(settings=some))
            self._fewer_servers()
            self._try(replace(self.plan, closes=None))
            self._try(replace(self.plan, intercepts=False))
            self._shorter()
        return self.plan

    def _with(self, **parts: object) -> Plan:
        return replace(self.plan, **parts)  # type: ignore[arg-type]

    def _try(self, plan: Plan) -> bool:
        if plan == self.plan or self.runs >= self._most:
            return False
        self.runs += 1
        if any(name == self._name for name, _ in breaches(plan)):
            self.plan = plan
            return True
        return False

    def _fewer(self, all_: Sequence[T], make: Callable[[tuple[T, ...]], Plan]) -> None:
        kept, size = tuple(all_), len(all_)
        while size >= 1:
            at = 0
            while at < len(kept):
                fewer = kept[:at] + kept[at + size :]
                if self._try(make(fewer)):
                    kept = fewer
                else:
                    at += size
            size //= 2

    def _fewer_servers(self) -> None:
        """The last ones, which no fault speaks of."""
        used = max((fault.server for fault in self.plan.faults), default=0)
        while len(self.plan.servers) > used + 1:
            if not self._try(replace(self.plan, servers=self.plan.servers[:-1])):
                return

    def _shorter(self) -> None:
        last = max(
            [call.at for call in self.plan.calls]
            + [fault.at for fault in self.plan.faults],
            default=0.0,
        )
        self._try(replace(self.plan, lasts=min(self.plan.lasts, last + 1.0)))
