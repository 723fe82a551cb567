"""Tables of a settings file that are for the channels of one target or name only."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.errors import ConfigError

TARGET = "dns:///search.prod:50051"

FILE = """
[channel]
subset_size = 2
active_limit = 2
max_waiting = 2
settle_after = 2
max_attempts = { "/a.B/C" = 1, "/a.B/D" = 1 }

[channel."dns:///search.prod:50051"]
subset_size = 3
active_limit = 3
max_waiting = 3

[channel."dns:///search.prod:50051".max_attempts]
"/a.B/C" = 2

[channel.batch]
subset_size = 4
active_limit = 4

[server]
smoothing = 3
"""

ENVIRON = {"LBCLIENT_SUBSET_SIZE": "5"}


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "lb.toml"
        path.write_text(text)
        return str(path)

    return write


def test_code_beats_variable_name_target_channel_and_default(
    file: Callable[[str], str],
) -> None:
    environ = {"LBCLIENT_CONFIG": file(FILE), **ENVIRON}
    config = ChannelConfig.from_environment(
        environ, target=TARGET, name="batch", settle_after=9.0, replace_after=9.0
    )
    assert config.subset_size == 5  # the variable
    assert config.active_limit == 4  # the table of the name
    assert config.max_waiting == 3  # the table of the target
    assert config.settle_after == 2  # [channel]
    assert config.replace_after == 9.0  # a default of the caller's
    assert config.slow_start == ChannelConfig().slow_start
    assert replace(config, subset_size=6).subset_size == 6


def test_of_each_value_the_table_is_told(file: Callable[[str], str]) -> None:
    path = file(FILE)
    environ = {"LBCLIENT_CONFIG": path, **ENVIRON}
    config = ChannelConfig.from_environment(environ, target=TARGET, name="batch")
    told = replace(config, slow_start=1.0).sources()
    assert told["subset_size"] == "LBCLIENT_SUBSET_SIZE"
    assert told["active_limit"] == f'{path} [channel."batch"]'
    assert told["max_waiting"] == f'{path} [channel."{TARGET}"]'
    assert told["settle_after"] == path
    assert told["slow_start"] == "code"
    assert told["health"] == "default"


@pytest.mark.parametrize(
    ("target", "name", "active_limit"),
    [
        ("", "", 2),
        (TARGET, "", 3),
        ("", "batch", 4),
        (TARGET, "other", 3),
        ("batch", "", 4),
        ("search.prod:50051", "", 2),  # means the same, and is another text
        (TARGET.upper(), "", 2),
    ],
)
def test_a_table_is_for_the_target_or_the_name_as_it_is_written(
    file: Callable[[str], str], target: str, name: str, active_limit: int
) -> None:
    config = ChannelConfig.from_toml(file(FILE), target=target, name=name)
    assert config.active_limit == active_limit


def test_a_setting_that_is_a_table_is_replaced_and_not_merged(
    file: Callable[[str], str],
) -> None:
    path = file(FILE)
    assert ChannelConfig.from_toml(path).max_attempts == {"/a.B/C": 1, "/a.B/D": 1}
    config = ChannelConfig.from_toml(path, target=TARGET)
    assert config.max_attempts == {"/a.B/C": 2}


def test_a_config_knows_which_tables_are_for_others(
    file: Callable[[str], str],
) -> None:
    path = file(FILE)
    config = ChannelConfig.from_toml(path, target=TARGET)
    for same in (config, replace(config, seed=7), pickle.loads(pickle.dumps(config))):
        assert same.tables() == {
            f'{path} [channel."{TARGET}"]': True,
            f'{path} [channel."batch"]': False,
        }
    assert ChannelConfig().tables() == {}


def test_a_server_has_no_tables_of_channels(file: Callable[[str], str]) -> None:
    assert ServerConfig.from_toml(file(FILE)).smoothing == 3
    with pytest.raises(
        ConfigError, match=r"unknown setting 'a' in \[server\]; want one of"
    ):
        ServerConfig.from_toml(file("[server.a]\nsmoothing = 3\n"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[channel."a:1"]\nsubzet_size = 7\n',
            "PATH: unknown setting 'subzet_size' in [channel.\"a:1\"]; "
            "perhaps subset_size is meant",
        ),
        (
            '[channel."a:1"]\nx = 7\n',
            "PATH: unknown setting 'x' in [channel.\"a:1\"]; "
            "want one of active_limit, ",
        ),
        (
            '[channel."a:1"]\nsubset_size = 0\n',
            'PATH [channel."a:1"]: subset_size = 0: want a whole number, 1 to 1000000',
        ),
        (
            "[channel.search.prod]\nsubset_size = 7\n",
            "PATH: unknown setting 'prod' in [channel.\"search\"]; "
            'want quotes around the whole: [channel."search.prod"]',
        ),
        (
            "[channel.search.max_atempts]\n'/a.B/C' = 1\n",
            "PATH: unknown setting 'max_atempts' in [channel.\"search\"]; "
            "perhaps max_attempts is meant",
        ),
        (
            "[channel.max_atempts]\n'/a.B/C' = 1\n",
            "PATH: unknown setting 'max_atempts' in [channel]; perhaps max_attempts",
        ),
        (
            "[channel.zones]\nsubzet_size = 1\n",
            "PATH: unknown setting 'subzet_size' in [channel.\"zones\"]; "
            "perhaps subset_size is meant",
        ),
        ("[channel.zone]\nsubset_size = 1\n", "PATH: zone = {'subset_size': 1}: want"),
    ],
)
def test_a_mistake_in_a_table_is_found_also_by_channels_of_other_targets(
    file: Callable[[str], str], text: str, said: str
) -> None:
    path = file(text)
    for target in ("a:1", "b:1"):
        with pytest.raises(ConfigError) as caught:
            ChannelConfig.from_toml(path, target=target)
        assert str(caught.value).startswith(said.replace("PATH", path))


def test_what_does_not_fit_together_is_told_with_its_table(
    file: Callable[[str], str],
) -> None:
    path = file('[channel."a:1"]\nconnect_backoff = 9\n')
    with pytest.raises(ConfigError) as caught:
        ChannelConfig.from_toml(path, target="a:1")
    said = f'{path} [channel."a:1"]: max_connect_backoff = 5.0: want no less than'
    assert str(caught.value).startswith(said)
    assert ChannelConfig.from_toml(path, target="b:1") == ChannelConfig()


@pytest.mark.parametrize(
    "text",
    [
        "[channel.'dns://me:SECRET@search']\nx = 7\n",
        "[channel.'dns://me:SECRET@search']\nsubset_size = 0\n",
        "[channel.'dns://me:SECRET@search']\nseed = 7\n",
        "[channel.search]\nudp_secret = 'SECRET'\n",
    ],
)
def test_no_secret_of_a_table_is_told(file: Callable[[str], str], text: str) -> None:
    path = file(text)
    try:
        told = repr(ChannelConfig.from_toml(path).tables())
    except ConfigError as error:
        told = str(error)
    assert path in told
    assert "SECRET" not in told
