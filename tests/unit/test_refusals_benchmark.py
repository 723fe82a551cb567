"""How `benchmarks.refusals` makes a table of what it has seen."""

import pytest

from benchmarks.refusals.costs import UNIT, Used, best, costs, for_each


def test_what_a_process_takes_anyway_is_no_request_s() -> None:
    used = for_each(Used(0.5, 0.9), Used(0.1, 0.1), 1000)
    assert used == pytest.approx((0.0004, 0.0008))
    assert for_each(Used(0.1, 0.1), Used(0.2, 0.2), 1000) == (0.0, 0.0)


def test_the_best_slice_counts() -> None:
    assert best([Used(3.0, 4.0), Used(2.0, 5.0)]) == Used(2.0, 4.0)
    nothing = for_each(Used(3.0, 4.0), Used(0.0, 0.0), 0)
    assert best([nothing, Used(2.0, 5.0)]) == Used(2.0, 5.0)
    with pytest.raises(RuntimeError, match="in no slice"):
        best([nothing])


def test_the_unit_is_what_grpcio_takes_to_serve() -> None:
    calm = {UNIT: [Used(150e-6, 200e-6)], "refused": [Used(90e-6, 150e-6)]}
    flooded = {UNIT: [Used(80e-6, 100e-6)], "refused": [Used(50e-6, 80e-6)]}
    bare, refused = costs(calm, flooded)
    assert (bare.end, bare.of_grpcio) == (UNIT, 1.0)
    assert (refused.loop, refused.process, refused.of_grpcio) == (90.0, 150.0, 0.75)
    assert (refused.flooded, refused.full_at) == (50.0, 20_000.0)


def test_what_the_core_ends_does_not_fill_the_loop() -> None:
    calm = {UNIT: [Used(150e-6, 200e-6)], "in core": [Used(4e-6, 70e-6)]}
    (_, in_core) = costs(calm, calm)
    assert in_core.full_at is None
