"""The demo's last word: a table, a verdict in plain words, and all of it as JSON."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from figures import Balance, Phase, differ

# What the weighted policies promise where round robin shows at least 1.3: an
# independent simulation of such a fleet gives 1.06 for A58, 1.47 for round robin.
BALANCED = 1.15
# Seconds by which a tenth of the timers of an idle process are late: as much as half of
# the calls take. Two cores of our own keep below it; beside other tests it was 0.029.
TOO_LATE = 0.01
HEADINGS = (
    "phase",
    "max/mean",
    "max/min",
    "wasted",
    "p50 ms",
    "p99 ms",
    "calls",
    "failed",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of the verdict; `kept` is None where nothing was promised."""

    text: str
    kept: bool | None


def number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(value * scale, form)


def ratio(even: Balance | None) -> str:
    """Of max over mean, with its error where that is known."""
    if even is None:
        return "-"
    error = "" if even.error is None else f" ±{even.error:.2f}"
    return number(even.max_over_mean, ".2f") + error


def cells(phase: Phase) -> tuple[str, ...]:
    even = phase.balance
    return (
        phase.title,
        ratio(even),
        number(even.max_over_min if even else None, ".2f"),
        number(even.wasted if even else None, ".1%"),
        number(phase.p50, ".0f", 1000),
        number(phase.p99, ".0f", 1000),
        f"{phase.calls:,}",
        f"{phase.failed:,}",
    )


def table(phases: Iterable[Phase]) -> str:
    return aligned([HEADINGS, *(cells(phase) for phase in phases)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns under the headings of the first row, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        padded = [first.ljust(widths[0])]
        padded += [
            cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)
        ]
        lines.append("  ".join(padded))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def verdict(
    phases: Sequence[Phase], health_interval: float, judge_balance: bool
) -> list[Finding]:
    by_name = {phase.name: phase for phase in phases}
    findings = [*_on_balance(phases, judge_balance)]
    if restart := by_name.get("restart"):
        failed = f"{restart.failed} FAILED" if restart.failed else "none failed"
        findings.append(
            Finding(
                f"Rolling restart of {restart.facts['backends']} backends: "
                f"{restart.calls:,} calls, {failed}.",
                restart.failed == 0,
            )
        )
    if kill := by_name.get("kill"):
        findings.append(
            Finding(
                f"SIGKILL: {kill.facts['in_flight']} in flight on "
                f"{kill.facts['backend']} when it died, failed calls: {kill.failed}.",
                kill.failed <= int(kill.facts["in_flight"] or 0),
            )
        )
    if freeze := by_name.get("freeze"):
        after = float(freeze.facts["last_sent_after"] or 0.0)
        findings.append(
            Finding(
                f"SIGSTOP: {after:.2f} s after it froze {freeze.facts['backend']} got "
                f"its last call (health interval {health_interval:g} s), failed "
                f"calls: {freeze.failed}.",
                after <= health_interval and not freeze.failed,
            )
        )
    return findings


def _on_balance(phases: Sequence[Phase], judge: bool) -> Iterable[Finding]:
    for phase in phases:
        if phase.balance is None or phase.balance.max_over_mean is None:
            continue
        ratio = phase.balance.max_over_mean
        said = f"{phase.title}: busiest backend {ratio:.2f} x the mean"
        if not (judge and phase.name.startswith("weighted")):
            yield Finding(f"{said}.", None)
        elif BALANCED < ratio <= BALANCED + 2 * (phase.balance.error or 0.0):
            unsure = "within two standard errors of it"
            yield Finding(f"{said} (promised {BALANCED}, {unsure}).", None)
        else:
            yield Finding(f"{said} (promised {BALANCED}).", ratio <= BALANCED)


def on_certainty(phases: Sequence[Phase], late: float) -> list[Finding]:
    """What the table cannot tell: differences of chance, and a machine too busy."""
    findings = []
    known = [
        (phase.balance, f"{phase.title} {ratio(phase.balance)}")
        for phase in phases
        if phase.balance is not None and phase.balance.error is not None
    ]
    known.sort(key=lambda one: one[0].max_over_mean or 0.0)
    unsure = [
        f"{title} and {next_title}"
        for (one, title), (other, next_title) in pairwise(known)
        if not differ(one, other)
    ]
    if unsure:
        said = f"Not significant, within two standard errors: {'; '.join(unsure)}."
        findings.append(Finding(said, None))
    if late > TOO_LATE:
        said = (
            f"This machine is too busy to tell: a tenth of the timers were {late:.3f} s"
            " late or more. Run it again while nothing else runs, or with a lower"
            " --rate."
        )
        findings.append(Finding(said, None))
    return findings


def as_text(findings: Iterable[Finding]) -> str:
    marks = {True: "kept  ", False: "MISSED", None: "      "}
    return "\n".join(
        textwrap.fill(
            finding.text,
            width=79,
            initial_indent=f"{marks[finding.kept]}  ",
            subsequent_indent=" " * 8,
        )
        for finding in findings
    )


def failures(phases: Iterable[Phase]) -> str:
    """Every failure by its status and details, with its number."""
    return "\n".join(
        f"  {phase.title}: {count} x {failure}"
        for phase in phases
        for failure, count in phase.failures.items()
    )


def as_json(
    configuration: dict[str, Any], phases: Iterable[Phase], findings: Iterable[Finding]
) -> dict[str, Any]:
    return {
        "configuration": configuration,
        "phases": [_phase(phase) for phase in phases],
        "verdict": [asdict(finding) for finding in findings],
    }


def _phase(phase: Phase) -> dict[str, Any]:
    even = phase.balance
    return asdict(phase) | {
        "balance": even
        and {
            "utilization": even.utilization,
            "mean": even.mean,
            "max_over_mean": even.max_over_mean,
            "max_over_mean_error": even.error,
            "max_over_min": even.max_over_min,
            "wasted": even.wasted,
        }
    }
