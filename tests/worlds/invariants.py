"""What lbclient promises, asked of a world that is over.

Each promise has a name, the place where docs say it, and a function that yields how it
was broken. `docs/reliability.md` lists them; a test keeps the two in step.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from lbclient.core.backends.task_workers import MOST_DIALS
from lbclient.core.retries.retry import ATTEMPTS, BURST, RATIO
from tests.worlds.caller import Seen
from tests.worlds.client_core import WINDOW
from tests.worlds.plan import HEALS, KINDS, MAY_REPEAT
from tests.worlds.workers import TaskMachine

if TYPE_CHECKING:
    from tests.worlds.world import World

Code = grpc.StatusCode
OF_RETRIES = "throttling-and-retries.md#retries-never-more-than-a-tenth"
KEEP_NAMES = ("resolver fails", "resolver is empty", "lose")
MOMENT = 0.02  # seconds that a turn of the loop may come late
WELL_AFTER = 24.0  # seconds after all was healed
MOST_SURE = 3  # backends of which each has one of 32 calls, however they are picked
MOST_CONNECTIONS = 4  # to one address at a time: its own, a LOOK's, and former ones


class Promise(NamedTuple):
    name: str
    place: str
    breaches: Callable[["World"], Iterator[str]]


PROMISES: list[Promise] = []
Breaches = Callable[["World"], Iterator[str]]


def promise(name: str, place: str) -> Callable[[Breaches], Breaches]:
    def keep(breaches: Breaches) -> Breaches:
        PROMISES.append(Promise(name, place, breaches))
        return breaches

    return keep


def broken(world: "World") -> list[tuple[str, str]]:
    """Every breach, as the name of a promise and words."""
    return world.broken + [
        (one.name, words) for one in PROMISES for words in one.breaches(world)
    ]


def calls(world: "World") -> list[Seen]:
    return world.caller.seen


def setting(world: "World", name: str, default: Any) -> Any:
    return dict(world.plan.settings).get(name, default)


def awake_at(world: "World", at: float) -> float:
    """When the client's loop runs next, at `at` or after it."""
    for begin, end in sorted(world.blocked):
        if begin <= at < end:
            at = end
    return at


@promise("every call ends", "concepts.md#the-way-of-a-call")
def _ends(world: "World") -> Iterator[str]:
    for seen in calls(world):
        if seen.over_at is None:
            yield f"{seen}: the channel was closed at {world.closed_at}"
        elif world.plan.intercepts and seen.how == "cancelled" and _is_read(seen):
            continue  # grpc.aio's own call, dropped half-read: its callbacks go with it
        elif seen.how not in ("raised", "dropped") and seen.done_at is None:
            yield f"{seen}: its done callback was not called"
        elif seen.how.endswith("not done"):
            yield str(seen)


def _is_read(seen: Seen) -> bool:
    return KINDS[seen.plan.method].endswith("stream")


@promise("no call outlives its deadline", "concepts.md#the-way-of-a-call")
def _in_time(world: "World") -> Iterator[str]:
    for seen in calls(world):
        if seen.plan.timeout is None or seen.done_at is None:
            continue
        due = awake_at(world, seen.began_at + seen.plan.timeout)
        if seen.done_at > due + MOMENT:
            yield f"{seen}: due at {due:.3f}, done at {seen.done_at:.3f}"


@promise("failures are AioRpcErrors", "differences.md")
def _errors(world: "World") -> Iterator[str]:
    for seen in calls(world):
        # As of grpc.aio's: the interceptors ask for the call when it is their turn.
        is_late = world.plan.intercepts and "Channel is closed" in seen.error
        if seen.how.startswith("raised") and not (is_late and world.closed_at):
            yield str(seen)


@promise("CancelledError is for who cancelled", "differences.md")
def _cancelled(world: "World") -> Iterator[str]:
    for seen in calls(world):
        if not seen.how.startswith("cancelled") or seen.gave_up_at is not None:
            continue
        if world.closed_at is None or (seen.over_at or 0.0) < world.closed_at:
            yield str(seen)


@promise("a status is true", "troubleshooting.md")
def _true(world: "World") -> Iterator[str]:
    kinds = {fault.kind for _, _, fault, _ in world.faults}
    allowed: dict[Any, Callable[[Seen], bool]] = {
        Code.NOT_FOUND: lambda seen: seen.plan.ends == "not-found",
        Code.UNKNOWN: lambda seen: seen.plan.ends == "raises",
        Code.INTERNAL: lambda seen: "fail" in kinds and "broken at" in seen.details,
        Code.CANCELLED: lambda seen: bool(kinds & {"drain", "stop"}),
        Code.UNAVAILABLE: lambda seen: True,
        Code.RESOURCE_EXHAUSTED: lambda seen: True,
        Code.DEADLINE_EXCEEDED: lambda seen: (
            seen.plan.timeout is not None
            and (seen.over_at or 0.0) >= seen.began_at + seen.plan.timeout - 1e-6
        ),
    }
    for seen in calls(world):
        if seen.how == "error" and (
            seen.code not in allowed or not allowed[seen.code](seen)
        ):
            yield f"{seen} at {seen.over_at}"


