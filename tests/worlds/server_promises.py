"""What lbclient promises of servers, asked of a `ServerWorld` that is over.

As `invariants` does of clients. `docs/reliability.md` lists both.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from math import inf, isfinite
from typing import NamedTuple

import grpc

from lbclient import wire
from lbclient.core.criticality import Criticality
from lbclient.core.model import TaskState
from lbclient.core.quotas.quota_account import TUNING
from lbclient.core.refusal import Refusal
from tests.worlds.arrivals import CALM, FLOOD, LEAVING, QUIET, QUOTA
from tests.worlds.server_world import PROBER, STRANGER, Asked, ServerWorld

CANCELLED: int = grpc.StatusCode.CANCELLED.value[0]
UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]
OF_QUOTAS = "quotas.md"
WORDS = {refusal.value for refusal in Refusal}
AGAIN = 4.0  # seconds after a flood, of deadlines of 2 s, until all is served again
LEAST_GOODPUT = 0.79  # of the capacity, in a flood: refusals take no CPU in a world
LEAST_CRITICAL = 0.95  # of requests that would fit, in a flood
MOMENT = 0.05  # seconds: as long as handlers that begin in one turn may have the loop
SMOOTHING = 2.0  # seconds, of reports
WARM = 1.5  # seconds, of a flood, until a server knows it


class ServerPromise(NamedTuple):
    name: str
    place: str
    breaches: Callable[[ServerWorld], Iterator[str]]


SERVER_PROMISES: list[ServerPromise] = []
Breaches = Callable[[ServerWorld], Iterator[str]]


def promise(name: str, place: str) -> Callable[[Breaches], Breaches]:
    def keep(breaches: Breaches) -> Breaches:
        SERVER_PROMISES.append(ServerPromise(name, place, breaches))
        return breaches

    return keep


def broken(world: ServerWorld) -> list[tuple[str, str]]:
    """Every breach, as the name of a promise and words."""
    return world.broken + [
        (one.name, words) for one in SERVER_PROMISES for words in one.breaches(world)
    ]


def kinds(world: ServerWorld) -> set[str]:
    return {fault.kind for _, _, fault in world.faults}


def quiet_from(world: ServerWorld) -> float:
    """When all that a plan does to servers is over, but for some calm traffic."""
    return world.began_at + world.plan.lasts - QUIET


def served_cpu(some: list[Asked]) -> float:
    return sum(one.traffic.cost for one in some if one.is_served)


@promise("every request is answered", "overload.md#on-the-wire")
def _answered(world: ServerWorld) -> Iterator[str]:
    for asked in world.asked:
        if asked.over_at is None:
            yield f"{asked}: it is not over"
        elif asked.is_served and asked.answer != b"%d" % asked.number:
            yield f"{asked}: {asked.answer!r}"


@promise("what is refused is not executed", "overload.md#on-the-wire")
def _refused(world: ServerWorld) -> Iterator[str]:
    for asked in world.asked:
        if asked.refusal and asked.executed:
            yield f"{asked} was refused as {asked.refusal}, and executed"
        if asked.refusal and asked.refusal not in WORDS:
            yield f"{asked} was refused as {asked.refusal}"
        if len(asked.executed) > 1 or (asked.is_served and not asked.executed):
            yield f"{asked}: executed {asked.executed}"


@promise("what has expired is not executed", "admission.md#time-in-the-queue")
def _expired(world: ServerWorld) -> Iterator[str]:
    for asked in world.asked:
        due = asked.at + (asked.traffic.timeout or inf)
        late = [at for at in asked.executed if at > due + MOMENT]
        if late:
            yield f"{asked}: due at {due:.3f}, executed at {late}"


@promise("an idle server refuses nobody", "overload.md#what-a-server-keeps")
def _idle(world: ServerWorld) -> Iterator[str]:
    if world.plan.kind != CALM:
        return
    for asked in world.asked:
        takes = asked.traffic.waits + 20 * asked.traffic.cost
        if asked.traffic.timeout is not None and asked.traffic.timeout < takes:
            continue
        if not asked.is_served:
            yield f"{asked}, {asked.refusal}"


def _in_flood(world: ServerWorld) -> list[Asked]:
    """Of the flood when the servers know it, all that could be over when it ends."""
    end = quiet_from(world)
    return [
        one
        for one in world.asked
        if world.began_at + WARM <= one.at < end - (one.traffic.timeout or 0.0)
    ]


@promise("a flood leaves goodput", "overload.md#what-a-server-keeps")
def _goodput(world: ServerWorld) -> Iterator[str]:
    if world.plan.kind != FLOOD:
        return
    end = quiet_from(world)
    ended = [
        one
        for one in world.asked
        if world.began_at + WARM <= (one.over_at or 0.0) < end
    ]
    offered = sum(one.rate * one.cost for one in world.plan.traffic if one.begins == 0)
    most = world.plan.tasks * (end - world.began_at - WARM)
    wanted = LEAST_GOODPUT * most
    if offered > 1.5 * world.plan.tasks and served_cpu(ended) < wanted:
        yield f"{served_cpu(ended):.2f} s of CPU served, {wanted:.2f} s of {most:.2f}"


@promise("the most critical go first", "overload.md#criticality")
def _critical(world: ServerWorld) -> Iterator[str]:
    if world.plan.kind != FLOOD:
        return
    plus = [
        one
        for one in _in_flood(world)
        if one.traffic.criticality == Criticality.CRITICAL_PLUS.name
    ]
    lost = sum(not one.is_served for one in plus)
    # A few may be lost by chance.
    if lost > max(2.0, (1.0 - LEAST_CRITICAL) * len(plus)):
        yield f"{lost} of {len(plus)} CRITICAL_PLUS, which fit, were not served"


@promise("all is served again soon", "overload.md#what-a-server-keeps")
def _again(world: ServerWorld) -> Iterator[str]:
    end = max(quiet_from(world), *[task.started_at for task in world.tasks])
    for asked in world.asked:
        if asked.at > end + AGAIN and not asked.is_served:
            yield f"{asked}, {asked.at - end:.1f} s after"
            return


@promise("quotas hold", OF_QUOTAS)
def _quotas(world: ServerWorld) -> Iterator[str]:
    plan = world.plan
    if plan.kind != QUOTA:
        return
    busy = plan.lasts - QUIET
    limit = max(plan.setting("quotas").values())
    for customer in ("greedy", "modest"):
        theirs = [one for one in world.asked if one.traffic.customer == customer]
        used = sum(one.traffic.cost * len(one.executed) for one in theirs)
        each = max((one.traffic.cost for one in theirs), default=0.0)
        # Before the store says what the others gave, each task may give all. Once it
        # has failed, what it said last holds.
        alone = 2.0 if not kinds(world) else busy
        requests, seconds = TUNING.ahead
        ahead = max(requests * each, seconds * limit) * plan.tasks
        shared = limit * (busy + (plan.tasks - 1) * min(alone, busy))
        if used > 1.15 * shared + ahead:
            yield f"{customer} used {used:.2f} s of {shared:.2f} s, and {ahead:.2f} s"


@promise("who keeps its quota is served", OF_QUOTAS)
def _modest(world: ServerWorld) -> Iterator[str]:
    if world.plan.kind != QUOTA:
        return
    for asked in world.asked:
        is_known = asked.at > world.began_at + WARM  # what requests cost
        if is_known and asked.traffic.customer != "greedy" and not asked.is_served:
            yield f"{asked}, {asked.refusal}"


@promise("a drain loses nothing", "health.md")
def _drained(world: ServerWorld) -> Iterator[str]:
    if world.plan.kind != LEAVING:
        return
    for asked in world.asked:
        left = asked.traffic.timeout or inf
        was_hasty = left < 20 * asked.traffic.cost + asked.traffic.waits + 2.0
        if asked.is_served or was_hasty:
            continue
        # What crossed GOAWAY was not executed, and is told so: it may be sent again.
        was_lost = asked.code in (UNAVAILABLE, CANCELLED) and not asked.executed
        if was_lost and not asked.traffic.watches:
            continue
        yield f"{asked}, executed {asked.executed}"


@promise("a drain ends", "configuration.md#server")
def _drains_end(world: ServerWorld) -> Iterator[str]:
    period = world.plan.setting("lame_duck_period")
    for drain in world.drains:
        ends = [end for begin, end, one in world.faults if one.server == drain.task]
        slack = max(ends, default=0.0) - drain.began_at  # it may be frozen meanwhile
        took = (drain.over_at or inf) - drain.began_at
        if took > period + max(2.0, slack) and "crash" not in kinds(world):
            yield f"the drain of task {drain.task} took {took:.1f} s"


@promise("watchers hear of a lame duck", "health.md")
def _heard(world: ServerWorld) -> Iterator[str]:
    if world.plan.kind != LEAVING:
        return
    soon = 4 * world.plan.delay + 0.3
    for drain in world.drains:
        told = [at for at in drain.heard_at if at < drain.began_at + soon]
        if len(told) < drain.watchers:
            yield (
                f"{len(told)} of {drain.watchers} watchers of task {drain.task} heard"
                f" within {soon:.1f} s of {drain.began_at:.3f}"
            )


@promise("counts of servers add up", "metrics.md")
def _counts(world: ServerWorld) -> Iterator[str]:
    if kinds(world) & {"crash", "drain", "stop"}:
        return  # what a process counted is lost with it
    known = world.statistics
    done: Counter[str] = Counter()
    for one in known:
        done.update(one.methods.get(("unary_unary", "/world.Server/Work"), {}))
        if one.active:
            yield f"{one.active} are active: {one}"
    refused = Counter[str]()
    for one in known:
        for reason, by_criticality in one.refused.items():
            refused[reason] += sum(by_criticality.values())
    words = Counter(asked.refusal for asked in world.asked if asked.refusal)
    for word in WORDS:
        told = words[word]
        if word == Refusal.QUOTA.value and refused[word] != told:
            yield f"{refused[word]} refused as {word}, {told} were told so"
    served = sum(asked.is_served for asked in world.asked)
    if done["OK"] < served:
        yield f"{done['OK']} served by the counts, {served} answers"
    executed = sum(len(asked.executed) for asked in world.asked)
    ran = sum(done.values())
    if ran < executed:
        yield f"{ran} requests counted, {executed} executed"


@promise("costs are what was used", OF_QUOTAS)
def _costs(world: ServerWorld) -> Iterator[str]:
    if kinds(world) & {"crash", "drain", "stop"}:
        return
    for customer in {one.customer for one in world.plan.traffic}:
        used = sum(
            asked.traffic.cost * len(asked.executed)
            for asked in world.asked
            if asked.traffic.customer == customer
        )
        told = sum(one.customer_costs.get(customer, 0.0) for one in world.statistics)
        if abs(told - used) > 1e-6:
            yield f"{customer or 'others'} used {used:.4f} s, {told:.4f} s are counted"


@promise("reports are sound", "health.md#on-the-wire")
def _reports(world: ServerWorld) -> Iterator[str]:
    for at, task, report in world.reports:
        load = report.load
        values = (load.application_utilization, load.cpu_utilization, load.eps)
        if not all(isfinite(one) and one >= 0.0 for one in values):
            yield f"at {at:.3f} task {task} reports {values}"
    if world.plan.kind != CALM:
        return
    begins, ends = world.began_at + 4.0, quiet_from(world)
    # As smoothed as reports are: what was used some time before counts, too.
    since = begins - SMOOTHING
    used = sum(
        asked.traffic.cost
        for asked in world.asked
        for at in asked.executed
        if since < at < ends
    )
    wanted = used / (ends - since) / world.plan.tasks
    told = [
        wire.from_message(report.load).utilization
        for at, _, report in world.reports
        if begins < at < ends
    ]
    mean = sum(told) / len(told) if told else wanted
    if told and abs(mean - wanted) > 0.05 + 0.3 * wanted:
        yield f"reports tell {mean:.2f} of the CPU used, where it is about {wanted:.2f}"


@promise("UDP answers who may ask", "health.md#on-the-wire")
def _udp(world: ServerWorld) -> Iterator[str]:
    plan = world.plan
    for who in (PROBER, STRANGER):
        sent, back = world.sent_to.get(who, 0), world.sent_back.get(who, 0)
        if back > sent:
            yield f"{back} bytes were sent to {who}, which had sent {sent}"
    for probe in world.probes.values():
        if not probe.is_sound:
            if probe.said:
                yield f"a forged probe at {probe.at:.3f} was answered: {probe.said}"
            continue
        answers = [one for one in probe.said if not one.is_news]
        if len(answers) > 1 or len(probe.said) > 2:
            yield f"a probe at {probe.at:.3f} was answered {len(probe.said)} times"
        if plan.kind in (CALM, FLOOD, QUOTA) and not answers:
            yield f"a probe of task {probe.task} at {probe.at:.3f} had no answer"


@promise("UDP tells of a lame duck", "health.md#on-the-wire")
def _news(world: ServerWorld) -> Iterator[str]:
    if world.plan.kind != LEAVING or "lose" in kinds(world):
        return
    for drain in world.drains:
        began_at = drain.began_at
        lately = [
            one
            for one in world.probes.values()
            if one.task == drain.task and began_at - 5.0 < one.at < began_at + 0.5
        ]
        was_served = any(
            said.state is TaskState.SERVING and one.at < began_at - 0.5
            for one in lately
            for said in one.said
        )
        if was_served and not any(said.is_news for one in lately for said in one.said):
            yield f"the prober was not told of the drain at {began_at:.3f}"


@promise("stop leaves nothing", "differences.md")
def _stopped(world: ServerWorld) -> Iterator[str]:
    yield from world.left


@promise("background tasks of servers do not fail", "logging.md")
def _quiet(world: ServerWorld) -> Iterator[str]:
    yield from world.complaints
    for one in world.statistics:
        if one.task_failures:
            yield f"{one.task_failures} task failures"
