"""What the tables of a settings file say to one config, and what is wrong in them.

`[channel]` is for every channel. A table in it whose name is no setting is for the
channels of that target or name only: `[channel."dns:///search.prod:50051"]`. All of
them are checked, also those that are not for this channel, so a mistake is found when
the program starts and not when the channel is made.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lbclient.config.fields import Setting
from lbclient.config.near_misses import closest, like
from lbclient.core.errors import MOST_WORDS, ConfigError
from lbclient.core.text import brief, harmless, printable


class FileValues(NamedTuple):
    """What a file sets, where in it, and which tables of single channels it has.

    `tables` says of each whether it is for this channel.
    """

    values: dict[str, Any]
    sources: dict[str, str]
    tables: dict[str, bool]


class UnknownSetting(ConfigError):
    """A table of the file has a name that is no setting; `field` is the table."""

    def __str__(self) -> str:
        said = f"unknown setting {brief(self.value)} in {self.field}; {self.want}"
        return printable(f"{self.source}: {said}", MOST_WORDS)


class TableReader:
    """Reads what is for one config. `sections` are all tables that a file may have."""

    def __init__(
        self,
        path: str,
        section: str,
        settings: Sequence[Setting],
        sections: Sequence[str],
    ) -> None:
        self._path = path
        self._section = section
        self._settings = {setting.name: setting for setting in settings}
        self._sections = sorted(sections)

    def read(
        self, file: Mapping[str, Any], keys: Sequence[str] | None = None
    ) -> FileValues:
        """Raises ConfigError for a name that is no setting, wherever it is.

        `keys` are what this channel goes by: a table of the last one beats those of
        the ones before it. None: the section has no tables of single channels.
        """
        self._check_sections(file)
        table = file.get(self._section, {})
        if not isinstance(table, dict):
            raise ConfigError(self._section, table, "a table", self._path)
        values = {name: said for name, said in table.items() if name in self._settings}
        sources = dict.fromkeys(values, self._path)
        tables: dict[str, bool] = {}
        for name, said in table.items():
            if name in self._settings:
                continue
            if keys is None or not isinstance(said, dict):
                raise self._unknown(name)
            self._check_table(name, said)
            place = self._place(name)
            tables[place] = tables.get(place, False) or name in keys
        for key in keys or ():
            if key and key not in self._settings and key in table:
                values |= table[key]
                sources |= dict.fromkeys(table[key], self._place(key))
        return FileValues(values, sources, tables)

    def _check_sections(self, file: Mapping[str, Any]) -> None:
        for section in sorted(file.keys() - set(self._sections)):
            if not isinstance(file[section], dict):
                want = "it below [channel] or [server]"
                raise ConfigError("name", section, want, self._path)
            want = f"one of {', '.join(self._sections)}"
            raise ConfigError("table", section, want, self._path)

    def _check_table(self, key: str, table: Mapping[str, Any]) -> None:
        for name, said in table.items():
            setting = self._settings.get(name)
            if setting is None:
                raise self._unknown_in(key, name, table)
            try:
                setting.kind.check(name, said)
            except ConfigError as error:
                want = error.want + without_quotes(setting, said)
                place = self._place(key)
                raise ConfigError(error.field, error.value, want, place) from None

    def _unknown(self, name: str) -> ConfigError:
        want = like(name, self._settings)
        return UnknownSetting(f"[{self._section}]", name, want, self._path)

    def _unknown_in(self, key: str, name: str, table: Mapping[str, Any]) -> ConfigError:
        """A name in a table that may be no channel's: but a misspelt setting whose
        value is a table, or what is before the first dot of a key without quotes."""
        is_like_settings = any(closest(each, self._settings) for each in table)
        if closest(key, self._settings) and not is_like_settings:
            return self._unknown(key)
        want = like(name, self._settings)
        if isinstance(table[name], dict) and not is_like_settings:
            want = (
                f'want quotes around the whole: [{self._section}."{shown(key)}.{name}"]'
            )
        return UnknownSetting(self._table(key), name, want, self._path)

    def _table(self, key: str) -> str:
        return f'[{self._section}."{shown(key)}"]'

    def _place(self, key: str) -> str:
        return f"{self._path} {self._table(key)}"


def without_quotes(setting: Setting, said: object) -> str:
    """What an error adds where a file has a number as text, which the setting would
    take as a number."""
    if not isinstance(said, str):
        return ""
    for number in (int, float):
        try:
            setting.kind.check(setting.name, number(said))
        except ValueError:
            continue
        return ", without quotes"
    return ""


def shown(key: str) -> str:
    """A target as errors and pages may show it, without a password that is in it."""
    return printable(harmless(key))
