"""Worlds that once broke a promise, shrunk, each with the fault that they found.

Plans, not seeds: who changes what is drawn from a seed leaves them as they are.
"""

from tests.worlds.either import AnyPlan
from tests.worlds.plan import CallPlan, Fault, Plan, ServerPlan

GET, PUT = "/world.World/Get", "/world.World/Put"
LIST, CHAT = "/world.World/List", "/world.World/Chat"
ONE, TWO, THREE = (ServerPlan(f"10.0.0.{n}:50051", "lbclient") for n in (1, 2, 3))
PORTLESS = ServerPlan("10.0.0.1:50051", "lbclient", workers=2, own="off")

_STALLED = Plan(
    4,
    4.0,
    0.001,
    (("health_interval", 0.5),),
    (ONE,),
    (Fault(2.0, "block", 0, 30.0),),
    (
        CallPlan(1, 1.0, PUT, 5.0, 0.0),
        CallPlan(2, 2.1, PUT, None, 0.01),
        CallPlan(3, 2.1, LIST, None, 0.01),
    ),
)

# By the name of the mutant that is the fault. Some were never faults: these worlds are
# there for what seeds seldom do.
KEPT: dict[str, AnyPlan] = {
    "a call that was given up is told CancelledError": _STALLED,
    "the same, of a direct call": _STALLED,
    "waiting calls outlive their channel": Plan(
        6,
        4.0,
        0.001,
        (),
        (ONE,),
        (Fault(0.1, "crash", 0, 9.0),),
        (CallPlan(1, 1.0, GET, None, 0.0, waits_for_ready=True),),
        (3.0, None),
    ),
    "the budget for retries has no end": Plan(
        7,
        8.0,
        0.001,
        (("idempotent", (GET,)), ("max_attempts", 5)),
        (ONE, TWO),
        (),
        tuple(
            CallPlan(number, 1.0 + 0.1 * number, GET, 5.0, 0.0, ends="unavailable")
            for number in range(60)
        ),
    ),
    "an empty answer of the resolver is believed": Plan(
        8,
        6.0,
        0.001,
        (),
        (ONE, TWO),
        (Fault(2.0, "resolver is empty", -1, 4.0),),
        tuple(CallPlan(n, 0.5 * n, GET, 2.0, 0.0) for n in range(12)),
    ),
    "a failed write takes the place of the status": Plan(
        23,
        1.0,
        0.0005,
        (),
        (ONE,),
        (),
        (CallPlan(0, 0.0, CHAT, 5.0, 0.05, parts=10, size=30_000, pause=0.01),),
    ),
    "a hedged call has an attempt before it is sent": Plan(
        1,
        2.0,
        0.002,
        (("idempotent", (GET,)), ("hedging", True)),
        (ONE,),
        (),
        (
            CallPlan(64, 0.0, GET, 5.0, 0.0),
            CallPlan(65, 1.0, GET, 0.05, 0.0, stops=(0.0, "call")),
        ),
    ),
    "who gives up a read leaves a call that is not sent": Plan(
        71,
        2.0,
        0.002,
        (),
        (ONE,),
        (),
        (
            CallPlan(1, 0.0, LIST, 5.0, 0.05),
            CallPlan(7, 1.0, LIST, None, 0.05, stops=(0.0, "task")),
        ),
    ),
    "what is too late has no trial": Plan(
        501681,
        4.4,
        0.02,
        (("max_attempts", 1),),
        (ONE,),
        (Fault(3.39, "freeze", 0, 4.3),),
        (CallPlan(2, 3.1, GET, None, 0.5),),
    ),
    "an ejected backend has no trial": Plan(
        10,
        9.0,
        0.001,
        (("picker", "round_robin"), ("max_attempts", 1)),
        (ONE, TWO, THREE),
        (Fault(2.0, "fail", 0, 4.0),),
        tuple(CallPlan(n, 1.0 + 0.02 * n, GET, 2.0, 0.0) for n in range(400)),
    ),
    "one worker of two is no news": Plan(
        28,
        3.8,
        0.0005,
        (),
        (PORTLESS,),
        (Fault(2.825, "kill worker", 0, 0.1),),
        (CallPlan(0, 1.345, LIST, 0.05, 0.0, parts=0),),
    ),
    "nobody looks at a shared connection that is back": Plan(
        89,
        4.77,
        0.02,
        (("idempotent", (GET,)),),
        (PORTLESS,),
        (Fault(3.7696257351042326, "kill worker", 0, 0.1),),
        (CallPlan(22, 3.6000971959735, GET, 1.0, 0.5),),
    ),
    "errors of a crash count until they have faded": Plan(
        1,
        4.0,
        0.001,
        (("picker", "p2c"), ("active_limit", 1000), ("health", "watch")),
        (ONE, TWO),
        (Fault(2.1, "crash", 1, 0.2),),
        tuple(CallPlan(n, 2.0, PUT, None, 0.5) for n in range(120)),
    ),
    "who waits begins between two runs of the loop": Plan(
        1,
        6.0,
        0.001,
        (("picker", "prequal"), ("active_limit", 1)),
        (ONE,),
        (),
        (
            CallPlan(78, 4.2, LIST, 20.0, 0.01, parts=3, stops=(0.0, "drop")),
            CallPlan(98, 5.0, PUT, 20.0, 0.5),
        ),
        intercepts=True,
    ),
}
