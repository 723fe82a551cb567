"""How figures look as text: aligned columns, bars and labels, in 80 columns."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from lbclient.cli.colour import width as shown

WIDTH = 79  # characters of a line, on a terminal of 80
LABEL = 23  # characters of the column of labels, with the space behind it
BAR = 40  # characters of a histogram's longest bar
ROWS = 12  # of a histogram at most; where there are more values, a row has several


def histogram(backends_with: Mapping[int, int]) -> Iterator[str]:
    """How many backends have so many connections, as bars; several values a row."""
    low, high = min(backends_with), max(backends_with)
    step = -(-(high - low + 1) // ROWS)
    rows = [("connections", "backends")]
    counts = []
    for start in range(low, high + 1, step):
        last = min(start + step - 1, high)
        counts.append(sum(backends_with.get(n, 0) for n in range(start, last + 1)))
        values = f"{start:,}" if start == last else f"{start:,} to {last:,}"
        rows.append((values, f"{counts[-1]:,}"))
    head, *lines = table(rows, left=0)
    yield head
    for line, count in zip(lines[1:], counts, strict=True):
        yield f"{line}  {'#' * -(-BAR * count // max(counts))}".rstrip()


def table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns under headings; the first `left` of them to the left."""
    widths = [max(map(shown, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        blanks = [" " * (w - shown(c)) for c, w in zip(row, widths, strict=True)]
        cells = [
            f"{cell}{blank}" if place < left else f"{blank}{cell}"
            for place, (cell, blank) in enumerate(zip(row, blanks, strict=True))
        ]
        lines.append("  ".join(cells))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def item(label: str, words: str) -> str:
    return hanging(label.ljust(LABEL - 1) + " ", words)


def hanging(head: str, words: str, width: int = WIDTH) -> str:
    """The words beside a head, in as many lines as they need.

    >>> print(hanging("holds  ", "as much as the text says", width=20))
    holds  as much as
           the text says
    """
    indent = " " * len(head)
    return textwrap.fill(
        words, width=width, initial_indent=head, subsequent_indent=indent
    )


def fill(words: str) -> list[str]:
    return textwrap.wrap(words, width=WIDTH)


def count(number: int | str, noun: str) -> str:
    """
    >>> count(1, "backend"), count(2000, "backend"), count("0.5", "backend")
    ('1 backend', '2,000 backends', '0.5 backends')
    """
    text = number if isinstance(number, str) else f"{number:,}"
    return f"{text} {noun}{'' if text == '1' else 's'}"


def short(value: float) -> str:
    """Three digits, without the zeros behind them, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    """Two decimals, fewer of what is large: four characters up to 9999."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
