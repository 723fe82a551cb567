"""Configs: where values come from, and what is said of wrong ones."""

import asyncio
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lbclient.config import (
    ChannelConfig,
    ServerConfig,
    is_disabled,
    settings,
    sources,
)
from lbclient.core.criticality import Criticality
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import FleetUsage
from lbclient.server.quotas.quota_enforcer import find_store
from tests import needs


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
        ("spill_above", 1.0, "a number, 0.1 to 0.95"),
        ("spill_above", "high", "a number, 0.1 to 0.95"),
        ("max_attempts", 0, "a whole number, 1 to 5"),
        ("max_attempts", 6, "a whole number, 1 to 5"),
        ("max_attempts", True, "a whole number"),
        ("propagate_deadline", 1, "true or false"),
        ("when_full", "panic", "one of wait, fail"),
        ("health", "maybe", "one of auto, watch, off"),
        ("max_waiting", -1, "at least 0"),
        ("health_interval", 0.0, "0.2 to 3600"),
        ("health_interval", float("nan"), "0.2 to 3600"),
        ("health_interval", float("inf"), "0.2 to 3600"),
        ("health_interval", "2", "seconds"),
        ("resolve_interval", -1, "0.1 to 86400"),
        ("empty_after", -1, "0 to 86400"),
        ("connect_backoff", 0, "0.01 to 3600"),
        ("max_connect_backoff", 0.05, "no less than connect_backoff, 0.1 s"),
        ("seed", "x", "a whole number or None"),
        (
            "metric_names_for_computing_utilization",
            "pool",
            "'named_metrics.pool', 'utilization.disk', 'mem_utilization'",
        ),
        ("metric_names_for_computing_utilization", "named_metrics.", "want names such"),
        ("metric_names_for_computing_utilization", 7, "want names such as"),
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
        ("utilization", asyncio.sleep, "no coroutine"),
        ("runnable", 3, "a callable"),
        ("smoothing", 0, "0.01 to 3600"),
        ("report_interval", 0.01, "0.1 to 3600"),
        ("orca_min_interval", float("inf"), "0.1 to 3600"),
        ("lame_duck_period", -1, "0 to 86400"),
        ("lame_duck_quiet", "1", "seconds"),
        ("udp_health", "yes", "true or false"),
        ("udp_health", 1, "true or false"),
        ("customer", "tls", "mtls, or a callable"),
        ("customer", asyncio.sleep, "no coroutine is awaited"),
        ("quotas", {"": 1.0}, "customers' names"),
        ("default_quota", True, "CPU seconds a second"),
        ("default_quota", float("nan"), "CPU seconds a second"),
        ("default_quota", {"SHEDDABLE": 1.0}, "a 'total', the limit of"),
        ("default_quota", {"total": 1, "LOW": 1.0}, "default_quota = 'LOW': want one"),
        ("default_quota", {"total": 1, "SHEDDABLE": 2}, r"\['SHEDDABLE'\] = 2.*0 to 1"),
        ("signals", ["disk"], r"signals = \['disk'\]: want callables .*, by name"),
        ("signals", {"": float}, "signals = '': want names"),
        ("signals", {7: float}, "signals = 7: want names"),
        (
            "signals",
            {"disk": float, "queue delay": float},
            "^signals = 'queue delay': want another name: 'load', 'CPU utilization',"
            " 'memory', 'concurrency', 'queue delay' are the server's own signals$",
        ),
        ("signals", {"disk": 0.5}, r"signals\['disk'\] = 0.5: want a callable"),
        ("signals", {"disk": asyncio.sleep}, "no coroutine"),
        ("named_metrics", 7, "named_metrics = 7: want callables .* up to 16 names"),
        ("named_metrics", {"load": float}, "= 'load': want another name"),
        ("named_metrics", {"p": 1}, r"named_metrics\['p'\] = 1: want a callable"),
        ("named_metrics", {"é" * 21: float}, "= 'é{21}': want names of up to 40 "),
        ("named_metrics", {"a\nb": float}, "of up to 40 bytes, all printable"),
        (
            "named_metrics",
            {f"pool {number}": float for number in range(17)},
            "named_metrics = {'pool .*: want at most 16 names, not 17",
        ),
        ("quota_store", 7, "redis://host:port/db.fleet=name"),
        ("quota_store", "", "redis://host:port"),
        ("quota_store", "http://cache", "redis://host:port"),
        ("quota_store", "redis://", "redis://host:port"),
        ("quota_store", "redis://cache:0", "redis://host:port"),
        ("quota_store", "redis://cache:70000", "redis://host:port"),
        ("quota_store", "redis://cache/zero", "redis://host:port"),
        ("quota_store", "unix://", "redis://host:port"),
        (
            "quota_store",
            "redis://cache?flit=x",
            "fleet=name, or rediss:// or unix:// of that kind, and no other option",
        ),
        ("quota_store", "redis://h:6379/0?flet=x", "option 'flet'; perhaps 'fleet'"),
        ("quota_store", "redis://h:6379/0?DB=1", "option 'DB'; perhaps 'db'"),
        ("quota_store", "redis://cache?fleet=a:b", "the fleet's name"),
        ("udp_secret", None, "text"),
        ("udp_secret", "short", "at least 16 bytes"),
    ],
)
def test_a_wrong_server_setting_is_named_with_its_value_and_bound(
    field: str, value: Any, want: str
) -> None:
    with pytest.raises(ConfigError, match=want):
        ServerConfig(**{field: value})


