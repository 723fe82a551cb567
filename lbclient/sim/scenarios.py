"""The scenarios by name: S0 to S8 and S10, and what breaks policies.

S2 is the common case: two generations of machines in one fleet. The others each change
one thing, and each is there because some policy fails in it.
"""

from dataclasses import replace

from lbclient.sim.scenario import Scenario

S2 = Scenario(
    summary="half the machines are 2.5 times as fast",
    loads=(0.5, 0.7, 0.85, 0.95),
    speeds=(1.0, 2.5),
)

OVERLOAD = Scenario(
    summary="more than the fleet can do; clients that retry, and nothing else",
    loads=(0.9, 1.5, 4.0),
    clients=10,
    backends=10,
    subset_size=10,
    attempts=3,
    warm_up=120.0,  # as long as a throttle remembers
)

# Pickers alone: what they make of it until the backend is ejected.
SINKHOLE = Scenario(
    summary="one backend fails everything at once, and no client ejects it",
    sinkholes=1,
    ejection=False,
    window=60.0,
)

# Handlers too short for a server to see requests wait. A refusal costs 80 us, as in
# tests/laws/test_queue_delay.py; gRPC's core keeps 600 requests.
QUEUE_DELAY = Scenario(
    summary="short requests wait in gRPC's core: servers go by the queue delay",
    loads=(0.9, 1.5, 4.0),
    clients=4,
    backends=2,
    subset_size=2,
    cores=1,
    event_loop=True,
    full=600,
    cost=0.002,
    costs="equal",
    timeout=1.0,
    warm_up=5.0,
    window=20.0,
    admission=True,
    refusal_cost=0.04,
)

FEW_SEND_MOST = replace(
    S2,
    summary="as S2, 5 % of the clients send 80 % of the requests, subsets of 10",
    loads=(0.7,),
    subset_size=10,
    hot_share=0.05,
    hot_traffic=0.8,
    warm_up=120.0,  # in which subsets may grow
)

# The clients of one send 130 % of what it can do, those of the others 45 %.
ZONE_FULL = Scenario(
    summary="three zones, the clients of one send 130 % of what it can do",
    loads=(2.2 / 3,),
    clients=30,
    backends=30,
    subset_size=12,
    cost=0.05,
    warm_up=10.0,
    window=30.0,
    zones=3,
    zone_traffic=(1.3 / 0.45,),
    subset="rocksteadier",
)

# The clients of one send 130 % of what it can do, those of the others 30 %.
ZONE_PART = replace(
    ZONE_FULL,
    summary="three zones, one at 130 %, of whose 30 backends a client starts with 6",
    loads=(1.9 / 3,),
    clients=30,
    backends=90,
    subset_size=8,
    max_subset_size=100,
    speeds=(1.0, 2.5),
    cost=0.1,
    warm_up=60.0,  # in which subsets may grow
    zone_traffic=(1.3 / 0.3,),
)

PRIORITIES = Scenario(
    summary="half the backends stand by, for when the others are full",
    loads=(0.3, 0.5),
    clients=30,
    backends=30,
    subset_size=12,
    cost=0.05,
    warm_up=10.0,
    window=30.0,
    zones=2,
    zone_priorities=(0, 1),
    locality="off",
    subset="rocksteadier",
)

# Clients see a newcomer at the moment when it is most needed.
SCALE_UP = Scenario(
    summary="16 of 20 backends are at 1.08 of what they can do, 4 join",
    loads=(0.864, 0.5),
    clients=20,
    backends=20,
    joining=4,
    restart_speed=1.0,
    warm_up=10.0,
    window=20.0,
)

# The unit of the three below: as many requests as a run of some seconds can have.
SMALL = replace(S2, clients=20, backends=20, subset_size=10, warm_up=10.0, window=20.0)

# 2 % of 8 s are eight times what a request computes: of those in flight they are most.
LONG_WAITS = replace(
    SMALL,
    summary="2 % of the requests wait 8 s, latencies are of the others",
    loads=(0.5, 0.7, 0.85),
    wait=8.0,
    waiting_share=0.02,
    timeout=60.0,
    warm_up=25.0,  # until as many wait as go
)

ZONES = Scenario(
    summary="three zones, whose clients stay in their own while it has room",
    loads=(0.6,),
    clients=60,
    backends=60,
    zones=3,
    subset="rocksteadier",
)

