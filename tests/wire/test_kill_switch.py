"""`LBCLIENT_DISABLE`: grpc.aio's own channels and servers, with a line in the log."""

import logging
from collections.abc import Callable
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.core.errors import ConfigError

MAKERS: dict[str, Callable[[], Any]] = {
    "channel": lambda: lbclient.insecure_channel("127.0.0.1:1"),
    "secure channel": lambda: lbclient.secure_channel(
        "127.0.0.1:1", grpc.ssl_channel_credentials()
    ),
    "server": lbclient.server,
}


async def close(made: Any) -> None:
    await (made.close() if hasattr(made, "close") else made.stop(None))


@pytest.mark.parametrize("kind", MAKERS)
async def test_who_is_disabled_says_so_in_one_line(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient")
    monkeypatch.setenv("LBCLIENT_DISABLE", "yes")
    made = MAKERS[kind]()
    assert not type(made).__module__.startswith("lbclient")
    (record,) = (r for r in caplog.records if "LBCLIENT_DISABLE" in r.getMessage())
    assert record.levelno == logging.INFO
    assert "is grpc.aio's own" in record.getMessage()
    await close(made)


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_word_for_off_disables_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient")
    monkeypatch.setenv("LBCLIENT_DISABLE", "false")
    made = MAKERS[kind]()
    assert type(made).__module__.startswith("lbclient")
    assert not [r for r in caplog.records if "LBCLIENT_DISABLE" in r.getMessage()]
    await close(made)


@pytest.mark.parametrize("kind", MAKERS)
def test_any_other_word_is_refused_by_what_it_would_disable(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBCLIENT_DISABLE", "maybe")
    with pytest.raises(
        ConfigError, match=r"^LBCLIENT_DISABLE = 'maybe': want one of 1"
    ):
        MAKERS[kind]()