def test_a_metric_has_no_name_of_a_signal() -> None:
    """The report would have the signal's value."""
    own: Any = {"signals": {"pool": float}, "named_metrics": {"pool": float}}
    with pytest.raises(ConfigError, match="named_metrics = 'pool': want another name"):
        ServerConfig(**own)
    most: Any = {f"{number:040}": float for number in range(16)}
    assert ServerConfig(named_metrics=most, signals=own["signals"]).signals


def test_a_default_quota_may_be_by_criticality(tmp_path: Path) -> None:
    said = {"total": 4.0, "SHEDDABLE": 1.0}
    assert ServerConfig(default_quota=said).default_quota == said
    path = tmp_path / "lb.toml"
    path.write_text("[server]\ndefault_quota = { total = 4.0, SHEDDABLE = 1.0 }")
    assert ServerConfig.from_toml(str(path)).default_quota == said
    environ = {"LBCLIENT_DEFAULT_QUOTA": "4"}
    assert ServerConfig.from_environment(environ).default_quota == 4.0
    environ = {"LBCLIENT_DEFAULT_QUOTA": "{}"}
    with pytest.raises(ConfigError, match=r"'{}': want CPU seconds"):
        ServerConfig.from_environment(environ)


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        ({"/a.B/C": 0}, "max_attempts['/a.B/C'] = 0: want a whole number, 1 to 5"),
        ({"/a.B/*": "2"}, "max_attempts['/a.B/*'] = '2': want a whole number, 1 to 5"),
        (
            {"a.B/C": 2},
            "max_attempts = 'a.B/C': want paths such as '/package.Service/Method' or "
            "'/package.Service/*'",
        ),
    ],
)
def test_wrong_attempts_of_a_method_are_named(attempts: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ChannelConfig(max_attempts=attempts)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "path", ["/a.B/*Foo", "/a.B/F*o", "/a.*/Foo", "/*/*", "/a.B/**"]
)
def test_a_star_stands_for_all_methods_of_a_service_and_nothing_else(path: str) -> None:
    want = f"{path!r}: want paths such as '/package.Service/Method' or "
    values: dict[str, Any] = {"idempotent": (path,), "max_attempts": {path: 2}}
    for field, value in values.items():
        with pytest.raises(ConfigError, match=re.escape(f"{field} = {want}")):
            ChannelConfig(**{field: value})


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"eu-a": 1.2}, "spill_above['eu-a'] = 1.2: want a number, 0.1 to 0.95"),
        ({"eu-a": "0.8"}, "spill_above['eu-a'] = '0.8': want a number, 0.1 to 0.95"),
        ({7: 0.8}, "spill_above = 7: want names of zones"),
    ],
)
def test_limits_of_zones_are_checked(limits: dict[Any, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ChannelConfig(spill_above=limits)
    assert str(caught.value) == said


def test_limits_of_zones_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text("[channel.spill_above]\neu-a = 0.8\neu-b = 0.6\n")
    environ = {"LBCLIENT_CONFIG": str(path)}
    config = ChannelConfig.from_environment(environ)
    assert config.spill_above == {"eu-a": 0.8, "eu-b": 0.6}
    environ["LBCLIENT_SPILL_ABOVE"] = "0.5"
    assert ChannelConfig.from_environment(environ).spill_above == 0.5


def test_attempts_of_methods_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text('[channel.max_attempts]\n"/a.B/C" = 1\n"/a.B/*" = 2\n')
    config = ChannelConfig.from_toml(str(path))
    assert config.max_attempts == {"/a.B/C": 1, "/a.B/*": 2}
    environ = {
        "LBCLIENT_CONFIG": str(path),
        "LBCLIENT_MAX_ATTEMPTS": "1",
        "LBCLIENT_PROPAGATE_DEADLINE": "true",
    }
    config = ChannelConfig.from_environment(environ)
    assert (config.max_attempts, config.propagate_deadline) == (1, True)
    with pytest.raises(ConfigError, match=r"LBCLIENT_MAX_ATTEMPTS = '9'.*1 to 5"):
        ChannelConfig.from_environment({"LBCLIENT_MAX_ATTEMPTS": "9"})


@pytest.mark.parametrize("said", ["Sheddable_plus", Criticality.SHEDDABLE_PLUS])
def test_a_criticality_is_known_by_its_name_in_capitals(said: Any) -> None:
    assert ChannelConfig(criticality=said).criticality == "SHEDDABLE_PLUS"
    environ = {"LBCLIENT_CRITICALITY": "sheddable_plus"}
    assert ChannelConfig.from_environment(environ).criticality == "SHEDDABLE_PLUS"


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
        "LBCLIENT_CUSTOMER": "mtls",
        "LBCLIENT_CHANNEL_CUSTOMER": "mail",
        "LBCLIENT_PROPAGATE_CUSTOMER": "false",
        "LBCLIENT_QUOTA_STORE": "rediss://cache:6380/1?fleet=search",
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
        customer="mail",
        propagate_customer=False,
    )
    assert ServerConfig.from_environment(environ) == ServerConfig(
        smoothing=1.5,
        customer="mtls",
        quota_store="rediss://cache:6380/1?fleet=search",
    )


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "LBCLIENT_SUBSET_SIZE",
            "many",
            "LBCLIENT_SUBSET_SIZE = 'many': want a whole number, 1 to 1000000",
        ),
        ("LBCLIENT_SUBSET_SIZE", "0", "LBCLIENT_SUBSET_SIZE = '0': want a whole"),
        ("LBCLIENT_PICKER", "best", "LBCLIENT_PICKER = 'best': want one of"),
        (
            "LBCLIENT_CONNECT_BACKOFF",
            "9",
            "LBCLIENT_CONNECT_BACKOFF: max_connect_backoff = 5.0: want no less than",
        ),
        ("LBCLIENT_UTILIZATION", "0.5", "to be set in code: it is not text"),
        ("LBCLIENT_QUOTAS", "1", "LBCLIENT_QUOTAS = '1': want to be set in code or TO"),
        ("LBCLIENT_CUSTOMER", "tls", "LBCLIENT_CUSTOMER = 'tls': want mtls"),
        ("LBCLIENT_CUSTOMER", "mail", "; LBCLIENT_CHANNEL_CUSTOMER is who pays for a"),
        (
            "LBCLIENT_CHANNEL_CUSTOMER",
            "mail ",
            "LBCLIENT_CHANNEL_CUSTOMER = 'mail ': want a name of 1 to 100 printable",
        ),
        ("LBCLIENT_QUOTA_STORE", "cache:6379", "LBCLIENT_QUOTA_STORE = 'cache:6379'"),
        ("LBCLIENT_CONFIG", "/no/such/file", "a readable TOML file"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, said: str) -> None:
    own = {field.variable for field in settings(ServerConfig)}
    config = ServerConfig if variable in own else ChannelConfig
    with pytest.raises(ConfigError) as caught:
        config.from_environment({variable: value})
    assert said in str(caught.value)


