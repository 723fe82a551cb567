"""One container engine for all fleets, which starts and makes its images once."""

from collections.abc import Iterator

import pytest

from tests.fleet.engine import prepared


@pytest.fixture(scope="session")
def images() -> Iterator[dict[str, str]]:
    with prepared() as environ:
        yield environ
