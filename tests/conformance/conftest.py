"""One server, two channels, and whether they are connected when the case begins."""

from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

pytest.register_assert_rewrite("tests.conformance.both")

from tests import needs  # noqa: E402 - likewise
from tests.conformance.both import Both  # noqa: E402 - once it is registered
from tests.conformance.differences import BEFORE_1_84  # noqa: E402 - likewise
from tests.conformance.script import Script  # noqa: E402 - likewise
from tests.hosts import hosting  # noqa: E402 - likewise

# While there is a channel gRPC keeps its threads. Else the stop of a last server waits
# for their end and holds the GIL, which a thread wants that frees call credentials.
KEEPS_THREADS = grpc.insecure_channel("ipv4:127.0.0.1:1")


@pytest.fixture
async def script() -> Script:
    return Script()


@pytest.fixture
async def address(script: Script) -> AsyncIterator[str]:
    """Of a server of grpc.aio's that obeys the script."""
    options = (("grpc.max_receive_message_length", -1),)
    server = grpc.aio.server(options=options)
    async with hosting(script.methods(), server=server) as (_, address, _):
        yield address


@pytest.fixture(params=["fresh", "ready"])
async def both(request: pytest.FixtureRequest, script: Script, address: str) -> Both:
    """Compares, on channels that are new, then on channels that are connected.

    In ours these are two roads: a call that waits for its backend, and one that does
    not.
    """
    name = request.function.__name__
    if name in BEFORE_1_84:
        needs.grpcio("1.84", BEFORE_1_84[name])
    return Both(address, script, request.param, name)
