"""Finds a call's keys, method and cost, for pickers that want to see them.

A channel whose picker has no `pick_for` has no `CallKeys`, and pays one comparison.
"""

from collections.abc import Mapping
from typing import Any

from lbclient.config import ChannelConfig
from lbclient.core.call_hints import LONGEST_KEY, CallHints, checked_keys, current
from lbclient.core.criticality import Criticality
from lbclient.core.routing.keyed_picks import sees_calls
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
        block = current()
        cost = 1.0 if block is None else block.cost
        keys = NO_KEYS
        if self._metadata and metadata:
            keys = self._in_metadata(path, metadata)
        if not keys and block is not None:
            keys = block.keys
        if not keys and self._key_of is not None:
            keys = self._of_request(path, request)
        return CallHints(path, keys, criticality, cost)

    def _in_metadata(self, path: str, metadata: Any) -> tuple[str, ...]:
        names = names_of(self._metadata, path)
        values = {name: value for name, value in metadata if name in names and value}
        return tuple(_text(values[name]) for name in names if name in values)

    def _of_request(self, path: str, request: Any) -> tuple[str, ...]:
        assert self._key_of is not None
        try:
            keys = self._key_of(path, request)
            if keys is None:
                return NO_KEYS
            return checked_keys("key_of", (keys,) if isinstance(keys, str) else keys)
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
    key_metadata: tuple[str, ...] | Mapping[str, tuple[str, ...]], path: str
) -> tuple[str, ...]:
    """Finds the names of metadata for a method: its own, else those of its service.

    >>> names_of({"/a.A/*": ("user",), "/a.A/Get": ("session",)}, "/a.A/Get")
    ('session',)
    >>> names_of({"/a.A/*": ("user",)}, "/a.A/Put"), names_of({}, "/b.B/Get")
    (('user',), ())
    """
    if not isinstance(key_metadata, Mapping):
        return key_metadata
    service = path.rpartition("/")[0]
    return key_metadata.get(path) or key_metadata.get(f"{service}/*") or NO_KEYS


def _text(value: str | bytes) -> str:
    """Cuts what is too long: a proxy's metadata are whatever its clients say."""
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    return text[:LONGEST_KEY]
