"""The queue in gRPC's core: what it hands over, what waits there, and for how long."""

from collections.abc import Callable
from math import inf
from time import thread_time

from lbclient.core.criticality import Criticality
from lbclient.core.overload.deadlines import Deadlines
from lbclient.core.overload.queue_delay import QueueDelay
from lbclient.server.meters.machine_speed import OF_PROCESS
from lbclient.server.overload.intake import (
    BEHIND,
    DROPPING,
    DROPPING_BESIDE_LONG,
    EACH_TURN,
    READY,
    Bounds,
    Intake,
)
from lbclient.server.overload.unseen import Unseen

# Requests that were taken and are not served yet, where none wait in the core: as many
# come in one turn of a loop that keeps up.
FEW = 64
# Of those that the core keeps, so many may wait where it is known what to end instead.
ROOM = 0.5
# Seconds of the event loop that refusing one request takes, with an answer and without.
# They are those of a machine of speed 1, see `MachineSpeed`, which scales them: 0.084
# and 0.022 ms were measured at a speed of 1.37 by `python -m benchmarks.overload`.
REFUSAL_SECONDS, DROP_SECONDS = 0.000115, 0.00003
# Of what serving one request takes: where dropping one takes as much, one is dropped
# for each that is served. The less it takes, the more are, by the square. With 0.5 the
# goodput of waiting handlers at five times was below that of grpc.aio.
DEAR_DROP = 0.35


class CoreQueue:
    """Counts the requests that wait in gRPC's core, and how long they wait. Owned by
    the gate, used on its loop's thread only."""

    def __init__(self, delay: QueueDelay | None = None) -> None:
        self.intake = Intake()
        self.unseen = Unseen()
        self.delay = QueueDelay() if delay is None else delay
        self.deadlines = Deadlines()  # of requests as they came to this task
        # As of the last sample. Those left the intake, to grpcio or for good.
        self._taken = self._left = self._dropped = self._refused = self._ended = 0
        self._never_refused = 0
        self._sampled_at = self._ran = 0.0
        self.core_ended_some = False  # since the sample before
        # Requests are dropped here by criticality, so that the core need not end any.
        self.drops_by_criticality = False
        self.drops_used_up = False  # requests whose customers' quotas are used up
        # Handlers keep the loop for long: who is in line for them is judged as load.
        self.has_long_handlers = False

    def count_by(self, read: Callable[[], int | None], most: float) -> None:
        """`read` says how many calls have begun; beyond `most` that wait some end."""
        self.unseen.count_by(read, most)

    def count(self, arrived: int) -> int | None:
        """How many requests gRPC's core began that did not arrive here; None:
        unknown."""
        return self.unseen.count(arrived + self.intake.dropped_at_stop)

    @property
    def ended(self) -> int:
        """Number of requests that were ended or dropped before a handler saw them."""
        return self.unseen.ended + self.intake.dropped_at_stop

    @property
    def typical_time(self) -> float:
        """Seconds that requests have until their deadline."""
        return self.deadlines.typical

    def has_room(self, criticality: Criticality, waiting: int) -> bool:
        """Whether one more may wait in Python; always, but in a flood."""
        return self.delay.has_room(criticality, waiting, self.typical_time)

    def waited(self, here: float, left: float | None) -> float:
        """Seconds since a request arrived that was taken `here` seconds ago.

        It has `left` until its deadline, which is learned from.
        """
        waited = here + self.delay.seconds
        self.deadlines.observe(None if left is None else left + waited)
        return waited

    def sample(
        self,
        now: float,
        refused: int,
        is_prompt: bool = False,
        never_refused: int = 0,
        busy: float = 1.0,
        in_line: int = 0,
    ) -> None:
        """Ten times a second. `refused`: how many requests were, ever, and
        `never_refused`: how many could not be. `busy`: the loop, as a share of the
        time. `in_line`: how many that grpcio serves wait until their handlers may
        begin.

        `is_prompt`: the loop takes all that the core hands over in its next turn.
        """
        intake, unseen = self.intake, self.unseen
        counts = intake.taken, intake.asked, intake.was_behind()
        unseen.sample(now, *counts, is_prompt)
        # Beside many requests that have begun grpcio is slow to serve what was taken.
        held = len(intake) + in_line
        here = len(intake) if self.has_long_handlers else held
        waiting = unseen.waiting + here
        if not unseen.waiting and here < FEW:
            waiting = 0
        taken_now, self._taken = intake.taken - self._taken, intake.taken
        left = intake.taken - held
        left_now, self._left = left - self._left, left
        dropped_now, self._dropped = intake.dropped - self._dropped, intake.dropped
        refused_now, self._refused = refused - self._refused, refused
        never_refused_now, self._never_refused = (
            never_refused - self._never_refused,
            never_refused,
        )
        elapsed = now - self._sampled_at
        cost = REFUSAL_SECONDS / OF_PROCESS.factor
        if self.drops_by_criticality:
            cost = intake.drop_seconds or DROP_SECONDS / OF_PROCESS.factor
        ran_before, self._ran = self._ran, thread_time()
        self._sampled_at = now
        self.core_ended_some, self._ended = unseen.ended > self._ended, unseen.ended
        if elapsed > 0.0:
            self.delay.sample(
                elapsed,
                waiting=waiting,
                in_python=min(waiting, here),
                taken=taken_now,
                handed_on=left_now - dropped_now,
                let_in=max(0, left_now - refused_now),
                time=self.typical_time,
                core_bound=ROOM * unseen.most if self.drops_by_criticality else inf,
                core_capacity=unseen.most + BEHIND.most if unseen.most else inf,
                refusal_cpu=cost,
                loop_cpu=self._ran - ran_before,
                drops_by_criticality=self.drops_by_criticality,
                never_refused=never_refused_now,
                busy=busy,
            )
        if self.delay.is_limited:
            OF_PROCESS.start()  # some 2 ms, once
            is_dropping = self.drops_by_criticality or self.drops_used_up
            intake.keep_within(self._dropping() if is_dropping else BEHIND)
        elif not waiting:
            intake.keep_within(READY)

    def _dropping(self) -> Bounds:
        """The dearer it is to drop a request, the fewer are taken in a turn of the loop
        to be dropped. What that leaves the core ends, of whatever criticality."""
        if self.has_long_handlers:
            return DROPPING_BESIDE_LONG
        if not (dear := self.delay.refusing_costs / DEAR_DROP):
            return DROPPING
        ahead = min(DROPPING.ahead, int(EACH_TURN * (1.0 + dear**-2)))
        return DROPPING._replace(ahead=ahead)

    def __repr__(self) -> str:
        return f"<{self.unseen.waiting} wait, {self.delay!r}>"
