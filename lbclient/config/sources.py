"""Where the values of a config come from: a TOML file and the environment.

The only file here that reads either. A variable beats the file, and what was read
where is kept, so an error found later still names the variable or file to mend.
"""

import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, fields
from dataclasses import field as setting
from difflib import get_close_matches
from typing import Any, ClassVar, Self, TypeVar

from lbclient.config.checks import TEXTS
from lbclient.core.errors import ConfigError

PREFIX = "LBCLIENT_"

# Variables with it that are not fields of a config.
RESERVED = frozenset({"LBCLIENT_CONFIG", "LBCLIENT_DISABLE"})
# Fields that no variable's text can say: functions, and tables, which TOML has.
IN_CODE = frozenset({"LBCLIENT_RUNNABLE", "LBCLIENT_SIGNALS", "LBCLIENT_UTILIZATION"})
IN_TABLES = frozenset({"LBCLIENT_QUOTAS"})

# What `LBCLIENT_DISABLE` may say, in any case.
ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")

# Texts that may hold a secret, which no error shows.
SECRETS = frozenset({"quota_store", "udp_secret"})

MOST_BYTES = 1 << 20  # of a file; a thousand quotas have 50,000

# What Kubernetes sets for a Service that is called lbclient.
SERVICE_LINK = re.compile(r"LBCLIENT_(PORT|SERVICE_(HOST|PORT))(_|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """Reading a config's fields from a file and from the environment."""

    _section: ClassVar[str]

    # By field what was read where, which `dataclasses.replace` hands on.
    _read: Mapping[str, tuple[str, object]] = setting(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, **defaults: Any
    ) -> Self:
        """Reads `LBCLIENT_CONFIG`'s file, then `LBCLIENT_<FIELD>` variables.

        What neither has is as in `defaults`, and else as documented.

        Raises ConfigError for a value out of bounds, a file that is not there or
        not TOML, and a name that is no field.
        """
        values: dict[str, Any] = {}
        path = environ.get("LBCLIENT_CONFIG", "")
        if path:
            values = cls._table(path)
        sources = dict.fromkeys(values, path)
        known = {f"{PREFIX}{name.upper()}": name for name in all_fields()}
        own = {field.name: field.type for field in settings(cls)}
        for variable, text in environ.items():
            if not variable.startswith(PREFIX) or variable in RESERVED:
                continue
            if SERVICE_LINK.match(variable):
                continue
            if variable not in known:
                # Its text may be a secret whose name is misspelt.
                names = {*known, *RESERVED} - IN_CODE - IN_TABLES
                want = _like(variable, names, PREFIX)
                raise ConfigError("variable", variable, want)
            if (name := known[variable]) in own and not (
                # What the downward API gives for a label that is not there.
                text == "" and own[name] == int | None
            ):
                values[name] = _convert(variable, text, own[name])
                sources[name] = variable
        try:
            return cls(**defaults | values)._from(sources)
        except ConfigError as error:
            raise _where_to_mend(error, sources, environ) from None

    @classmethod
    def from_toml(cls, path: str) -> Self:
        """Reads the `[channel]` or `[server]` table of a TOML file.

        Raises ConfigError, as `from_environment` does.
        """
        values = cls._table(path)
        sources = dict.fromkeys(values, path)
        try:
            return cls(**values)._from(sources)
        except ConfigError as error:
            raise _where_to_mend(error, sources, {}) from None

    def _from(self, sources: Mapping[str, str]) -> Self:
        read = {name: (source, getattr(self, name)) for name, source in sources.items()}
        object.__setattr__(self, "_read", read)
        return self

    def sources(self) -> dict[str, str]:
        """Where the value of each field is from, in the order of the fields.

        The name of a variable, the path of a file, "default" or, for all else, "code".
        """
        told = {}
        for field in settings(type(self)):
            value = getattr(self, field.name)
            source, was = self._read.get(field.name, ("default", field.default))
            told[field.name] = source if value == was else "code"
        return told

    def where_to_mend(self, error: ConfigError) -> ConfigError:
        """The same with the variable or file of its field: for what is found later."""
        source = self.sources()[error.field]
        if source == f"{PREFIX}{error.field.upper()}":
            return ConfigError(source, error.value, error.want)
        if source in ("default", "code"):
            return error
        return ConfigError(error.field, error.value, error.want, source)

    @classmethod
    def _table(cls, path: str) -> dict[str, Any]:
        try:
            tables = _read_toml(path)
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error  # without its path
            want = f"a readable TOML file ({why})"
            raise ConfigError("LBCLIENT_CONFIG", path, want) from None
        for section in sorted(tables.keys() - SECTIONS):
            if not isinstance(tables[section], dict):
                want = "it below [channel] or [server]"
                raise ConfigError("name", section, want, path)
            want = f"one of {', '.join(sorted(SECTIONS))}"
            raise ConfigError("table", section, want, path)
        table = tables.get(cls._section, {})
        if not isinstance(table, dict):
            raise ConfigError(cls._section, table, "a table", path)
        names = {field.name for field in settings(cls)}
        for name in table:
            if name not in names:
                field = f"name in [{cls._section}]"
                raise ConfigError(field, name, _like(name, names), path)
        return table


def _read_toml(path: str) -> dict[str, Any]:
    """Raises OSError, ValueError for what is no TOML, RecursionError if it is deep."""
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    return tomllib.loads(data.decode())


def _like(said: str, names: Collection[str], prefix: str = "") -> str:
    """A prefix that all of them have makes none of them like what was said."""
    bare = [name.removeprefix(prefix) for name in names]
    close = get_close_matches(said.removeprefix(prefix), bare, 1, cutoff=0.8)
    if close:
        return f"perhaps {prefix}{close[0]}"
    return f"one of {', '.join(sorted(names))}"


def _where_to_mend(
    error: ConfigError, sources: Mapping[str, str], environ: Mapping[str, str]
) -> ConfigError:
    """The same with the variable or file of its field, or of what bounds it."""
    field, *others = re.findall(r"\w+", f"{error.field} {error.want}")
    source = sources.get(field, "")
    if source in environ:
        said = error.value if field in SECRETS else environ[source]
        return ConfigError(source, said, error.want)
    if not source:
        source = next((sources[name] for name in others if name in sources), "")
    return ConfigError(error.field, error.value, error.want, source)


def _convert(variable: str, text: str, kind: object) -> Any:
    if kind in (int, int | None, int | Mapping[str, int]):
        convert: Callable[[str], Any] = int
    elif kind in (float, float | None, float | Mapping[str, float] | None):
        convert = float
    elif kind is bool:
        convert = _truth
    elif kind == tuple[str, ...]:
        convert = _split
    elif kind in TEXTS:
        convert = str
    else:
        where = "code or TOML" if variable in IN_TABLES else "code"
        raise ConfigError(variable, text, f"to be set in {where}: it is not text")
    try:
        if convert is int and not re.fullmatch("[+-]?[0-9]+", text):
            raise ValueError  # int() takes 1_0 and digits of any script
        return convert(text)
    except ValueError:
        return text  # which the field's own check refuses, as it knows the bounds


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


def settings(config: type[Sourced]) -> list[Field[Any]]:
    """Its fields, but for what it keeps for itself."""
    return [field for field in fields(config) if not field.name.startswith("_")]


C = TypeVar("C", bound=type[Sourced])

# The tables of a TOML file. `lbclient.config` imports every config, so all are there
# before one is read: a variable that belongs to another config is no mistake.
SECTIONS: dict[str, type[Sourced]] = {}


def section(config: C) -> C:
    """Makes a config's table and variables known."""
    SECTIONS[config._section] = config
    return config


def all_fields() -> list[str]:
    return [field.name for config in SECTIONS.values() for field in settings(config)]


def is_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """The kill switch: whether grpc.aio's own channels and servers are wanted.

    Raises ConfigError for a word that says neither.
    """
    text = environ.get("LBCLIENT_DISABLE", "")
    word = text.strip().lower()
    if word not in ON + OFF:
        want = f"one of {', '.join(ON)}; or {', '.join(OFF[1:])} or nothing to enable"
        raise ConfigError("LBCLIENT_DISABLE", text, want)
    return word in ON