@promise("an answer is whole and its own", "differences.md")
def _whole(world: "World") -> Iterator[str]:
    for seen in calls(world):
        if not seen.how.startswith("answered"):
            continue
        plan, kind = seen.plan, KINDS[seen.plan.method]
        want = 1 if kind.endswith("unary") else plan.parts
        head = f"{plan.number} at ".encode()
        if kind == "stream_unary":
            head = b"%d of " % plan.parts + (head if plan.parts else b"")
        is_failing = plan.ends != "ok" and (plan.parts or kind.startswith("unary"))
        if len(seen.answers) != want or is_failing:
            yield f"{seen}: {len(seen.answers)} answers"
        elif any(not answer.startswith(head) for answer in seen.answers):
            yield f"{seen}: {seen.answers[0][:40]!r}"


@promise(
    "what is not idempotent is executed once",
    OF_RETRIES,
)
def _once(world: "World") -> Iterator[str]:
    for seen in calls(world):
        executed = world.executed.get(seen.plan.number, [])
        if seen.plan.method not in MAY_REPEAT and len(executed) > 1:
            yield f"{seen}: executed {executed}"


@promise("attempts stay within their number", OF_RETRIES)
def _attempts(world: "World") -> Iterator[str]:
    most = setting(world, "max_attempts", ATTEMPTS)
    for seen in calls(world):
        executed = world.executed.get(seen.plan.number, [])
        if len(executed) > max(most, 1):
            yield f"{seen}: executed {executed}"


@promise("retries stay within their budget", OF_RETRIES)
def _budget(world: "World") -> Iterator[str]:
    known = world.statistics
    if known is None:
        return
    most = max(BURST, setting(world, "active_limit", 100))
    retries, sent = known.retries, sum(known.calls.values())
    if retries > min(most, 1 + RATIO * sent) + 1 + RATIO * sent:
        yield f"{retries} retries of {sent} calls"


@promise("nothing is left in flight", "metrics.md")
def _rest(world: "World") -> Iterator[str]:
    known = world.statistics
    if known is None:
        return
    live = len(world.live)
    if known.in_flight + known.waiting != live:
        yield (
            f"{known.in_flight} in flight, {known.waiting} waiting; {live} calls are"
            f" not over: {world.live}"
        )


@promise("statistics add up", "metrics.md")
def _sums(world: "World") -> Iterator[str]:
    known = world.statistics
    if known is None:
        return
    over = Counter(seen.how for seen in calls(world) if seen not in world.live)
    counted = sum(known.calls.values())
    most = sum(over.values()) - over["raised"]
    # Interceptors that are cancelled before they have begun make no call.
    least = most - (over["cancelled"] if world.plan.intercepts else 0)
    if not least <= counted <= most:
        yield f"{counted} calls counted; they ended {dict(over)}"
    ended = [seen for seen in calls(world) if seen not in world.live]
    codes = Counter(seen.code and seen.code.name for seen in ended if seen.code)
    codes["OK"] = sum(seen.how == "answered" for seen in ended)
    for code, count in codes.items():
        if known.calls.get(str(code), 0) < count:
            yield f"{code} of {count} calls, counted are {dict(known.calls)}"
    by_method = sum(sum(each.values()) for each in known.methods.values())
    if by_method != counted:
        yield f"{counted} calls, {by_method} by method"
    for one in known.backends:
        ended = one.served + one.rejected + one.failed + one.abandoned + one.declined
        if one.started != ended + one.in_flight:
            yield f"{one.address}: {one.started} started, {ended} ended: {one}"


@promise("close leaves nothing", "differences.md")
def _closed(world: "World") -> Iterator[str]:
    if world.left_tasks:
        yield f"tasks: {world.left_tasks}"
    if world.left_timers:
        yield f"timers: {world.left_timers}"
    if world.left_connections:
        yield f"connections to {world.left_connections}"


@promise("background tasks do not fail", "logging.md")
def _quiet(world: "World") -> Iterator[str]:
    yield from world.complaints
    # grpc.aio's own tasks of intercepted calls are sometimes destroyed as they wait.
    # So is what who asks for the end of a call is told, when it was never made.
    late = "UsageError('Channel is closed.')" if world.plan.intercepts else "/grpc/aio/"
    ignored = ("/grpc/aio/", late)
    yield from (one for one in world.errors if not any(said in one for said in ignored))
    if world.statistics is not None and world.statistics.task_failures:
        yield f"{world.statistics.task_failures} task failures"


def _listed(world: "World") -> list[str]:
    return [machine.host.address for machine in world.machines_up()]


def _late(world: "World") -> list[Seen]:
    """Calls since when all must be well; none where calls that never end, and have no
    deadline, take all places there are."""
    if not world.probes or setting(world, "active_limit", 100) <= len(world.live):
        return []
    end = world.probes[-1].began_at
    return [one for one in world.probes if one.began_at > end - HEALS + WELL_AFTER]


@promise("all is well again soon", "health.md")
def _healed(world: "World") -> Iterator[str]:
    for seen in _late(world):
        if seen.how != "answered":
            yield f"{seen}, {seen.began_at - world.probes[0].began_at:.1f} s after"
            return


