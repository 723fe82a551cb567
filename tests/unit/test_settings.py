"""Settings: each is declared once, and what others say of it comes from there."""

import copy
import pickle
import pydoc
from dataclasses import FrozenInstanceError

import pytest

from lbclient.cli.operate.proxy import parse
from lbclient.config import ChannelConfig, ServerConfig, find_setting, settings
from lbclient.config.fields import Setting
from lbclient.config.kinds import optional, whole
from lbclient.config.tables import listing
from lbclient.core.errors import ConfigError

CONFIGS = (ChannelConfig, ServerConfig)
SETTINGS = [
    pytest.param(config, setting, id=f"{config.__name__}.{setting.name}")
    for config in CONFIGS
    for setting in settings(config)
]


@pytest.mark.parametrize(("config", "setting"), SETTINGS)
def test_help_tells_what_a_setting_does_and_may_be(
    config: type, setting: Setting
) -> None:
    shown = pydoc.plain(pydoc.render_doc(config)).replace("|", "")
    words = " ".join(shown.split())
    for said in (setting.help, setting.source, setting.kind.want, setting.default_text):
        assert " ".join(said.split()) in words
    assert setting.help.endswith(".")


@pytest.mark.parametrize(("config", "setting"), SETTINGS)
def test_the_listing_tells_how_a_setting_is_set(config: type, setting: Setting) -> None:
    where = "in code" if setting.kind.read is None else setting.variable
    assert f"\n{setting.name}, {where}" in listing()


def test_options_of_a_command_are_described_by_their_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("subset_size", "idempotent"):
        assert find_setting(ChannelConfig, name).summary in shown


@pytest.mark.parametrize(("config", "setting"), SETTINGS)
def test_a_number_has_a_reason(config: type, setting: Setting) -> None:
    if type(setting.default) in (int, float):
        assert setting.source.endswith(".")


def test_a_config_is_copied_as_any_other_object() -> None:
    config = ChannelConfig(subset_size=7, idempotent=("/a/b",))
    assert copy.copy(config) == copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(FrozenInstanceError):
        config.subset_size = 8  # type: ignore[misc]


def test_none_is_right_for_what_is_optional_and_for_nothing_else() -> None:
    assert optional(whole(1)).check("x", None) is None
    assert optional(whole(1)).check("x", 7) == 7
    for kind, value in ((whole(1), None), (optional(whole(1)), 0)):
        with pytest.raises(ConfigError, match="a whole number, at least 1"):
            kind.check("x", value)
