"""Who pays for what a handler's own calls cost: the customer of its request.

Two tiers of servers, over sockets: a client calls the first, whose handler calls the
second, which keeps the accounts.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import wire
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.proxy import Forwarder
from tests.hosts import (
    PATH,
    Hosted,
    hosting,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)

CUSTOMER, CRITICALITY = wire.CUSTOMER_KEY, wire.CRITICALITY_KEY
MAIL = ((CUSTOMER, "mail"),)
LOW = (CRITICALITY, "SHEDDABLE")  # with it a server decides, and is not just calm


class Second:
    """The second tier: who paid, as its quotas have it, and what was said."""

    def __init__(self, hosted: Hosted) -> None:
        self.address = hosted.address
        self._server = hosted.server

    @property
    def customers(self) -> set[str]:
        """Those with an account, but for the one that all others share."""
        return {name for name in self._server.statistics().usage if name}


async def named(_request: bytes, context: Any) -> bytes:
    """The customers that a request names, each followed by a semicolon."""
    said = [value for key, value in context.invocation_metadata() if key == CUSTOMER]
    return "".join(f"{value};" for value in said).encode()


@pytest.fixture
async def second() -> AsyncIterator[Second]:
    async with hosting(unary_unary(named), default_quota=1000.0) as hosted:
        yield Second(hosted)


Ask = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def first_tier(
    second: Second,
    config: ChannelConfig | None = None,
    method: Callable[[Ask], Any] | None = None,
    **options: Any,
) -> AsyncIterator[Hosted]:
    """Its handler makes one call; `method` makes another handler of that call."""
    async with lbclient.insecure_channel(second.address, config=config) as below:

        async def ask() -> bytes:
            call: Any = below.unary_unary(PATH)
            return bytes(await call(b"x", timeout=10))

        async def respond(_request: bytes, _context: Any) -> bytes:
            return await ask()

        handler = unary_unary(respond) if method is None else method(ask)
        async with hosting(handler, **options) as hosted:
            yield hosted


async def call(hosted: Hosted, *metadata: tuple[str, str]) -> str:
    """A stock client's call of the first tier: what that told the second."""
    method: Any = hosted.channel.unary_unary(PATH)
    return str((await method(b"x", timeout=10, metadata=metadata)).decode())


# --- handlers of all kinds -------------------------------------------------------


def in_thread(ask: Ask) -> Callable[[], bytes]:
    """Asks by a grpc.aio loop elsewhere what the thread's context says."""
    loop = asyncio.get_running_loop()

    def asked() -> bytes:
        async def begin() -> bytes:
            return await ask()

        return asyncio.run_coroutine_threadsafe(begin(), loop).result(10)

    return asked


def of_coroutine(ask: Ask) -> Any:
    async def respond(_request: bytes, _context: Any) -> bytes:
        return await ask()

    return unary_unary(respond)


def of_task(ask: Ask) -> Any:
    async def respond(_request: bytes, _context: Any) -> bytes:
        return await asyncio.ensure_future(ask())

    return unary_unary(respond)


def of_generator(ask: Ask) -> Any:
    async def respond(_requests: Any, _context: Any) -> AsyncIterator[bytes]:
        yield await ask()

    return stream_stream(respond)


def of_stream(ask: Ask) -> Any:
    async def respond(_request: bytes, context: Any) -> None:
        await context.write(await ask())

    return unary_stream(respond)


def of_thread(ask: Ask) -> Any:
    asked = in_thread(ask)

    def respond(_request: bytes, _context: Any) -> bytes:
        return asked()

    return unary_unary(respond)


def of_requests_in_thread(ask: Ask) -> Any:
    asked = in_thread(ask)

    def respond(_requests: Any, _context: Any) -> bytes:
        return asked()

    return stream_unary(respond)


def of_generator_in_thread(ask: Ask) -> Any:
    asked = in_thread(ask)

    def respond(_request: bytes, _context: Any) -> Iterator[bytes]:
        yield asked()

    return unary_stream(respond)


KINDS = [
    of_coroutine,
    of_task,
    of_generator,
    of_stream,
    of_thread,
    of_requests_in_thread,
    of_generator_in_thread,
]


def verified(_context: Any) -> str:
    return "verified"


