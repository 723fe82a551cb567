"""The figures of docs/benchmarks.md, in Markdown, from a record."""

from collections.abc import Iterable, Iterator

from benchmarks.harness.measured import RATIO, Measured
from benchmarks.harness.record import End, Record, Run
from benchmarks.listed import BENCHMARKS, SECTIONS, Listed

BEGIN = "<!-- `make bench` writes what follows -->\n"


def with_figures(page: str, record: Record) -> str:
    """The page with other figures; its head is written by hand.

    Raises ValueError if the page has no place for them.
    """
    head, is_begun, _ = page.partition(BEGIN)
    if not is_begun:
        raise ValueError(f"no place for figures: want {BEGIN!r}")
    parts = [*_machines(record), *_summary(record), *_losses(record)]
    for section, says in SECTIONS.items():
        parts.append(f"## {section}\n\n{says}\n")
        parts += [
            _part(one, record.get(one.name))
            for one in BENCHMARKS
            if one.section == section
        ]
    return head + BEGIN + "\n" + "\n".join(parts)


def _machines(record: Record) -> Iterator[str]:
    """All that figures were made on; how busy a machine was is told of each."""
    seen = {
        ", ".join(f"{key} {value}" for key, value in run.machine.items())
        for run in record.values()
        if run.machine
    }
    if seen:
        yield "Measured on: " + "; and ".join(sorted(seen)) + ".\n"


def _summary(record: Record) -> Iterator[str]:
    yield "## All in one table\n"
    rows = []
    for one in BENCHMARKS:
        run = record.get(one.name)
        told = run.measured if run else []
        cells = [f"[{one.name}](#{one.name})", one.section, _ended(run)]
        missed = len(run.missed) if run else 0
        missed += sum(row.misses for row in told)
        cells += [str(len(told)), str(sum(row.loses for row in told)), str(missed)]
        rows.append(cells)
    head = ["benchmark", "section", "how it ended", "figures", "lost", "missed"]
    yield _table(head, rows)


def _losses(record: Record) -> Iterator[str]:
    """All that is worse than the peer's, or than its goal, in one place."""
    yield "## Losses\n"
    rows = [
        [f"[{name}](#{name})", one.name, _value(one), _verdict(one)]
        for name, run in record.items()
        for one in run.measured
        if one.loses or one.misses
    ]
    none = "None.\n" if _is_measured(record) else "Nothing was measured yet.\n"
    yield _table(["benchmark", "figure", "value", ""], rows) if rows else none
    said = [f"- {name}: {what}" for name, run in record.items() for what in run.missed]
    if said:
        yield "Missed, in the words of the benchmarks:\n\n" + "\n".join(said) + "\n"


def _is_measured(record: Record) -> bool:
    return any(run.measured for run in record.values())


def _part(listed: Listed, run: Run | None) -> str:
    parts = [f"### {listed.name}\n", f"{listed.shows}\n"]
    command = run.command if run else listed.command(is_full=False)
    parts += [f"    {command}\n", f"{_ended(run)}{_took(run)}.\n"]
    if run and run.measured:
        rows = [
            [one.name, _value(one), _goal(one), _verdict(one)] for one in run.measured
        ]
        parts.append(_table(["figure", "value", "goal", ""], rows))
    return "\n".join(parts)


def _ended(run: Run | None) -> str:
    if run is None:
        return "Not run yet"
    text = f"{run.end}: {run.said}" if run.said else str(run.end)
    return text[0].upper() + text[1:]


def _took(run: Run | None) -> str:
    if run is None or run.end is End.LEFT_OUT:
        return ""
    return f", in {run.seconds:.0f} s; load average before it {run.load:.1f}"


def _value(one: Measured) -> str:
    unit = "" if one.unit == RATIO else f" {one.unit}"
    spread = ""
    if one.spread and one.spread[0] != one.spread[1]:
        spread = f" ({_number(one.spread[0])} to {_number(one.spread[1])})"
    number = _number(one.value)
    if one.misses and number == _number(one.goal or 0.0):
        number = f"{one.value:.4g}"  # by so little
    return f"{number}{unit}{spread}"


def _number(value: float) -> str:
    """
    >>> [_number(of) for of in (12345.6, 123.4, 1.0444, 0.98, 0.00123, 0.0)]
    ['12,346', '123', '1.04', '0.98', '0.0012', '0']
    """
    if abs(value) >= 100.0:
        return f"{value:,.0f}"
    if abs(value) >= 0.1:
        return f"{value:.2f}" if abs(value) < 10.0 else f"{value:.1f}"
    return f"{value:.2g}"


def _goal(one: Measured) -> str:
    if one.goal is None:
        return ""
    return f"{'at most' if one.better == 'less' else 'at least'} {_number(one.goal)}"


def _verdict(one: Measured) -> str:
    if one.misses:
        return "MISSED"
    if one.loses:
        return "loses"
    return "holds" if one.goal is not None else ""


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "/") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"
