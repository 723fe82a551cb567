"""Watches a file of endpoints, in the format of Prometheus' file_sd.

The file is checked four times a second. After a change it is read once it has been the
same in two checks, because a program may still be writing it. A file that cannot be
parsed is an error once, not at every check; until it is corrected, the endpoints of the
last good version stay in use.

Prometheus, "Configuration", file_sd_config. lbclient reads the labels `task`, `zone`,
`priority`, `weight` and `lame_duck`, and ignores all others.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from reprlib import Repr
from stat import S_ISREG
from typing import NamedTuple

from lbclient.background.threads import in_daemon_thread
from lbclient.core.errors import ConfigError, ResolveError
from lbclient.core.model import Endpoint, Endpoints
from lbclient.resolvers.listing import MAX_BYTES, MAX_ENDPOINTS, MOST_SHOWN, Listing

LOOK_EVERY = 0.25  # seconds: a change is known within two looks and a read

PATIENCE = 10.0  # seconds: a disk of a network that takes longer is an error


YAML = (".yaml", ".yml")
SUFFIXES = (".json", *YAML)

ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):[0-9]{1,5}|unix:.+")

GROUP_KEYS = {"targets", "labels"}

Look = tuple[int, ...] | str
"""What tells one version of a file from the next; words if there is none; empty
before the first."""


class Visit(NamedTuple):
    """The result of a check: the file's `endpoints`, an `error`, or no change.

    After a temporary error the same version of the file is read again later.
    """

    look: Look
    endpoints: Endpoints | None = None
    error: str = ""
    is_passing: bool = False


@dataclass(slots=True)
class FileState:
    """The state of a watch. After an error the next watch continues from it.

    `read` is the version that was read, or that could not be parsed. `before` is the
    version at the last check. `told` is the last error, empty once it is corrected.
    `visit` is the check that takes too long.
    """

    read: Look = ()
    before: Look = ()
    told: str = ""
    visit: "asyncio.Future[Visit] | None" = None


class File:
    """Watches one file, JSON or YAML by its suffix.

    `look_every`: seconds between two checks. `patience`: seconds that a check may take.
    """

    paces_itself = True  # a watch after an error looks no more often

    def __init__(
        self, path: str, look_every: float = LOOK_EVERY, patience: float = PATIENCE
    ) -> None:
        self.path = Path(path)
        self.look_every = look_every
        self.patience = patience
        self._left: list[FileState] = []  # by watches that ended with an error
        self._listing = Listing()

    def __repr__(self) -> str:
        return f"<{self.path}, looked at every {self.look_every:g} s>"

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        """Yields what the file says, and what it says after a change.

        Raises ResolveError once for each version that makes no sense; the next
        `watch()` waits for another one. One that cannot be read is tried at each look:
        it may be this process that has no file descriptors left. Where a disk hangs
        that is an error once, too, and the look goes on.
        """
        last: Endpoints | None = None
        seen = self._left.pop() if self._left else FileState()
        while True:
            if seen.before and seen.visit is None:
                await asyncio.sleep(self.look_every)
            try:
                endpoints = self._heed(seen, await self._visit(seen))
            except ResolveError as error:
                seen.told = str(error)
                self._left.append(seen)
                raise
            if endpoints is not None and endpoints != last:
                last = endpoints
                yield endpoints

    async def _visit(self, seen: FileState) -> Visit:
        """Looks, in a thread: a disk can hang, and a long file takes its time."""
        is_late = seen.visit is not None
        if seen.visit is None:
            before = seen.read, seen.before
            seen.visit = in_daemon_thread("lbclient file", self._go, *before)
        patience = None if is_late else self.patience
        await asyncio.wait([seen.visit], timeout=patience)
        if not seen.visit.done():
            words = f"no answer in {self.patience:g} s"
            raise ResolveError(f"cannot read {self.path}: {words}")
        visit, seen.visit = seen.visit.result(), None
        if is_late:
            seen.read = ()  # so that it is told, though nothing has changed
        return visit

    def _go(self, read: Look, before: Look) -> Visit:
        """Looks, and reads what is new and stands still."""
        look = self._look()
        # The very first look need not be confirmed: nothing is known yet.
        if look == read or (before and look != before):
            return Visit(look)
        if isinstance(look, str):
            return Visit(look, error=f"cannot read {self.path}: {look}")
        try:
            return Visit(look, self._parse())
        except OSError as error:
            words = f"cannot read {self.path}: {error}"
            return Visit(look, error=words, is_passing=True)
        except (ValueError, RecursionError) as error:
            words = " ".join(str(error).split())
            return Visit(look, error=f"cannot use {self.path}: {words}")

    def _heed(self, seen: FileState, visit: Visit) -> Endpoints | None:
        """What is new; None: nothing, or an error that was told."""
        seen.before = visit.look
        if not visit.is_passing and (visit.error or visit.endpoints is not None):
            seen.read = visit.look
        if visit.error and not (visit.is_passing and visit.error == seen.told):
            raise ResolveError(visit.error)
        if visit.endpoints is not None:
            seen.told = ""
        return visit.endpoints

    def _look(self) -> Look:
        try:
            state = self.path.stat()
        except (OSError, ValueError) as error:
            return str(error)
        if not S_ISREG(state.st_mode):
            return "not a regular file"  # to open a pipe could take for ever
        # The time of a change of its owner or mode, too: it may be readable now.
        times = state.st_mtime_ns, state.st_ctime_ns
        return *times, state.st_size, state.st_ino, state.st_dev

    def _parse(self) -> Endpoints:
        """Raises OSError, or ValueError or RecursionError for what makes no sense."""
        with self.path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES:,} bytes")
        groups = _groups(data, self.path.suffix)
        found = endpoints_of(groups, self._listing.endpoint)
        # Aliases in YAML can make a short file very long.
        return self._listing.take(islice(found, MAX_ENDPOINTS))


def _groups(data: bytes, suffix: str) -> Iterator[object]:
    if suffix in YAML:
        from lbclient.resolvers import yaml_groups  # needs an extra

        return yaml_groups.items(data)
    from lbclient.resolvers import json_items  # most targets are no files

    return json_items.items(data)


Make = Callable[[str, float, str, int | None, bool, int], Endpoint]


def endpoints_of(groups: Iterable[object], make: Make = Endpoint) -> Iterator[Endpoint]:
    """The endpoints of a document; ValueError says which group is wrong, and how.

    >>> groups = [{"targets": ["a:1", "b:1"], "labels": {"zone": "x", "weight": "2"}}]
    >>> [(e.address, e.zone, e.weight) for e in endpoints_of(groups)]
    [('a:1', 'x', 2.0), ('b:1', 'x', 2.0)]
    """
    for place, group in enumerate(groups):
        try:
            yield from _group(group, make)
        except ValueError as error:
            raise ValueError(f"group {place}: {error}") from None


def _group(group: object, make: Make) -> Iterator[Endpoint]:
    if not isinstance(group, dict) or not group.keys() <= GROUP_KEYS:
        raise ValueError(f"want targets and labels, not {_short(group)}")
    targets, labels = group.get("targets"), group.get("labels")
    if not isinstance(targets, list):
        raise ValueError(f"targets: want a list, not {_short(targets)}")
    labels = {} if labels is None else labels
    if not isinstance(labels, dict):
        raise ValueError(f"labels: want names and values, not {_short(labels)}")
    zone = labels.get("zone", "")
    if not isinstance(zone, str):
        raise ValueError(f"zone: want text, not {_short(zone)}")
    task, priority = _whole(labels, "task"), _whole(labels, "priority") or 0
    weight, lame_duck = _weight(labels), _lame_duck(labels)
    for address in targets:
        if not isinstance(address, str) or not ADDRESS.fullmatch(address):
            raise ValueError(f"targets: want host:port, not {_short(address)}")
        try:
            yield make(address, weight, zone, task, lame_duck, priority)
        except ConfigError as error:
            raise ValueError(f"targets: {error}") from None


def _whole(labels: dict[object, object], name: str) -> int | None:
    """Values are text in Prometheus, but YAML without quotes has numbers."""
    if name not in labels:
        return None
    text = _text(labels[name])
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError(f"{name}: want a whole number, not {_short(text)}")
    return int(text)


def _weight(labels: dict[object, object]) -> float:
    text = _text(labels.get("weight", 1.0))
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0.0 < weight < inf:
        raise ValueError(f"weight: want a number above 0, not {_short(text)}")
    return weight


def _lame_duck(labels: dict[object, object]) -> bool:
    text = _text(labels.get("lame_duck", False))
    if text.lower() not in ("true", "false"):
        raise ValueError(f"lame_duck: want true or false, not {_short(text)}")
    return text.lower() == "true"


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int | float) else _short(value)


def _short(value: object) -> str:
    text = _brief.repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


# Aliases in YAML make values that are short to write, and have no end as text.
_brief = Repr()
_brief.maxlevel = 2  # of lists and records
_brief.maxstring = _brief.maxother = MOST_SHOWN