@pytest.mark.parametrize("customer", [None, verified], ids=["claimed", "verified"])
@pytest.mark.parametrize("others", [(), (LOW,)], ids=["alone", "among-others"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_the_second_tier_charges_the_customer_of_the_first(
    second: Second, kind: Callable[[Ask], Any], others: Any, customer: Any
) -> None:
    """It has no quotas of its own, but says who pays, or hears it."""
    async with first_tier(second, method=kind, customer=customer) as hosted:
        handler = kind(lambda: asyncio.sleep(0, b""))
        several = "stream" if handler.request_streaming else "unary"
        arity = f"{several}_{'stream' if handler.response_streaming else 'unary'}"
        begin: Any = getattr(hosted.channel, arity)(PATH)
        request = iter([b"x"]) if handler.request_streaming else b"x"
        begun = begin(request, timeout=10, metadata=(*MAIL, *others))
        if handler.response_streaming:
            said = b"".join([part async for part in begun])
        else:
            said = await begun
    pays = "mail" if customer is None else "verified"
    assert said.decode() == f"{pays};"
    assert second.customers == {pays}


async def test_a_request_of_nobody_follows_one_of_somebody(second: Second) -> None:
    """On one connection, with other words in its metadata, too."""
    async with first_tier(second) as hosted:
        for metadata in ((*MAIL, LOW), (LOW,), MAIL, ()):
            said = await call(hosted, *metadata)
            assert said == ("mail;" if MAIL[0] in metadata else "")


async def test_a_server_that_was_started_in_a_block_serves_outside_of_it(
    second: Second,
) -> None:
    with lbclient.customer("operator"):
        async with first_tier(second) as hosted:
            assert await call(hosted) == ""
            assert await call(hosted, *MAIL) == "mail;"


# --- which word counts -----------------------------------------------------------


async def test_the_call_itself_comes_first_then_block_request_and_channel(
    second: Second,
) -> None:
    config = ChannelConfig(customer="first-tier")
    async with lbclient.insecure_channel(second.address, config=config) as below:
        method: Any = below.unary_unary(PATH)

        async def respond(request: bytes, _context: Any) -> bytes:
            said = [await method(b"x", timeout=10)]
            with lbclient.customer("block"):
                said.append(await method(b"x", timeout=10))
                own = (("other", "kept"), (CUSTOMER, "itself"))
                said.append(await method(b"x", timeout=10, metadata=own))
                nobody = ((CUSTOMER, ""),)
                said.append(await method(b"x", timeout=10, metadata=nobody))
            return b" ".join(said)

        async with hosting(unary_unary(respond)) as hosted:
            assert await call(hosted, *MAIL) == "mail; block; itself; ;"
            assert await call(hosted) == "first-tier; block; itself; ;"


async def test_a_channel_may_leave_the_customer_of_the_request_behind(
    second: Second,
) -> None:
    for own in (None, "first-tier"):
        config = ChannelConfig(propagate_customer=False, customer=own)
        async with first_tier(second, config) as hosted:
            assert await call(hosted, *MAIL) == (f"{own};" if own else "")
    assert second.customers == {"first-tier"}


class Names(grpc.aio.UnaryUnaryClientInterceptor):
    """Says who pays, as an application's interceptor may."""

    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        metadata = grpc.aio.Metadata(*client_call_details.metadata or (), *MAIL)
        return await continuation(
            client_call_details._replace(metadata=metadata), request
        )


async def test_an_interceptors_word_is_the_calls_own(second: Second) -> None:
    for interceptors, said in ((None, b"block;"), ([Names()], b"mail;")):
        async with lbclient.insecure_channel(
            second.address, interceptors=interceptors
        ) as channel:
            method: Any = channel.unary_unary(PATH)
            with lbclient.customer("block"):
                assert await method(b"x", timeout=10) == said


# --- who may claim to be whom ----------------------------------------------------


@pytest.mark.parametrize("answer", [None, "", "Käufer", "a" * 101, 7])
async def test_a_claim_that_the_first_tier_does_not_confirm_is_not_handed_on(
    second: Second, answer: Any
) -> None:
    async with first_tier(second, customer=lambda _context: answer) as hosted:
        assert await call(hosted, *MAIL) == ""
    assert second.customers == set()


class Asks(grpc.aio.ServerInterceptor):
    """Asks another server about each request, such as one of tokens."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.said: list[bytes] = []

    async def intercept_service(
        self, continuation: Any, handler_call_details: Any
    ) -> Any:
        self.said.append(await self._ask())
        return await continuation(handler_call_details)


@pytest.mark.parametrize("others", [(), (LOW,)], ids=["alone", "among-others"])
async def test_a_claim_is_not_handed_on_before_the_first_tier_has_confirmed_it(
    second: Second, others: Any
) -> None:
    """By its interceptors, which run before anybody is asked who pays."""
    async with lbclient.insecure_channel(second.address) as below:
        method: Any = below.unary_unary(PATH)
        asks = Asks(lambda: method(b"x", timeout=10))
        for customer, said in ((None, b"mail;"), (verified, b"")):
            options: dict[str, Any] = {"customer": customer, "interceptors": [asks]}
            async with first_tier(second, **options) as hosted:
                await call(hosted, *MAIL, *others)
            assert asks.said.pop() == said


@pytest.mark.parametrize("name", ["", "a" * 101, "a" * 1000])
async def test_a_name_that_can_have_no_account_is_not_handed_on(
    second: Second, name: str
) -> None:
    async with first_tier(second) as hosted:
        assert await call(hosted, (CUSTOMER, name)) == ""


async def test_a_customer_out_of_quota_below_is_held_back_by_its_block() -> None:
    """The channel throttles whom its metadata name, whoever put that there."""
    async with (
        hosting(unary_unary(named), quotas={"mail": 0.0}) as hosted,
        lbclient.insecure_channel(hosted.address) as channel,
    ):
        method: Any = channel.unary_unary(PATH)
        with lbclient.customer("mail"):
            while True:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await method(b"x", timeout=10)
                if isinstance(caught.value, lbclient.OutOfQuota):
                    break
            assert "requests of 'mail'" in str(caught.value.details())
        with lbclient.customer("calendar"):
            assert await method(b"x", timeout=10) == b"calendar;"


# --- a proxy between -------------------------------------------------------------


@pytest.mark.parametrize(
    ("customer", "config", "claimed", "said"),
    [
        (None, ChannelConfig(), "mail", "mail;"),
        (verified, ChannelConfig(), "mail", "verified;"),
        (verified, ChannelConfig(), None, "verified;"),
        (lambda _context: None, ChannelConfig(), "mail", ""),
        (None, ChannelConfig(customer="batch"), None, "batch;"),
        (None, ChannelConfig(customer="batch"), "mail", "mail;"),
        (
            None,
            ChannelConfig(customer="batch", propagate_customer=False),
            "mail",
            "batch;",
        ),
    ],
)
async def test_a_proxy_hands_on_whom_its_server_serves(
    second: Second,
    customer: Any,
    config: ChannelConfig,
    claimed: str | None,
    said: str,
) -> None:
    async with lbclient.insecure_channel(second.address, config=config) as below:
        options = ServerConfig(customer=customer)
        server = lbclient.server(config=options)
        server.add_generic_rpc_handlers([Forwarder(below)])
        async with hosting(server=server) as hosted:
            metadata = [(CUSTOMER, claimed)] if claimed else []
            assert await call(hosted, *metadata) == said


async def test_a_proxy_that_only_hands_on_leaves_the_customer_as_it_is(
    second: Second,
) -> None:
    """With a channel of grpc.aio's, as the kill switch makes it."""
    async with grpc.aio.insecure_channel(second.address) as below:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Forwarder(below),))
        async with hosting(server=server) as hosted:
            assert await call(hosted, *MAIL) == "mail;"


