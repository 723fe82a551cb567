"""Configs: where values come from, and what is said of wrong ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lbclient.config import ChannelConfig, ServerConfig
from lbclient.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value", "want"),
    [
        ("subset_size", 0, "1 to 1000000"),
        ("subset_size", 2.5, "a whole number"),
        ("subset_size", True, "a whole number"),
        ("subset", "best", "one of auto, random, round_robin, "),
        ("subset", None, "a name or an order of endpoints"),
        ("client_id", 7, "text"),
        ("task_index", -1, "a whole number, at least 0"),
        ("task_index", 1.0, "a whole number"),
        ("task_index", True, "a whole number"),
        ("client_job", None, "text"),
        ("picker", 7, "a name or a factory"),
        ("slow_start", -1.0, "0 to 3600"),
        ("active_limit", 0, "at least 1"),
        ("when_full", "panic", "one of wait, fail"),
        ("max_waiting", -1, "at least 0"),
        ("health_interval", 0.0, "0.2 to 3600"),
        ("health_interval", float("nan"), "0.2 to 3600"),
        ("health_interval", float("inf"), "0.2 to 3600"),
        ("health_interval", "2", "seconds"),
        ("resolve_interval", -1, "0.1 to 86400"),
        ("empty_after", -1, "0 to 86400"),
        ("connect_backoff", 0, "0.01 to 3600"),
        ("max_connect_backoff", 0.05, "0.1 to 3600"),
        ("seed", "x", "a whole number or None"),
    ],
)
def test_a_wrong_channel_setting_is_named_with_its_value_and_bound(
    field: str, value: Any, want: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ChannelConfig(**{field: value})
    assert caught.value.field == field
    assert caught.value.value is value
    assert want in str(caught.value)
    assert str(caught.value).startswith(f"{field} = {value!r}")


@pytest.mark.parametrize(
    ("field", "value", "want"),
    [
        ("utilization", 0.5, "a callable"),
        ("runnable", 3, "a callable"),
        ("smoothing", 0, "0.01 to 3600"),
        ("report_interval", 0.01, "0.1 to 3600"),
        ("orca_min_interval", float("inf"), "0.1 to 3600"),
        ("lame_duck_period", -1, "0 to 86400"),
        ("lame_duck_quiet", "1", "seconds"),
        ("udp_health", "yes", "true or false"),
        ("udp_health", 1, "true or false"),
        ("udp_secret", None, "text"),
        ("udp_secret", "short", "at least 16 bytes"),
    ],
)
def test_a_wrong_server_setting_is_named_with_its_value_and_bound(
    field: str, value: Any, want: str
) -> None:
    with pytest.raises(ConfigError, match=want):
        ServerConfig(**{field: value})


def test_variables_set_what_is_theirs() -> None:
    environ = {
        "LBCLIENT_SUBSET_SIZE": "5",
        "LBCLIENT_HEALTH_INTERVAL": "3",
        "LBCLIENT_PICKER": "round_robin",
        "LBCLIENT_WHEN_FULL": "fail",
        "LBCLIENT_SEED": "7",
        "LBCLIENT_SUBSET": "ringsteady",
        "LBCLIENT_TASK_INDEX": "3",
        "LBCLIENT_CLIENT_JOB": "web",
        "LBCLIENT_SMOOTHING": "1.5",
        "LBCLIENT_DISABLE": "0",
        "HOME": "/",
    }
    channel = ChannelConfig.from_environment(environ)
    assert channel == ChannelConfig(
        subset_size=5,
        health_interval=3.0,
        picker="round_robin",
        when_full="fail",
        seed=7,
        subset="ringsteady",
        task_index=3,
        client_job="web",
    )
    assert ServerConfig.from_environment(environ) == ServerConfig(smoothing=1.5)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("LBCLIENT_SUBSET_SIZE", "many", "LBCLIENT_SUBSET_SIZE = 'many': want"),
        ("LBCLIENT_SUBSET_SIZE", "0", "LBCLIENT_SUBSET_SIZE = '0': want a whole"),
        ("LBCLIENT_PICKER", "best", "LBCLIENT_PICKER = 'best': want one of"),
        ("LBCLIENT_CONNECT_BACKOFF", "9", "max_connect_backoff = 5.0: want"),
        ("LBCLIENT_SUBSET_SISE", "5", "LBCLIENT_SUBSET_SISE = '5': want one of"),
        ("LBCLIENT_UTILIZATION", "0.5", "to be set in code"),
        ("LBCLIENT_CONFIG", "/no/such/file", "a readable TOML file"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, said: str) -> None:
    config = ServerConfig if variable == "LBCLIENT_UTILIZATION" else ChannelConfig
    with pytest.raises(ConfigError) as caught:
        config.from_environment({variable: value})
    assert said in str(caught.value)


def test_a_file_sets_both_and_a_variable_beats_it(tmp_path: Path) -> None:
    path = tmp_path / "lbclient.toml"
    path.write_text("[channel]\nsubset_size = 7\n\n[server]\nsmoothing = 3\n")
    environ = {"LBCLIENT_CONFIG": str(path), "LBCLIENT_ACTIVE_LIMIT": "9"}
    channel = ChannelConfig.from_environment(environ)
    assert (channel.subset_size, channel.active_limit) == (7, 9)
    beaten = ChannelConfig.from_environment(environ | {"LBCLIENT_SUBSET_SIZE": "8"})
    assert beaten.subset_size == 8
    assert ServerConfig.from_toml(str(path)).smoothing == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[channel]\nsubzet = 7\n", "subzet = 7: want one of"),
        ("[channel]\nsubset = 7\n", "subset = 7: want a name"),
        ("[channel]\nsubset_size = 'x'\n", "subset_size = 'x'"),
        ("channel = 7\n", "channel = 7: want a table"),
        ("[channel\n", "a readable TOML file"),
        ("[chanel]\nsubset_size = 7\n", "chanel"),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "lbclient.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        ChannelConfig.from_toml(str(path))
    assert said in str(caught.value)


SECRET = "long enough to be a secret"
SHORT = "too short"


@pytest.mark.parametrize(
    ("text", "wanted"), [("true", True), ("1", True), ("False", False), ("0", False)]
)
def test_a_switch_is_read_from_a_variable(text: str, wanted: bool) -> None:
    environ = {"LBCLIENT_UDP_HEALTH": text}
    assert ServerConfig.from_environment(environ).udp_health is wanted


def test_a_switch_is_neither_on_nor_off_by_other_words() -> None:
    with pytest.raises(ConfigError, match="LBCLIENT_UDP_HEALTH = 'on': want true or"):
        ServerConfig.from_environment({"LBCLIENT_UDP_HEALTH": "on"})


def test_a_secret_is_told_to_nobody(tmp_path: Path) -> None:
    assert SECRET not in repr(ServerConfig(udp_secret=SECRET))
    path = tmp_path / "lbclient.toml"
    path.write_text(f"[server]\nudp_secret = '{SHORT}'\n")
    tries: list[Callable[[], object]] = [
        lambda: ServerConfig(udp_secret=SHORT),
        lambda: ServerConfig.from_environment({"LBCLIENT_UDP_SECRET": SHORT}),
        lambda: ServerConfig.from_toml(str(path)),
    ]
    for make in tries:
        with pytest.raises(ConfigError, match=f"<{len(SHORT)} characters>") as caught:
            make()
        assert SHORT not in str(caught.value)
