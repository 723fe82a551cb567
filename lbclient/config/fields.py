"""What a setting is: one field of a config, which declares all that is said of it.

`setting` puts its kind, help and source on the field of a dataclass, and `settings`
lists them. Checks, errors, the reading of variables, `help()`, `--help` and the tables
of docs/configuration.md come from there, so a new setting is one declaration.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from textwrap import fill
from typing import Any, Literal, TypeVar

T = TypeVar("T")

PREFIX = "LBCLIENT_"

WIDTH = 72  # characters of a line in help(), which indents them by 8

Check = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting may be."""

    want: str
    """What would be right, in words: for the docs, and for most errors."""

    check: Check
    """Takes the field's name and a value, and returns the value that the config keeps.
    Raises ConfigError."""

    read: Callable[[str], Any] | None = None
    """Makes a value of a variable's text, or raises ValueError. None: no text can."""

    place: Literal["code", "code or TOML"] = "code"
    """Where it is set if no variable's text can say it."""

    note: str = ""
    """What a variable's text is, where a value may be more than that."""

    is_unset_if_empty: bool = False
    """Whether an empty variable is as good as none. Kubernetes' downward API sets one
    for a label that is not there."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a config, as it was declared."""

    name: str
    default: Any
    kind: Kind
    help: str
    source: str  # why this default; empty if it is no choice, such as none at all
    is_secret: bool
    prefix: str

    @property
    def variable(self) -> str:
        return f"{self.prefix}{self.name.upper()}"

    @property
    def summary(self) -> str:
        """The first sentence of its help, as an option's `--help` has it."""
        first = self.help.partition(". ")[0].removesuffix(".")
        return first[0].lower() + first[1:]

    @property
    def default_text(self) -> str:
        is_text = isinstance(self.default, str)
        return f'"{self.default}"' if is_text else repr(self.default)

    @property
    def words(self) -> str:
        """What `help` shows of it."""
        facts = f"Default: {self.default_text}. Values: {self.kind.want}."
        said = [self.help, self.source, facts]
        return "\n".join(fill(line, WIDTH) for line in said if line)

    @property
    def variable_text(self) -> str:
        """The variable and what its text is, or where else the setting is set."""
        if self.kind.read is None:
            return f"in {self.kind.place}"
        return f"`{self.variable}`" + (self.kind.note and f": {self.kind.note}")


def setting(
    default: T,
    kind: Kind,
    *,
    help: str,
    source: str = "",
    is_secret: bool = False,
    prefix: str = PREFIX,
) -> T:
    """A field of a config; its type is that of its default, as a checker sees it.

    `help` says what the setting does, `source` why the default is what it is. The value
    of a secret is in no repr and no error. `prefix` is the variable's, where the other
    config has a field of this name that means something else.
    """
    said = {
        "kind": kind,
        "help": help,
        "source": source,
        "is_secret": is_secret,
        "prefix": prefix,
    }
    return field(default=default, repr=not is_secret, metadata=said)


def settings(config: type[Any]) -> list[Setting]:
    """The settings of a config, in the order of their declaration.

    What a config keeps for itself is not among them.
    """
    return [_declared(one) for one in fields(config) if not one.name.startswith("_")]


def find_setting(config: type[Any], name: str) -> Setting:
    return next(one for one in settings(config) if one.name == name)


def _declared(one: Field[Any]) -> Setting:
    return Setting(one.name, one.default, **one.metadata)