@pytest.mark.parametrize(
    ("claimed", "highest", "below"),
    [
        ("CRITICAL_PLUS", "CRITICAL", "CRITICAL"),
        ("CRITICAL_PLUS", "CRITICAL_PLUS", "CRITICAL_PLUS"),
        ("SHEDDABLE", "CRITICAL", "SHEDDABLE"),
    ],
)
@pytest.mark.parametrize("is_proxy", [False, True], ids=["handler", "proxy"])
async def test_who_claims_to_be_more_critical_than_it_may_counts_as_less(
    claimed: str, highest: str, below: str, is_proxy: bool
) -> None:
    """At the first tier, and so at the second."""

    async def said(_request: bytes, context: Any) -> bytes:
        return str(dict(context.invocation_metadata())[CRITICALITY]).encode()

    async with (
        hosting(unary_unary(said)) as second,
        lbclient.insecure_channel(second.address) as channel,
    ):
        method: Any = channel.unary_unary(PATH)

        async def hand_on(_request: bytes, _context: Any) -> bytes:
            answer: bytes = await method(b"x", timeout=10)
            return answer

        server = lbclient.server(config=ServerConfig(highest_criticality=highest))
        if is_proxy:
            server.add_generic_rpc_handlers([Forwarder(channel)])
        handler = None if is_proxy else unary_unary(hand_on)
        async with hosting(handler, server) as first:
            assert await call(first, (CRITICALITY, claimed)) == below
