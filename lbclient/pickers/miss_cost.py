"""The price of a miss, learned from how long calls took to their first message.

    seconds = base + price * missing + share * ahead

`missing` are the keys that the backend had to make, `ahead` the seconds of work that
waited before the call. A backend that serves one at a time has a share of 1, one with
four processors 1/4. The coefficients are those of least squares, of late calls more
than of early ones. Errors are relative, so a call counts by 1 / its seconds squared.
"""

from collections.abc import Sequence

MEMORY = 500.0  # calls
EVERY = 16  # calls between two solutions
DOUBT = 0.5  # calls, that are said to have been seen with a share of 1; ours
LEAST = 1e-6  # seconds of a price: none is free, and nothing is divided by 0
MOST_SHARE = 2.0  # of the work ahead; 1 is a backend that serves one at a time
SHORTEST = 0.001  # seconds, which count as one


class MissCost:
    """Learns the price of a miss in seconds, or takes the `price` that it is given.

    Before the first call all are told in units of a miss.
    """

    def __init__(self, price: float | None = None) -> None:
        self._given = price
        self.base = 0.0
        self.price = 1.0 if price is None else price
        self.share = 1.0
        self.seen = 0
        self._sums = [0.0] * 9  # w, wm, wa, wmm, wma, waa, wy, wmy, way

    def service(self, missing: float) -> float:
        """Seconds that a call takes by itself."""
        return self.base + self.price * missing

    def learn(self, missing: float, ahead: float, seconds: float) -> None:
        self.seen += 1
        expected = max(SHORTEST, self.base + self.price * missing + self.share * ahead)
        scale = seconds if self.seen < EVERY else expected
        weight = 1.0 / max(SHORTEST, scale) ** 2
        wm, wa = weight * missing, weight * ahead
        new = (
            weight, wm, wa, wm * missing, wm * ahead, wa * ahead,
            weight * seconds, wm * seconds, wa * seconds,
        )  # fmt: skip
        fade = 1.0 - 1.0 / MEMORY
        self._sums = [
            old * fade + one for old, one in zip(self._sums, new, strict=True)
        ]
        if self.seen <= EVERY or self.seen % EVERY == 0:
            self._solve()

    def _solve(self) -> None:
        w, m, a, mm, ma, aa, y, my, ay = self._sums
        doubt = DOUBT * max(aa / max(1.0, min(self.seen, MEMORY)), LEAST)
        aa, ay = aa + doubt, ay + doubt * 1.0
        base, price, share = solved(
            (w * 1.001, m, a), (m, mm * 1.001 + 1e-9, ma), (a, ma, aa * 1.001),
            (y, my, ay),
        )  # fmt: skip
        if price <= 0.0 or base < 0.0:  # too few, or all alike: no base
            base = 0.0
            price = max(LEAST, my / mm if mm > 0.0 else y / w)
        self.base = base
        self.price = self._given if self._given is not None else max(LEAST, price)
        self.share = min(MOST_SHARE, max(0.0, share))

    def __repr__(self) -> str:
        return f"<{self.base:.4f} s + {self.price:.4f} s a miss>"


def solved(
    one: Sequence[float],
    two: Sequence[float],
    three: Sequence[float],
    right: Sequence[float],
) -> tuple[float, float, float]:
    """Solves three linear equations by Cramer's rule; zeros where there is no solution.

    >>> solved((2.0, 0.0, 0.0), (0.0, 4.0, 0.0), (0.0, 0.0, 5.0), (2.0, 8.0, 15.0))
    (1.0, 2.0, 3.0)
    """
    (a, b, c), (d, e, f), (g, h, i) = one, two, three
    p, q, r = right
    whole = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
    if whole == 0.0:
        return 0.0, 0.0, 0.0
    return (
        (p * (e * i - f * h) - b * (q * i - f * r) + c * (q * h - e * r)) / whole,
        (a * (q * i - f * r) - p * (d * i - f * g) + c * (d * r - q * g)) / whole,
        (a * (e * r - q * h) - b * (d * r - q * g) + p * (d * h - e * g)) / whole,
    )
