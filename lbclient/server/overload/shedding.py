"""Ends requests without an answer, where to answer each refusal would take too long.

To refuse a request costs what grpcio takes to begin and end a call. A request that
nobody keeps gRPC's core ends, as it does with those that it has no room for, at a
quarter of that. So in a flood the server keeps none that it would refuse. What is ended
so is the least critical, also of those that wait, and it is not left to the core,
which does not know criticality.

Only first attempts that name a criticality are: of the others a refusal may say what
nothing else does, and health checks, which must be answered, name none.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from lbclient.core.criticality import Criticality
from lbclient.grpc_seam.intake import metadata_of
from lbclient.server.overload.core_queue import CoreQueue

# Refusals a second that are answered, at least: they take a twentieth of a core.
ANSWERED = 500.0
# Refusals for quotas, as well. They are counted apart: one customer's flood must not
# leave unanswered who is refused for the load, nor the others without a processor. So
# many are answered as tell a client of ours what to hold back.
ANSWERED_FOR_QUOTAS = 500.0
# Where handlers keep the loop for so long each, in seconds of CPU. Beside a neighbour
# that burns a core these took a seventh of one. Of handlers that take less, all are:
# among many of 1 ms and a few of 50 ms goodput was lower where some were not.
ANSWERED_BESIDE_LONG, LONG = 1000.0, 0.008

Metadata = Iterable[tuple[str, str | bytes]]


class Shedding:
    """Drops requests of a flood that the server would refuse, without an answer. Owned
    by the gate, used on its loop's thread only."""

    def __init__(
        self,
        core: CoreQueue,
        named: Callable[[Metadata], Criticality | None],
        lets_in: Callable[[Criticality], bool],
        count: Callable[[Metadata, Criticality], None],
        has_used_up: Callable[[Metadata, Criticality], bool],
        count_used_up: Callable[[Metadata, Criticality], None],
    ) -> None:
        """`named` reads what may be dropped, `lets_in` decides whether it is not, and
        `count` counts those that were; `has_used_up` and `count_used_up` do so by
        customers' quotas."""
        self._core = core
        self._named = named
        self._lets_in = lets_in
        self._count = count
        self._has_used_up = has_used_up
        self._count_used_up = count_used_up
        self.is_choosing = False  # whether signals let in who comes, as it comes
        self._answers = 0.0  # to those, until the next sample
        # Since the last sample: requests, and those of them that named a criticality.
        self._looked = self._asked = 0
        self._refused = self._used_up = 0  # as of the last sample
        self._sampled_at = 0.0
        self._is_sifted = False  # what waited as the flood began
        # Unless the loop gets one of gRPC's events a turn: then those of requests that
        # have begun would wait behind those that are dropped.
        self.is_possible = True

    def sample(
        self, now: float, refused: int, are_long: bool, each: float, used_up: int = 0
    ) -> None:
        """Ten times a second. `refused`: how many requests were, ever, but for those
        for quotas, which are `used_up`.

        `are_long`: handlers keep the loop for long, `each` for so many seconds. Then
        refusing takes little of their time, unless very many are refused.
        """
        core, intake = self._core, self._core.intake
        elapsed, self._sampled_at = now - self._sampled_at, now
        refused_now, self._refused = refused - self._refused, refused
        most = ANSWERED
        if are_long:
            most = ANSWERED_BESIDE_LONG if each >= LONG else inf
        is_dear = refused_now > most * elapsed
        is_flood = self.is_possible and self.is_flood(is_dear, are_long)
        used_up_now, self._used_up = used_up - self._used_up, used_up
        self._answers = ANSWERED_FOR_QUOTAS * elapsed
        is_of_quotas = self.is_possible and used_up_now > self._answers
        core.drops_used_up, core.has_long_handlers = is_of_quotas, are_long
        self.is_choosing = is_flood
        intake.drops = self._dropped_for if is_flood or is_of_quotas else None
        if not is_flood:
            intake.ranks.clear()
        core.drops_by_criticality = is_flood and 2 * self._asked > self._looked
        self._looked = self._asked = 0
        was_sifted = self._is_sifted
        self._is_sifted = is_flood and core.delay.is_limited
        if self._is_sifted and not was_sifted:
            # Nobody asked those that came before the flood was seen. They would be
            # served first, and too late.
            intake.sift()
            core.delay.emptied()

    def is_flood(self, is_dear: bool, are_long: bool) -> bool:
        """`is_dear`: more are refused than can be answered.

        Requests of `are_long` wait in line, by which they are refused, and not in the
        core.
        """
        core = self._core
        if are_long:
            return is_dear
        if core.core_ended_some:
            return True
        return core.delay.is_limited and (is_dear or self.is_choosing)

    def has_asked(self, metadata: Metadata) -> bool:
        """Whether a request that is served has been decided on before."""
        return self.is_choosing and self._named(metadata) is not None

    def _dropped_for(self, request: Any) -> Any:
        """Which request is dropped for one that has come; None: none is."""
        self._looked += 1
        metadata = metadata_of(request)
        criticality = self._named(metadata)
        if criticality is None:
            return None
        self._asked += 1
        if self._has_used_up(metadata, criticality):
            self._answers -= 1.0
            if self._answers < 0.0:
                self._count_used_up(metadata, criticality)
                return request
        if not self.is_choosing:
            return None
        ranks = self._core.intake.ranks
        dropped: Any = None
        if not self._lets_in(criticality):
            dropped, lower = ranks.first_below(criticality)
            if lower is None:
                self._count(metadata, criticality)
                return request
            self._count(metadata_of(dropped), lower)
        ranks.add(request, criticality)
        return dropped

    def __repr__(self) -> str:
        return f"<{self._asked} of {self._looked} asked>"
