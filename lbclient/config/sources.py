"""Where the values of a config come from: a TOML file and the environment.

The only file here that reads either. A variable beats the file, and what was read
where is kept, so an error found later still names the variable or file to mend.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import field as plain_field
from functools import wraps
from typing import Any, ClassVar, Self, TypeVar

from lbclient.config.fields import PREFIX, Setting, find_setting, settings
from lbclient.config.file_tables import FileValues, TableReader, without_quotes
from lbclient.config.near_misses import closest, like
from lbclient.core.errors import ConfigError
from lbclient.log import Log

logger = Log(__name__)

ENVIRONMENT: Mapping[str, str] = os.environ

# Variables with the prefix that are no settings.
RESERVED = frozenset({"LBCLIENT_CONFIG", "LBCLIENT_DISABLE"})

# What `LBCLIENT_DISABLE` may say, in any case.
ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")

MOST_BYTES = 1 << 20  # of a file; a thousand quotas have 50,000

# What Kubernetes sets for each Service of a namespace, here for one whose name is
# "lbclient" or begins with "lbclient-".
SERVICE_LINK = re.compile(
    r"LBCLIENT_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)

# Variables that were warned of: as many as the environment has, at most.
_warned: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A config whose values may come from a file and from the environment."""

    _section: ClassVar[str]

    # By field what was read where, which `dataclasses.replace` hands on.
    _read: Mapping[str, tuple[str, object]] = plain_field(
        default_factory=dict, repr=False, compare=False
    )
    # The file's tables of single channels; whether each is for this one.
    _tables: Mapping[str, bool] = plain_field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = ENVIRONMENT, **defaults: Any
    ) -> Self:
        """Reads `LBCLIENT_CONFIG`'s file, then `LBCLIENT_<FIELD>` variables.

        What neither has is as in `defaults`, and else as documented. A variable that
        is no setting has no effect, and is warned of once.

        Raises ConfigError for a value out of bounds, a file that is not there or not
        TOML, and a name in the file that is no field.
        """
        return cls._from_environment(environ, None, defaults)

    @classmethod
    def from_toml(cls, path: str) -> Self:
        """Reads the `[channel]` or `[server]` table of a TOML file.

        Raises ConfigError, as `from_environment` does.
        """
        return cls._from_toml(path, None)

    @classmethod
    def _from_environment(
        cls,
        environ: Mapping[str, str],
        keys: Sequence[str] | None,
        defaults: Mapping[str, Any],
    ) -> Self:
        """`keys` are those of tables within the config's own: see `TableReader`."""
        path = environ.get("LBCLIENT_CONFIG", "")
        file = cls._read_file(path, keys) if path else FileValues({}, {}, {})
        for setting, text in _variables(cls, environ):
            file.values[setting.name] = _value(setting, text)
            file.sources[setting.name] = setting.variable
        return cls._made(defaults, file, environ)

    @classmethod
    def _from_toml(cls, path: str, keys: Sequence[str] | None) -> Self:
        return cls._made({}, cls._read_file(path, keys), {})

    @classmethod
    def _made(
        cls, defaults: Mapping[str, Any], said: FileValues, environ: Mapping[str, str]
    ) -> Self:
        try:
            config = cls(**{**defaults, **said.values})
        except ConfigError as error:
            secrets = {one.name for one in settings(cls) if one.is_secret}
            if said.sources.get(error.field, "") not in {"", *environ}:
                error.want += without_quotes(
                    find_setting(cls, error.field), error.value
                )
            raise _where_to_mend(error, said.sources, environ, secrets) from None
        read = {name: (at, getattr(config, name)) for name, at in said.sources.items()}
        object.__setattr__(config, "_read", read)
        object.__setattr__(config, "_tables", said.tables)
        return config

    def _check_each(self) -> None:
        """Raises ConfigError; keeps what each check makes of its value."""
        for setting in settings(type(self)):
            value = setting.kind.check(setting.name, getattr(self, setting.name))
            object.__setattr__(self, setting.name, value)

    def sources(self) -> dict[str, str]:
        """Where the value of each field is from, in the order of the fields.

        The name of a variable, the path of a file, "default" or, for all else, "code".
        """
        told = {}
        for setting in settings(type(self)):
            value = getattr(self, setting.name)
            source, was = self._read.get(setting.name, ("default", setting.default))
            told[setting.name] = source if value == was else "code"
        return told

    def where_to_mend(self, error: ConfigError) -> ConfigError:
        """The same with the variable or file of its field: for what is found later."""
        source = self.sources()[error.field]
        if source == find_setting(type(self), error.field).variable:
            return ConfigError(source, error.value, error.want)
        if source in ("default", "code"):
            return error
        return ConfigError(error.field, error.value, error.want, source)

    @classmethod
    def _read_file(cls, path: str, keys: Sequence[str] | None) -> FileValues:
        try:
            file = _read_toml(path)
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error  # without its path
            want = f"a readable TOML file ({why})"
            raise ConfigError("LBCLIENT_CONFIG", path, want) from None
        reader = TableReader(path, cls._section, settings(cls), [*SECTIONS])
        return reader.read(file, keys)