@promise("who is well is called again", "health.md")
def _well(world: "World") -> Iterator[str]:
    # Of one call at a time these three send most to the fastest, or to who had most.
    uneven = ("peak_ewma", "prequal", "weighted_round_robin")
    is_even = setting(world, "picker", "") not in uneven
    # Who is not needed is not woken, or not connected.
    wakes_all = setting(world, "idle_after", 300.0) > HEALS
    has_all = setting(world, "subset_size", 20) >= len(_listed(world))
    late = _late(world)
    if not (is_even and wakes_all and has_all and late and world.statistics):
        return
    states = {one.address: one for one in world.statistics.backends}
    # By chance one of five has none of 32 calls of p2c's in one world of a thousand.
    counted = late if len(_listed(world)) <= MOST_SURE else world.probes
    since = counted[0].began_at
    for address in _listed(world):
        if address in world.working:
            continue  # its workers are backends
        backend = states.get(address)
        if backend is None or backend.state != "ready":
            yield f"{address} is {backend and (backend.state, backend.reason)}"
            continue
        # What it refused, as it has enough to do, was sent to it, too.
        is_called = any(at >= since for at in world.sent.get(address, ()))
        if not is_called and not backend.in_flight:
            yield f"{address} is ready, and had none of {len(counted)} calls: {backend}"


@promise("every worker is called", "workers.md")
def _workers(world: "World") -> Iterator[str]:
    late = _late(world)
    if not (late and world.statistics):
        return
    since = late[0].began_at
    for address, working in world.working.items():
        task = world.machines[address]
        assert isinstance(task, TaskMachine)
        if 1 < world.shared.get(address, 0) < len(working):
            continue  # chance found no connection for one of them; it is tried later
        for label in working:
            if not any(at >= since for at in task.served.get(label, ())):
                yield (
                    f"{label} had none of {len(late)} calls; {len(working)} serve,"
                    f" {world.shared.get(address)} connections are to be to their port"
                    f" {[str(b) for b in world.statistics.backends]}"
                )


@promise("who does not answer gets few calls", "health.md")
def _ill(world: "World") -> Iterator[str]:
    if setting(world, "health", "auto") == "off" or len(world.plan.servers) < 2:
        return
    if setting(world, "subset_size", 20) < len(world.plan.servers):
        return
    interval = setting(world, "health_interval", 2.0)
    for begin, end, fault, machine in world.faults:
        found = begin + 5 * interval + 6.0
        if fault.kind not in ("freeze", "freeze long", "cut", "vanish") or found >= end:
            continue
        others = [
            one
            for one in world.faults
            if one[2] is not fault and one[0] < end and one[1] + 15.0 > begin
        ]
        assert machine is not None
        if others or machine.plan.kind != "lbclient":
            continue
        sent = [
            at
            for host in machine.hosts
            for at in world.sent.get(host.address, ())
            if found < at < end
        ]
        if len(sent) > 3:
            yield f"{len(sent)} calls to {machine} in {end - found:.1f} s of {fault}"


@promise("nobody waits where there is room", "concepts.md#flow-control")
def _room(world: "World") -> Iterator[str]:
    yield from world.idle_rooms


@promise("connections are few", "subsetting.md")
def _few(world: "World") -> Iterator[str]:
    workers = Counter({one.address: one.workers for one in world.plan.servers})
    stalls = Counter(one.host.address for _, _, _, one in world.faults if one)
    for address, most in world.most_connections.items():
        # A connection that was given up for a new one stays for a while.
        if most > max(MOST_CONNECTIONS, 3 + stalls[address]) + workers[address]:
            yield f"{most} connections to {address} at a time"
    for address, count in world.dialled.items():
        # Those to a shared port are made again until each has a worker of its own.
        again = workers[address] * MOST_DIALS * (1 + len(world.faults))
        if count > 20 + 2 * world.clock.now + again:
            yield f"{count} attempts to connect to {address} in {world.clock.now:.0f} s"


@promise("a calm world serves every call", "README.md")
def _calm(world: "World") -> Iterator[str]:
    tight = {"active_limit", "max_waiting", "when_full", "max_attempts"}
    if world.plan.closes or tight & set(dict(world.plan.settings)):
        return
    # While names are lost the last ones hold. Before the first call there are none.
    named_at = 1.0 + min((one.at for one in world.plan.calls), default=0.0)
    faults = [(at, one.kind) for at, _, one, _ in world.faults]
    if any(kind not in KEEP_NAMES or at < named_at for at, kind in faults):
        return
    if any(server.slots for server in world.plan.servers):
        return
    for seen in calls(world):
        plan = seen.plan
        takes = plan.takes + 1.0 + (2 * plan.pause + plan.drips) * plan.parts
        is_patient = plan.timeout is None or plan.timeout > takes
        # Who writes all before it reads, and is echoed, waits for itself.
        is_small = plan.size * plan.parts < WINDOW
        if plan.ends != "ok" or plan.stops is not None or not is_patient:
            continue
        if seen.how != "answered" and is_small:
            yield str(seen)