@pytest.mark.parametrize("config", [ChannelConfig, ServerConfig])
def test_a_number_that_is_none_is_refused_by_its_field(
    config: type[ChannelConfig | ServerConfig],
) -> None:
    for field in settings(config):
        if type(field.default) in (int, float, bool):
            variable = f"LBCLIENT_{field.name.upper()}"
            with pytest.raises(ConfigError, match=f"^{variable} = 'ten': want "):
                config.from_environment({variable: "ten"})


def test_who_pays_for_calls_is_another_setting_than_who_pays_for_requests(
    tmp_path: Path,
) -> None:
    """Of one name, each in its table, but in an environment they meet."""
    path = tmp_path / "lbclient.toml"
    path.write_text("[channel]\ncustomer = 'mail'\n\n[server]\ncustomer = 'mtls'\n")
    environ = {"LBCLIENT_CONFIG": str(path)}
    assert ChannelConfig.from_environment(environ).customer == "mail"
    assert ServerConfig.from_environment(environ).customer == "mtls"
    environ["LBCLIENT_CHANNEL_CUSTOMER"] = ""  # as Kubernetes sets for want of a label
    assert ChannelConfig.from_environment(environ).customer == "mail"
    environ["LBCLIENT_CHANNEL_CUSTOMER"] = "batch"
    channel = ChannelConfig.from_environment(environ)
    assert channel.customer == "batch"
    assert channel.sources()["customer"] == "LBCLIENT_CHANNEL_CUSTOMER"
    named = channel.where_to_mend(ConfigError("customer", "batch", "another"))
    assert named.field == "LBCLIENT_CHANNEL_CUSTOMER"


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
        (
            "[channel]\nsubzet = 7\n",
            "PATH: unknown setting 'subzet' in [channel]; perhaps subset is meant",
        ),
        (
            "[channel]\nx = 7\n",
            "PATH: unknown setting 'x' in [channel]; want one of active_limit",
        ),
        ("[channel]\nsubset = 7\n", "PATH: subset = 7: want a name"),
        (
            "[channel]\nsubset_size = '20'\n",
            "PATH: subset_size = '20': want a whole number, 1 to 1000000, "
            "without quotes",
        ),
        (
            '[channel."a:1"]\nsubset_size = "20"\n',
            "subset_size = '20': want a whole number, 1 to 1000000, without quotes",
        ),
        ("[channel]\nsubset_size = 'x'\n", "PATH: subset_size = 'x'"),
        (
            "[channel.max_attempts]\n'/a/b' = 9\n",
            "PATH: max_attempts['/a/b'] = 9: want",
        ),
        ("[channel]\nconnect_backoff = 9\n", "PATH: max_connect_backoff = 5.0: want"),
        ("channel = 7\n", "PATH: channel = 7: want a table"),
        (
            "subset_size = 3\n",
            "PATH: name = 'subset_size': want it below [channel] or [server]",
        ),
        ("[channel\n", "LBCLIENT_CONFIG = 'PATH': want a readable TOML file (Expected"),
        (
            "[channel]\nzone = '\xe9'",
            "LBCLIENT_CONFIG = 'PATH': want a readable TOML file",
        ),
        ("[chanel]\nsubset_size = 7\n", "PATH: table = 'chanel': want one of channel"),
        (
            f"[channel]\nzone = {'[' * 100_000}",
            "LBCLIENT_CONFIG = 'PATH': want a readable TOML file",
        ),
        (
            f"[channel]\nzone.{'.'.join('a' * 2000)} = 1\n",
            "PATH: zone = {'a': {'a': {",
        ),
        (
            f"[channel]\nzone = {'[' * 100}{']' * 100}",
            "PATH: zone = [[[",
        ),
        (
            f"# {'x' * 2**20}\n",
            "LBCLIENT_CONFIG = 'PATH': want a readable TOML file (more than 1,048,576",
        ),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "lbclient.toml"
    path.write_text(text, encoding="latin-1")
    reads: list[Callable[[], object]] = [
        lambda: ChannelConfig.from_toml(str(path)),
        lambda: ChannelConfig.from_environment({"LBCLIENT_CONFIG": str(path)}),
    ]
    for read in reads:
        with pytest.raises(ConfigError) as caught:
            read()
        assert said.replace("PATH", str(path)) in str(caught.value)


