"""Two by lot: any two, never one twice, and the less loaded of them."""

from collections import Counter
from random import Random

import pytest

from lbclient.core.load import ERROR_MEMORY
from lbclient.core.model import Outcome, Verdict
from lbclient.pickers import P2c
from lbclient.pickers.p2c import two
from lbclient.testing import fake_nodes

FAILED = Outcome(Verdict.FAILED, 0.001)
DRAWS = 20_000


def test_every_pair_is_as_likely() -> None:
    """Of 12 ordered pairs each one in 12, to 5 standard deviations."""
    rng = Random(1)
    pairs = Counter(two(rng, 4) for _ in range(DRAWS))
    assert all(one != other for one, other in pairs)
    assert len(pairs) == 4 * 3
    expected = DRAWS / len(pairs)
    assert list(pairs.values()) == pytest.approx(
        [expected] * len(pairs), abs=5 * expected**0.5
    )


def test_one_alone_is_picked() -> None:
    (alone,) = nodes = fake_nodes(1)
    assert P2c(Random(1)).pick(nodes, 0.0) is alone


def test_the_busiest_is_never_picked() -> None:
    """Whoever it meets is less loaded."""
    nodes = fake_nodes(4)
    for _ in range(2):
        nodes[3].load.begin()
    nodes[2].load.begin()
    picker = P2c(Random(1))
    picks = Counter(picker.pick(nodes, 0.0).endpoint.address for _ in range(DRAWS))
    assert "b3:1" not in picks
    # The third wins one pair of six: that with the busiest.
    assert picks["b2:1"] / DRAWS == pytest.approx(1 / 6, rel=0.1)


def test_an_error_counts_as_a_request_until_it_fades() -> None:
    failing, idle = nodes = fake_nodes(2)
    failing.load.begin()
    failing.load.finish(FAILED, 10.0)
    picker = P2c(Random(1))
    assert {picker.pick(nodes, 10.0) for _ in range(10)} == {idle}
    idle.load.begin()
    later = 10.0 + ERROR_MEMORY
    assert {picker.pick(nodes, later) for _ in range(10)} == {failing}


def test_a_trace_of_an_old_error_loses_no_tie() -> None:
    """It lost every one for 100 s, so that who had been well again for a minute got no
    call of a client that has one at a time."""
    failing, _ = nodes = fake_nodes(2)
    failing.load.begin()
    failing.load.finish(FAILED, 10.0)
    picker = P2c(Random(1))
    later = 10.0 + 3 * ERROR_MEMORY
    picks = Counter(picker.pick(nodes, later).endpoint.address for _ in range(1000))
    assert picks["b0:1"] == pytest.approx(500, abs=80)  # 5 standard deviations
