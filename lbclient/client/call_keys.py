"""Finds out what the picker is told of each call, where it wants to know.

A channel whose picker has no `pick_for` has no `CallKeys`, and pays one comparison.
"""

from collections.abc import Mapping
from typing import Any

from lbclient.config import ChannelConfig
from lbclient.core.call_hints import LONGEST_KEY, CallHints, checked_keys, current
from lbclient.core.criticality import Criticality
from lbclient.core.keyed_picks import sees_calls
from lbclient.log import Log

logger = Log("lbclient.balancer")  # as documented, for the whole channel

NO_KEYS: tuple[str, ...] = ()


def call_keys(label: str, config: ChannelConfig, picker: object) -> "CallKeys | None":
    """Returns what makes a picker's hints; None for a picker that wants none, and a
    warning if the configuration has keys for it."""
    if sees_calls(picker):
        return CallKeys(label, config)
    if config.key_metadata or config.key_of is not None:
        words = "%s: key_metadata and key_of do nothing: %r knows no keys"
        logger.warning(words, label, picker, channel=label)
    return None


class CallKeys:
    """Makes the hints of calls. Owned by a balancer.

    The keys are those of a call's own metadata, else of the block that it is made in,
    else those that `ChannelConfig.key_of` makes. A `key_of` that fails is logged once,
    and its calls have no key.
    """

    def __init__(self, label: str, config: ChannelConfig) -> None:
        self._label = label
        self._metadata = config.key_metadata
        self._key_of = config.key_of
        self._has_failed = False

    def hints(
        self, path: str, request: Any, metadata: Any, criticality: Criticality
    ) -> CallHints:
        """What a picker may know of a call that is about to be sent."""
        said = current()
        cost = 1.0 if said is None else said.cost
        keys = NO_KEYS
        if self._metadata and metadata:
            keys = self._in_metadata(path, metadata)
        if not keys and said is not None:
            keys = said.keys
        if not keys and self._key_of is not None:
            keys = self._made(path, request)
        return CallHints(path, keys, criticality, cost)

    def _in_metadata(self, path: str, metadata: Any) -> tuple[str, ...]:
        names = names_of(self._metadata, path)
        found = {name: value for name, value in metadata if name in names and value}
        return tuple(_text(found[name]) for name in names if name in found)

    def _made(self, path: str, request: Any) -> tuple[str, ...]:
        assert self._key_of is not None
        try:
            made = self._key_of(path, request)
            if made is None:
                return NO_KEYS
            return checked_keys("key_of", (made,) if isinstance(made, str) else made)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                words = "%s: key_of failed for %r; such calls have no key"
                label = self._label
                logger.exception(words, label, path, channel=label, reason=error)
            return NO_KEYS

    def __repr__(self) -> str:
        return f"<keys of metadata {self._metadata!r}, or of {self._key_of!r}>"


def names_of(
    said: tuple[str, ...] | Mapping[str, tuple[str, ...]], path: str
) -> tuple[str, ...]:
    """The names of metadata for a method: its own, else those of its service.

    >>> names_of({"/a.A/*": ("user",), "/a.A/Get": ("session",)}, "/a.A/Get")
    ('session',)
    >>> names_of({"/a.A/*": ("user",)}, "/a.A/Put"), names_of({}, "/b.B/Get")
    (('user',), ())
    """
    if not isinstance(said, Mapping):
        return said
    service = path.rpartition("/")[0]
    return said.get(path) or said.get(f"{service}/*") or NO_KEYS


def _text(value: str | bytes) -> str:
    """Cut where it is too long: a proxy's metadata are whatever its clients say."""
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    return text[:LONGEST_KEY]
