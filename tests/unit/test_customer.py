"""Who pays: by block, by request, by channel; and which names there may be."""

import asyncio

import pytest

from lbclient.core.criticality import criticality
from lbclient.core.criticality import current as current_criticality
from lbclient.core.errors import ConfigError
from lbclient.core.quotas.customer import adopt, checked, current, customer, payer


def test_the_innermost_name_holds_and_then_the_one_before() -> None:
    assert current() is None
    with customer("mail"):
        with customer("calendar"):
            assert current() == "calendar"
        assert current() == "mail"
    assert current() is None


def test_customers_and_criticalities_leave_each_other_alone() -> None:
    """Also where blocks end in another order, as those of generators may."""
    mail, low = customer("mail"), criticality("SHEDDABLE")
    with customer("outer"):
        mail.__enter__()
        low.__enter__()
        mail.__exit__()
        assert (current(), current_criticality()) == ("outer", 0)
        low.__exit__()
        assert (current(), current_criticality()) == ("outer", None)


async def test_a_decorated_coroutine_pays_within_and_in_its_tasks() -> None:
    @customer("mail")
    async def names() -> list[str | None]:
        return [current(), await asyncio.create_task(name())]

    async def name() -> str | None:
        return current()

    assert await names() == ["mail", "mail"]
    assert current() is None


@pytest.mark.parametrize("name", ["a", "a" * 100, "spiffe://prod/mail", "a b, ~!"])
def test_what_metadata_can_say_is_a_name(name: str) -> None:
    assert checked("customer", name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "a ", " a", "a" * 101, "a\n", "a\tb", "\x7f", "Käufer", b"mail", 7, None],
)
def test_any_other_name_is_an_error_that_says_what_is_right(name: object) -> None:
    with pytest.raises(ConfigError) as caught:
        customer(name)  # type: ignore[arg-type]
    assert str(caught.value).startswith("customer = ")
    assert "want a name of 1 to 100 printable ASCII characters" in str(caught.value)


def in_own_context(name: str | None, inherits: bool, block: str = "") -> str | None:
    """Who pays for a call of a request's, on a channel whose customer is "own"."""

    async def serve() -> str | None:
        adopt(name)
        if not block:
            return payer("own", inherits)
        with customer(block):
            return payer("own", inherits)

    return asyncio.run(serve())


def test_a_requests_customer_pays_for_its_calls_unless_that_is_off() -> None:
    assert in_own_context("mail", inherits=True) == "mail"
    assert in_own_context("mail", inherits=False) == "own"
    for inherits in (True, False):
        assert in_own_context("mail", inherits, block="calendar") == "calendar"
        assert in_own_context(None, inherits) == "own"


def test_a_customer_that_was_inherited_can_be_set_as_ones_own() -> None:
    async def serve() -> str | None:
        adopt("mail")
        name = current()
        assert name is not None
        with customer(name):
            return payer(None, inherits=False)

    assert asyncio.run(serve()) == "mail"


@pytest.mark.parametrize("name", ["", "a" * 101, "Käufer", "a\x7f", " a"])
def test_a_request_whose_customer_cannot_be_named_on_has_none(name: str) -> None:
    assert in_own_context(name, inherits=True) == "own"
