"""Random: as likely as any other, but for newcomers."""

from collections import Counter
from random import Random as Generator

import pytest

from lbclient.pickers import Random
from lbclient.testing import FakeNode, fake_nodes

PICKS = 20_000


def counts(nodes: tuple[FakeNode, ...], now: float) -> Counter[str]:
    picker = Random(Generator(1), slow_start=10.0)
    return Counter(picker.pick(nodes, now).endpoint.address for _ in range(PICKS))


def test_all_are_as_likely() -> None:
    """A quarter each, to 5 standard deviations."""
    drawn = counts(fake_nodes(4), 0.0)
    bound = 5 * (PICKS * 1 / 4 * 3 / 4) ** 0.5
    assert list(drawn.values()) == pytest.approx([PICKS / 4] * 4, abs=bound)


def test_a_newcomer_is_less_likely() -> None:
    """Halfway up from a tenth: 0.55 of what each of the others gets."""
    nodes = fake_nodes(4)
    nodes[3].load.enter_ready(1000.0)
    drawn = counts(nodes, 1005.0)
    share = 0.55 / 3.55
    bound = 5 * (PICKS * share * (1 - share)) ** 0.5
    assert drawn["b3:1"] == pytest.approx(PICKS * share, abs=bound)