def test_a_variable_that_beats_a_file_is_the_one_to_mend(tmp_path: Path) -> None:
    path = tmp_path / "lbclient.toml"
    path.write_text("[channel]\nsubset_size = 7\n")
    environ = {"LBCLIENT_CONFIG": str(path), "LBCLIENT_SUBSET_SIZE": "0"}
    with pytest.raises(ConfigError, match=r"^LBCLIENT_SUBSET_SIZE = '0': want a whole"):
        ChannelConfig.from_environment(environ)


def test_what_code_says_is_no_fault_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lbclient.toml"
    path.write_text("[channel]\nsubset_size = 7\n")
    with pytest.raises(ConfigError, match=r"^seed = 'x': want"):
        ChannelConfig.from_environment({"LBCLIENT_CONFIG": str(path)}, seed="x")


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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *((text, True) for text in ("1", "true", "yes", "on", "TRUE", "Yes", " on ")),
        *((text, False) for text in ("", "0", "false", "no", "off", "False", "NO")),
    ],
)
def test_the_kill_switch_takes_the_usual_words(text: str, wanted: bool) -> None:
    assert is_disabled({"LBCLIENT_DISABLE": text}) is wanted
    assert is_disabled({}) is False


@pytest.mark.parametrize("text", ["maybe", "2", "y", "disable"])
def test_the_kill_switch_is_neither_on_nor_off_by_other_words(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        is_disabled({"LBCLIENT_DISABLE": text})
    assert str(caught.value) == (
        f"LBCLIENT_DISABLE = {text!r}: want one of 1, true, yes, on; "
        "or 0, false, no, off or nothing to enable"
    )


def test_a_secret_is_told_to_nobody(tmp_path: Path) -> None:
    assert SECRET not in repr(ServerConfig(udp_secret=SECRET))
    path = tmp_path / "lbclient.toml"
    path.write_text(f"[server]\nudp_secret = '{SHORT}'\n")
    tries: list[Callable[[], object]] = [
        lambda: ServerConfig(udp_secret=SHORT),
        lambda: ServerConfig(udp_secret=SHORT[1:] + "\udcff"),
        lambda: ServerConfig.from_environment({"LBCLIENT_UDP_SECRET": SHORT}),
        lambda: ServerConfig.from_toml(str(path)),
    ]
    for make in tries:
        with pytest.raises(ConfigError, match=f"<{len(SHORT)} characters>") as caught:
            make()
        assert SHORT[1:] not in str(caught.value)


def test_a_secret_whose_name_is_misspelt_is_told_to_nobody(tmp_path: Path) -> None:
    paths = [tmp_path / "name.toml", tmp_path / "table.toml"]
    paths[0].write_text(f"[server]\nudp_secrit = '{SECRET}'\n")
    paths[1].write_text(f"[servr]\nudp_secret = '{SECRET}'\n")
    places = [{"LBCLIENT_CONFIG": str(path)} for path in paths]
    for environ in places:
        with pytest.raises(ConfigError, match=r"perhaps|want one of") as caught:
            ServerConfig.from_environment(environ)
        assert SECRET not in str(caught.value)


@pytest.fixture
def warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[..., list[str]]:
    """What is warned of while both configs are read, twice, from these variables."""
    monkeypatch.setattr(sources, "_warned", set())

    def read(**environ: str) -> list[str]:
        for config in (ChannelConfig, ServerConfig) * 2:
            assert config.from_environment(environ) == config()
        return [record.getMessage() for record in caplog.records]

    return read


NOTHING = "is no setting of lbclient and has no effect"


def test_a_misspelt_variable_is_warned_of_once_and_what_is_meant_is_named(
    warned: Callable[..., list[str]],
) -> None:
    assert warned(LBCLIENT_SUBSET_SISE="5") == [
        f"LBCLIENT_SUBSET_SISE {NOTHING}; perhaps LBCLIENT_SUBSET_SIZE is meant"
    ]


def test_an_applications_own_variable_is_warned_of_once(
    warned: Callable[..., list[str]],
) -> None:
    told = warned(LBCLIENT_TARGET="dns:///search:50051", LBCLIENT_X="1")
    assert told == [f"LBCLIENT_TARGET {NOTHING}", f"LBCLIENT_X {NOTHING}"]


def test_a_secret_in_a_misspelt_variable_is_told_to_nobody(
    warned: Callable[..., list[str]],
) -> None:
    [told] = warned(LBCLIENT_UDP_SECRIT=SECRET)
    assert "LBCLIENT_UDP_SECRET is meant" in told
    assert SECRET not in told


@pytest.mark.parametrize("service", ["", "_PROXY", "_SUBSET_SIZE", "_A_1"])
def test_what_kubernetes_says_of_a_service_is_nothing_of_ours(
    warned: Callable[..., list[str]], service: str
) -> None:
    """All that a Service of two ports, one of them named, puts into each pod."""
    own, address = f"LBCLIENT{service}", "tcp://10.0.0.1:50051"
    links = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "50051",
        "SERVICE_PORT_GRPC_WEB": "50051",
        "PORT": address,
        "PORT_50051_TCP": address,
        "PORT_50051_TCP_PROTO": "tcp",
        "PORT_50051_TCP_PORT": "50051",
        "PORT_50051_TCP_ADDR": "10.0.0.1",
        "PORT_53_UDP": "udp://10.0.0.1:53",
    }
    assert not warned(**{f"{own}_{name}": text for name, text in links.items()})


