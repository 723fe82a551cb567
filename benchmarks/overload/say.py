"""What is said of each cell as it comes."""

from benchmarks.overload.allowed import Refusing, Served
from benchmarks.overload.cells import Figures
from benchmarks.overload.targets import is_late, named

WAITED = 0.05  # share of the time; where it is more others are at work


def in_ms(seconds: float | None) -> str:
    return "- ms" if seconds is None else f"{seconds * 1e3:.0f} ms"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def how(end: str) -> str:
    """The kind of an end, in words."""
    if end == "OK":
        return "served"
    if end == "CANCELLED" or end.startswith("RST_STREAM"):
        return f"ended unanswered or in gRPC's core ({end})"
    if end == "DEADLINE_EXCEEDED":
        return "too late"
    return f"refused ({end})" if end == end.lower() else end


def say_cost(cost: Refusing) -> None:
    print(
        f"refusing a request takes {cost.answered * 1e3:.3f} ms of the loop, "
        f"{cost.unanswered * 1e3:.3f} ms without an answer",
        flush=True,
    )


def say_bare(handler: str, surroundings: str, bare: Served) -> None:
    ran = bare.capacity * bare.cost
    others = f"; it waited for a processor for {bare.busy - ran:.0%}"
    print(
        f"\n{handler}, {surroundings}: capacity {bare.capacity:.1f}/s; serving one "
        f"takes {bare.cost * 1e3:.2f} ms of the loop, which is busy for "
        f"{bare.busy:.0%} of the time{others * (bare.busy - ran > WAITED)}",
        flush=True,
    )


def say(run: Figures) -> None:
    by_criticality = "; ".join(
        f"{name} {share(run.served[name], run.offered[name])} of what is offered, "
        f"{share(run.served[name], run.fits[name])} of what would fit"
        for name in run.offered
    )
    ends = ", ".join(f"{count} {how(end)}" for end, count in sorted(run.ends.items()))
    print(
        f"{named(run.cell)}, {run.cell.kind}:\n"
        f"  goodput {share(run.goodput, run.capacity)} of the capacity, "
        f"{share(run.goodput, run.allowed)} of what is allowed "
        f"({run.allowed:.1f}/s: the loop could have {run.available:.2f} of a core, ran "
        f"{run.ran:.2f}, refused {run.refused:.0f}/s, "
        f"and {run.unanswered:.0f}/s unanswered, which took {run.dropping:.2f})\n"
        f"  p50 {in_ms(run.p50)}, p99 {in_ms(run.p99)}; {by_criticality}\n"
        f"  {ends}\n"
        f"  sent late {in_ms(run.lateness)}{', so this says nothing' * is_late(run)}; "
        f"normal after {run.normal_after:.1f} s; memory {run.memory:+.1f} MB",
        flush=True,
    )
