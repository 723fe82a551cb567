"""Makes a plan smaller as long as the same promise is broken: fewer of everything.

Faults, calls and servers are taken out in halves, quarters and at last one by one, and
settings set back to what they are without a word.
"""

from dataclasses import replace
from typing import Any, Generic, TypeVar

from tests.worlds.arrivals import ArrivalPlan
from tests.worlds.either import AnyPlan, broken, run
from tests.worlds.plan import Plan

T = TypeVar("T")
P = TypeVar("P", bound=AnyPlan)
MOST_WORLDS = 300  # that one shrinking runs


def breaches(plan: AnyPlan) -> list[tuple[str, str]]:
    return broken(run(plan))


class Shrinking(Generic[P]):
    """Of one plan, which breaks the promise of that name."""

    def __init__(self, plan: P, name: str, most: int = MOST_WORLDS) -> None:
        self.plan = plan
        self.runs = 0
        self._name = name
        self._most = most

    def run(self) -> P:
        before = None
        while before != self.plan and self.runs < self._most:
            before = self.plan
            self._fewer("faults")
            if isinstance(self.plan, ArrivalPlan):
                self._fewer("traffic")
            else:
                self._fewer("calls")
                self._fewer("settings")
                self._fewer_servers(self.plan)
                self._try(self._with(closes=None))
                self._try(self._with(intercepts=False))
                self._shorter(self.plan)
        return self.plan

    def _with(self, **parts: Any) -> P:
        return replace(self.plan, **parts)

    def _try(self, plan: P) -> bool:
        if plan == self.plan or self.runs >= self._most:
            return False
        self.runs += 1
        if any(name == self._name for name, _ in breaches(plan)):
            self.plan = plan
            return True
        return False

    def _fewer(self, part: str) -> None:
        kept: tuple[Any, ...] = getattr(self.plan, part)
        size = len(kept)
        while size >= 1:
            at = 0
            while at < len(kept):
                fewer = kept[:at] + kept[at + size :]
                if self._try(self._with(**{part: fewer})):
                    kept = fewer
                else:
                    at += size
            size //= 2

    def _fewer_servers(self, plan: Plan) -> None:
        """The last ones, which no fault speaks of."""
        used = max((fault.server for fault in plan.faults), default=0)
        servers = plan.servers
        while len(servers) > used + 1:
            servers = servers[:-1]
            if not self._try(self._with(servers=servers)):
                return

    def _shorter(self, plan: Plan) -> None:
        last = max(
            [call.at for call in plan.calls] + [fault.at for fault in plan.faults],
            default=0.0,
        )
        self._try(self._with(lasts=min(plan.lasts, last + 1.0)))
