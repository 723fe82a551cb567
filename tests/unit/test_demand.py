"""How many connections calls are worth, by examples; laws/test_demand has more."""

import pytest

from lbclient.core.backends.demand import SEVERAL, Demand

CONNECTIONS = 10


def worth(calls: int) -> tuple[int, int]:
    """Of so many calls in the last `idle_after`."""
    return Demand(300.0, 0.0).worth(calls, 1.0)


@pytest.mark.parametrize("calls", [1, SEVERAL, CONNECTIONS * SEVERAL])
def test_several_calls_for_each_connection_and_one_more_is_opened(calls: int) -> None:
    few, _ = worth(calls)
    assert few * SEVERAL <= calls < (few + 1) * SEVERAL


def test_connections_stay_until_there_are_half_as_many_calls() -> None:
    """Or a rate about as high as opened them would open and close them for ever."""
    calls = CONNECTIONS * SEVERAL
    assert worth(calls)[0] == CONNECTIONS
    assert worth(calls // 2)[1] == CONNECTIONS
    assert worth(calls // 2 - 1)[1] < CONNECTIONS


def test_without_calls_each_connection_is_one_too_many() -> None:
    assert worth(0) == (0, 0)