@pytest.mark.parametrize("place", ["cache:70000", "cache/zero", "cache?flit=x", ":x"])
def test_a_password_of_a_quota_store_is_told_to_nobody(place: str) -> None:
    good = f"redis://me:{SECRET}@cache:6379"
    assert SECRET not in repr(ServerConfig(quota_store=good))
    url = f"redis://me:{SECRET}@{place}"
    tries: list[Callable[[], object]] = [
        lambda: ServerConfig(quota_store=url),
        lambda: ServerConfig.from_environment({"LBCLIENT_QUOTA_STORE": url}),
    ]
    for make in tries:
        with pytest.raises(ConfigError, match="redis://") as caught:
            make()
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_quota_store_may_be_an_object_that_exchanges() -> None:
    class Store:
        async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
            return FleetUsage(1, usage, usage)

    store = Store()
    assert ServerConfig(quota_store=store).quota_store is store


def test_a_quota_store_needs_redis_py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigError, match=r"pip install 'lbclient\[redis\]'"):
        find_store("redis://cache", None)


def test_a_config_knows_where_each_value_is_from(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text('[channel]\npicker = "p2c"\nsubset_size = 7\nidempotent = ["/a/b"]')
    environ = {"LBCLIENT_CONFIG": str(path), "LBCLIENT_SUBSET_SIZE": "9"}
    read = ChannelConfig.from_environment(environ)
    config = replace(read, active_limit=50)
    assert config.subset_size == 9
    sources = config.sources()
    assert sources["subset_size"] == "LBCLIENT_SUBSET_SIZE"
    assert sources["picker"] == sources["idempotent"] == str(path)
    assert sources["active_limit"] == "code"
    assert sources["seed"] == "default"
    assert replace(config, subset_size=8).sources()["subset_size"] == "code"
    assert ChannelConfig.from_toml(str(path)).sources()["picker"] == str(path)


def test_where_values_are_from_makes_no_two_configs_different() -> None:
    read = ChannelConfig.from_environment({"LBCLIENT_SUBSET_SIZE": "9"})
    assert read == ChannelConfig(subset_size=9)
    assert repr(read) == repr(ChannelConfig(subset_size=9))
    assert list(read.sources()) == [field.name for field in settings(ChannelConfig)]


def test_a_redis_store_does_not_show_where_it_is() -> None:
    needs.module("redis.asyncio")
    store = find_store("redis://me:secret@cache:6379/0?fleet=search", None)
    assert repr(store) == "<fleet search in a Redis that was told of 0 customers>"