def _read_toml(path: str) -> dict[str, Any]:
    """Raises OSError, ValueError for what is no TOML, RecursionError if it is deep."""
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    import tomllib  # most programs have no file

    return tomllib.loads(data.decode())


def _where_to_mend(
    error: ConfigError,
    sources: Mapping[str, str],
    environ: Mapping[str, str],
    secrets: Collection[str],
) -> ConfigError:
    """The same with the variable or file of its field, or of what bounds it."""
    field, *others = re.findall(r"\w+", f"{error.field} {error.want}")
    source = sources.get(field, "")
    if source in environ:
        said = error.value if field in secrets else environ[source]
        return ConfigError(source, said, error.want)
    if not source:
        source = next((sources[name] for name in others if name in sources), "")
    return ConfigError(error.field, error.value, error.want, source)


C = TypeVar("C", bound=type[Sourced])

# By the name of its TOML table. `lbclient.config` imports every config, so all are
# there before one is read: a variable of another config is no mistake.
SECTIONS: dict[str, type[Sourced]] = {}


def section(config: C) -> C:
    """Makes a config's table and variables known, and its settings readable in help().

    A dict of slots is where `help` looks for the words of each.
    """
    SECTIONS[config._section] = config
    _name_near_misses(config)
    words = {setting.name: setting.words for setting in settings(config)}
    type.__setattr__(config, "__slots__", words)  # mypy believes in tuples only
    return config


def _name_near_misses(config: type[Sourced]) -> None:
    """Has the error of a keyword that is no setting say which one is meant."""
    made: Any = config.__init__
    names = {setting.name for setting in settings(config)}
    known = {field.name for field in fields(config)}

    @wraps(made)
    def __init__(self: Any, **given: Any) -> None:
        for name in given:
            if name not in known:
                want = like(name, names)
                raise TypeError(f"{config.__name__} has no setting {name!r}: {want}")
        made(self, **given)

    type.__setattr__(config, "__init__", __init__)


def _variables(
    config: type[Sourced], environ: Mapping[str, str]
) -> Iterator[tuple[Setting, str]]:
    """The settings of a config whose variable is there, and its text."""
    own = {setting.variable: setting for setting in settings(config)}
    every = [setting for one in SECTIONS.values() for setting in settings(one)]
    known = {setting.variable for setting in every}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        if variable not in known:
            _warn_of(variable, every)
            continue
        setting = own.get(variable)
        if setting and not (setting.kind.is_unset_if_empty and not text):
            yield setting, text


def _warn_of(variable: str, every: Collection[Setting]) -> None:
    """Says once that a variable has no effect, unless Kubernetes has made it.

    It may be a mistake, or the application's own. Its text is not told: it may be a
    secret.
    """
    if variable in _warned or SERVICE_LINK.fullmatch(variable):
        return
    _warned.add(variable)
    readable = {one.variable for one in every if one.kind.read is not None}
    # The prefix, which all have, makes none like another.
    bare = {name.removeprefix(PREFIX) for name in readable | RESERVED}
    close = closest(variable.removeprefix(PREFIX), bare)
    meant = f"; perhaps {PREFIX}{close} is meant" if close else ""
    logger.warning("%s is no setting of lbclient and has no effect%s", variable, meant)


def _value(setting: Setting, text: str) -> Any:
    kind = setting.kind
    if kind.read is None:
        want = f"to be set in {kind.place}: it is not text"
        raise ConfigError(setting.variable, text, want)
    try:
        return kind.read(text)
    except ValueError:
        return text  # which the field's own check refuses, as it knows the bounds


def is_disabled(environ: Mapping[str, str] = ENVIRONMENT) -> bool:
    """The kill switch: whether grpc.aio's own channels and servers are wanted.

    Raises ConfigError for a word that says neither.
    """
    text = environ.get("LBCLIENT_DISABLE", "")
    word = text.strip().lower()
    if word not in ON + OFF:
        want = f"one of {', '.join(ON)}; or {', '.join(OFF[1:])} or nothing to enable"
        raise ConfigError("LBCLIENT_DISABLE", text, want)
    return word in ON