SCENARIOS: dict[str, Scenario] = {
    "S0_start": replace(
        S2,
        summary="as S2, from 3 s after a cold start on",
        loads=(0.7, 0.85),
        warm_up=3.0,
        window=17.0,
    ),
    "S1_homog": Scenario(
        summary="all machines alike",
        loads=(0.7, 0.85, 0.95),
        costs="exponential",
    ),
    "S2_diverse": S2,
    "S2_few": replace(
        S2,
        summary="as S2, 10 clients of all backends",
        loads=(0.85,),
        clients=10,
        subset_size=40,
    ),
    "S3_antag": replace(
        S2,
        summary="as S2, neighbours come and go, a backend restarts every 5 s",
        loads=(0.7, 0.85, 0.95),
        neighbour=0.8,
        restart_every=5.0,
    ),
    "S4_heavy": replace(
        S2,
        summary="as S2, 1 % of the requests cost 100 to 1000 times as much",
        loads=(0.5, 0.7, 0.85),
        costs="heavy",
    ),
    "S5_io": replace(
        S2,
        summary="as S2, requests wait 100 ms before they compute",
        loads=(0.7, 0.85),
        wait=0.1,
    ),
    "S6_unequal": replace(
        S2,
        summary="as S2, 10 % of the clients send 50 % of the requests",
        subset_size=10,
        hot_share=0.1,
        hot_traffic=0.5,
    ),
    "few_send_most": FEW_SEND_MOST,
    "few_send_most_grown": replace(
        FEW_SEND_MOST,
        summary="the same, and subsets grow as channels' do",
        max_subset_size=100,
    ),
    "S7_sinkhole": SINKHOLE,
    "S7_ejected": replace(
        SINKHOLE, summary="the same, and clients eject it", ejection=True
    ),
    "S8_step": replace(
        S2,
        summary="as S2, 5 backends become half as fast",
        loads=(0.7, 0.85),
        slowed=5,
        window=80.0,
    ),
    "sizes": Scenario(
        summary="half the machines have 2 processors, half 32",
        loads=(0.5, 0.7, 0.85),
        backends=20,
        cores=2,
        sizes=(1, 16),
        warm_up=15.0,
        window=15.0,
    ),
    "batches": replace(
        S2,
        summary="as S2, clients send 20 requests at once",
        loads=(0.5, 0.7, 0.85),
        batch=20,
    ),
    "gray": Scenario(
        summary="one of 20 backends takes ten times as long, and as much of its CPU",
        loads=(0.3, 0.7),
        backends=20,
        gray=1,
        warm_up=10.0,
        window=20.0,
    ),
    "partial": replace(
        SMALL,
        summary="one of 20 backends fails 30 % of one of two methods at once",
        loads=(0.5, 0.7),
        second_share=0.3,
        failing=1,
    ),
    "two_methods": replace(
        SMALL,
        summary="one of 20 requests costs 100 times what the others do",
        loads=(0.5, 0.7, 0.85),
        second_share=0.05,
        second_cost=100.0,
        costs="exponential",
        warm_up=15.0,
    ),
    "long_waits": LONG_WAITS,
    "long_waits_told": replace(
        LONG_WAITS,
        summary="the same, and servers are told who does not wait",
        told="runnable",
    ),
    "far": replace(
        SMALL,
        summary="half the backends are 20 ms farther away",
        loads=(0.3, 0.5, 0.7, 0.85),
        farther=(0.0, 0.0, 0.02, 0.02),  # of both speeds
    ),
    "on_off": replace(
        SMALL,
        summary="the load is 1.3 times as large for 2 s, then 0.7 times",
        loads=(0.5, 0.7),
        swings=(1.3, 0.7),
        swing_lasts=2.0,
    ),
    "load_step": replace(
        SMALL,
        summary="the load is half as large until 5 s after the warm-up",
        loads=(0.5, 0.7, 0.85, 0.95),
        swings=(0.5, 1.0),
        swing_lasts=15.0,
    ),
    "leavers": replace(
        SMALL,
        summary="4 of 20 backends leave at the end of the warm-up",
        loads=(0.3, 0.5, 0.7),
        leaving=4,
    ),
    "crashes": replace(
        SMALL,
        summary="a backend crashes every 4 s, is away for 2 s and cold for 5",
        loads=(0.3, 0.5, 0.7, 0.85),
        restart_every=4.0,
        restart_away=2.0,
        restart_loses=True,
        restart_lasts=5.0,
    ),
    "scale_up": SCALE_UP,
    "scale_up_cold": replace(
        SCALE_UP,
        summary="the same, newcomers have 0.3 of their speed for 5 s",
        restart_speed=0.3,
        restart_lasts=5.0,
    ),
    "restarts": replace(
        SCALE_UP,
        summary="20 backends, one restarts every 2 s, is away for 2 s and cold for 5",
        loads=(0.8, 0.5),
        joining=0,
        restart_every=2.0,
        restart_away=2.0,
        restart_speed=0.3,
        restart_lasts=5.0,
    ),
    "S10_sparse": replace(
        S2,
        summary="as S2, 300 clients of one dear request a second each",
        loads=(0.7,),
        clients=300,
        cost=0.4,
    ),
    "reports_late": replace(
        S2, summary="as S2, reports are 1 s late", loads=(0.7,), report_delay=1.0
    ),
    "rates_late": replace(
        S2,
        summary="as S2, utilization is 1 s late, counts are not",
        loads=(0.7,),
        rates_delay=1.0,
    ),
    "reports_lost": replace(
        S2,
        summary="as S2, a tenth of the reports is lost",
        loads=(0.7,),
        report_loss=0.1,
    ),
    "reports_noisy": replace(
        S2, summary="as S2, reports are off by 50 %", loads=(0.7,), report_noise=0.5
    ),
    "reports_half": replace(
        S2,
        summary="as S2, half the backends are silent",
        loads=(0.7,),
        silent_share=0.5,
    ),
    "reports_none": replace(
        S2, summary="as S2, all backends are silent", loads=(0.7,), silent_share=1.0
    ),
    "reports_stop": replace(
        S2,
        summary="as S2, half the backends fall silent in the warm-up",
        loads=(0.7,),
        silent_share=0.5,
        silent_from=15.0,
    ),
    "reports_stop_all": replace(
        S2,
        summary="as S2, all backends fall silent in the warm-up",
        loads=(0.7,),
        silent_share=1.0,
        silent_from=15.0,
    ),
    "reports_scaled": replace(
        S2,
        summary="as S2, all report a quarter of their utilization",
        loads=(0.7,),
        wrong_share=1.0,
        wrong_factor=0.25,
    ),
    "reports_wrong": replace(
        S2,
        summary="as S2, a third of the backends reports a quarter",
        loads=(0.7,),
        wrong_share=1 / 3,
        wrong_factor=0.25,
    ),
    "reports_high": replace(
        S2,
        summary="as S2, a third of the backends reports four times as much",
        loads=(0.7,),
        wrong_share=1 / 3,
        wrong_factor=4.0,
    ),
    "one_liar": replace(
        S2, summary="as S2, one backend always reports 0.01", loads=(0.7,), liars=1
    ),
    "three_backends": replace(
        S2,
        summary="as S2, 3 backends and 6 clients",
        loads=(0.85,),
        clients=6,
        backends=3,
        subset_size=3,
    ),
    "large_subset": replace(
        S2,
        summary="as S2, 100 backends, each client has all of them",
        loads=(0.85,),
        backends=100,
        subset_size=100,
    ),
    "zones": ZONES,
    "zone_lost": replace(
        ZONES,
        summary="as zones, one of them loses half its backends",
        loads=(0.5,),
        zone_lost=0.5,
    ),
    "zone_hot": replace(
        ZONES,
        summary="as zones, the clients of one send twice as much",
        loads=(0.6,),
        zone_traffic=(2.0,),
    ),
    "zone_full": ZONE_FULL,
    "zone_full_off": replace(
        ZONE_FULL, summary="the same without locality", locality="off"
    ),
    "zone_full_strict": replace(
        ZONE_FULL,
        summary="the same, but calls never leave their zone",
        locality="strict",
    ),
    "zone_limits": replace(
        ZONE_FULL,
        summary="three zones asked for 140, 5 and 10 %, with limits of 0.8, 0.3, 0.7",
        loads=(1.55 / 3,),
        zone_traffic=(14.0, 0.5),
        spill_above=(0.8, 0.3, 0.7),
    ),
    "zone_part": ZONE_PART,
    "zone_part_many": replace(
        ZONE_PART, summary="the same, with three times as many clients", clients=90
    ),
    "zone_part_fixed": replace(
        ZONE_PART, summary="as zone_part, but subsets do not grow", max_subset_size=0
    ),
    "zone_unequal": replace(
        ZONE_FULL,
        summary="three zones, whose clients send 100, 60 and 10 % of what each can do",
        loads=(1.7 / 3,),
        zone_traffic=(10.0, 6.0),
    ),
    "zone_gone": replace(
        ZONE_FULL,
        summary="three zones that are asked for alike, one is gone after the warm-up",
        loads=(0.4,),
        zone_traffic=(1.0,),
        zone_lost=1.0,
    ),
    "priorities": PRIORITIES,
    "priority_gone": replace(
        PRIORITIES,
        summary="the same, but the first are gone",
        loads=(0.3,),
        zone_lost=1.0,
    ),
    "overload": OVERLOAD,
    "overload_throttled": replace(
        OVERLOAD,
        summary="the same, with admission by load and throttling clients",
        throttle=2.0,
        admission=True,
    ),
    "queue_delay": QUEUE_DELAY,
    "queue_delay_without": replace(
        QUEUE_DELAY, summary="the same, but servers refuse nothing", admission=False
    ),
}
