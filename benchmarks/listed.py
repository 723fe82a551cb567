"""The benchmarks that `python -m benchmarks` runs: to add one, add a line here.

The benchmark tells its figures by `conclude(..., measured=[...])`, each of them a
`harness.measured.Measured`. The page, the record and the comparison follow from these.
"""

from dataclasses import dataclass

SECTIONS = {
    "Cost": "What a call costs, beside grpcio's own channels and servers.",
    "Growth": "How cost grows with the number of backends, endpoints and channels.",
    "Other people's benchmarks": "Scripts and tables that others have published.",
    "Balance and latency": "Fleets of real processes, beside what people use instead.",
    "Overload": "More demand than can be met, with real processes.",
    "At scale": "Thousands of clients and backends: without a network, or simulated.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One benchmark; a module of `benchmarks`, or of a package in it.

    `short` and `full` are its arguments for the two forms, None: it has no such form.
    It is ended if it takes longer than `most` seconds in its short form, or ten times
    as long in its full one. Where a program of `needs` is missing it is left out.
    """

    section: str
    name: str
    module: str
    shows: str
    short: tuple[str, ...] | None = ()
    full: tuple[str, ...] | None = ()
    most: float = 120.0
    needs: tuple[str, ...] = ()

    def arguments(self, *, is_full: bool) -> tuple[str, ...] | None:
        return self.full if is_full else self.short

    def command(self, *, is_full: bool) -> str:
        """What a reader types."""
        words = self.arguments(is_full=is_full) or ()
        return " ".join(("python -m benchmarks." + self.module, *map(_quoted, words)))


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


COST, GROWTH, OTHERS, BALANCE, OVERLOAD, SCALE = SECTIONS
QUICK = ("--quick",)

BENCHMARKS = (
    Listed(
        section=COST, name="overhead", module="overhead", short=QUICK,
        shows="CPU of a call and calls a second, ours over grpcio's.",
    ),
)  # fmt: skip
