"""What has state shows the counts that matter, for who debugs it."""

from random import Random

import pytest

from lbclient.admin.http import Site
from lbclient.core.model import Endpoint
from lbclient.core.statistics.recent import Latencies, Recent
from lbclient.metrics.sums import Sums
from lbclient.resolvers.endpoint_slices import Slices
from lbclient.resolvers.name_servers import NameServers
from lbclient.resolvers.polling import Hinted, Polling, Resolution
from lbclient.testing import FakeNode

LIST = """{"metadata": {"resourceVersion": "7"}, "items": [{
    "metadata": {"name": "a"}, "addressType": "IPv4", "ports": [],
    "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}]}]}"""


async def answer() -> Resolution:
    return Resolution((Endpoint("a:1"),))


def polling() -> Polling:
    return Polling(answer, 10.0, Random(7))


def cached() -> Polling:
    made = polling()
    for ttl in (5.0, 3.0):
        made._until_next(ttl)
    return made


def slices() -> Slices:
    made = Slices("50051")
    made.replace(LIST)
    return made


def hinted() -> Hinted:
    made = Hinted()
    made.hint()
    return made


def recent() -> Recent:
    made = Recent()
    node = FakeNode(Endpoint("a:1"))
    made.picked(node, [node], now=1.0)
    made.finished("a:1", 0.1, now=1.0)
    return made


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (NameServers(), "<name servers, which told 0 A and 0 AAAA>"),
        (slices(), "<1 slices, 2 pods, port 50051>"),
        (Hinted(), "<no hint>"),
        (hinted(), "<a hint>"),
        (polling(), "<asked every 10 s, no time to live>"),
        (cached(), "<asked every 10 s, last told 3 s by a cache>"),
        (Sums(), "<sums of 0 sources, 0 targets>"),
        (Site({}, ()), "<0 pages, 0 requests>"),
        (recent(), "<1 picks, latencies of 1 backends>"),
        (Latencies(), "<0 latencies>"),
        (recent().latencies, "<1 latencies>"),
    ],
    ids=lambda it: type(it).__name__ if not isinstance(it, str) else "",
)
def test_its_repr_reads_as_english(one: object, words: str) -> None:
    assert repr(one) == words
