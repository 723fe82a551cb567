"""A quota store in a Redis that all tasks of a fleet share.

Redis adds up, so a task's exchange is one round trip that costs what its own customers
are, however many tasks there are. By Redis's clock, as those of machines differ, time
is cut into periods: in each a task adds what it gave once, to a sorted set of the sums,
and reads the sums of the period before, which is complete. Sets expire, so nothing must
be taken out again, and whoever dies is left out a period later.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import takewhile
from math import inf
from typing import Any
from zlib import crc32

from lbclient.config.redis_url import redis_place
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import FleetUsage
from lbclient.core.quotas.quota import INTERVAL, LONGEST
from lbclient.core.text import HIDDEN, printable
from lbclient.server.quotas.memory_store import StoreError

# Ours. What an exchange may carry: some 50 kB at most for names of 30 characters.
TOLD = 1000  # customers that a task tells of, and asks for: those it gave most,
# and before them those whose names nobody can invent.
LARGEST = 100  # of the fleet, told to tasks that have not served them yet
LEAST = 1e-6  # CPU seconds a second, to be told
HIGHEST = 1e9  # what is more is no usage

BEGINNING = 4  # characters; a word of an error that begins so is a secret's beginning

# Tasks come at a time of their own within a period, away from its ends, so that a late
# one is still in it, and not all at once.
EARLIEST, LATEST = 0.2, 0.8

# One command, hence atomic and one round trip; sent whole each time (it is short), so
# that a Redis that was restarted needs no second one. The period that follows a start
# has lost those who came before it: only one whose predecessor is there is believed.
SCRIPT = """
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local period = math.floor(ms / ARGV[2])
local function key(period, what)
  return string.format('%s:%.0f:%s', KEYS[1], period, what)
end
local tasks, usage = key(period, 'tasks'), key(period, 'usage')
local is_first = redis.call('SADD', tasks, ARGV[1])
redis.call('PEXPIRE', tasks, 5 * ARGV[2])
if is_first == 1 then
  for i = 4, #ARGV, 2 do
    redis.call('ZINCRBY', usage, ARGV[i + 1], ARGV[i])
    if i == 4 then redis.call('PEXPIRE', usage, 5 * ARGV[2]) end
  end
end
local before, count = key(period - 1, 'usage'), 0
if redis.call('EXISTS', key(period - 2, 'tasks')) == 1 then
  count = redis.call('SCARD', key(period - 1, 'tasks'))
end
local sums = {}
for i = 4, #ARGV, 2 do sums[#sums + 1] = redis.call('ZSCORE', before, ARGV[i]) end
local largest = redis.call('ZREVRANGE', before, 0, ARGV[3] - 1, 'WITHSCORES')
return {period, ms % ARGV[2], is_first, count, sums, largest}
"""


class RedisStore:
    """Shares usage by customer through Redis. Of one task, whose `first` customers are
    told of before all others.

    Makes no connection before the first exchange.
    """

    def __init__(self, url: str, first: Iterable[str] = ()) -> None:
        self._redis, fleet, self._secrets = _client(url)
        self._first = frozenset(first)
        self._fleet = fleet
        self._prefix = f"{{{fleet}}}:quota"
        # What this task told last, and in which period.
        self._told: tuple[int, Mapping[str, float]] = (-1, {})

    async def exchange(self, task: str, usage: Mapping[str, float]) -> FleetUsage:
        usage = {name: used for name, used in usage.items() if used >= LEAST}
        first = self._first
        told = dict(
            nlargest(TOLD, usage.items(), key=lambda one: (one[0] in first, one[1]))
        )
        words = [word for name, used in told.items() for word in (name, f"{used:.6g}")]
        period = round(1000 * INTERVAL)
        try:
            answer = await self._redis.eval(
                SCRIPT, 1, self._prefix, task, period, LARGEST, *words
            )
        except BaseException as error:
            await self.close()  # also when it took too long: no answer may come later
            if isinstance(error, Exception):
                raise self._told_without_secrets(error) from None
            raise
        return self._take_answer(task, told, answer)

    def _take_answer(
        self, task: str, told: Mapping[str, float], answer: Sequence[Any]
    ) -> FleetUsage:
        period, ms, is_first, tasks, sums, largest = answer
        found = [*zip(told, sums, strict=True), *_pairs(largest)]
        total, malformed = _sound(found)
        told_in, own = self._told
        if told_in != period - 1 and tasks:  # it missed that one
            tasks, own = tasks + 1, told
            for name, used in told.items():
                total[name] = total.get(name, 0.0) + used
        if is_first:
            self._told = (period, told)
        at = EARLIEST + (LATEST - EARLIEST) * crc32(task.encode()) / 2**32
        again = (1.0 - ms / 1000 / INTERVAL + at) * INTERVAL
        return FleetUsage(tasks, own, total if tasks else {}, again, malformed)

    def _told_without_secrets(self, error: Exception) -> StoreError:
        """Redis repeats the arguments of a command that it refuses, AUTH's too."""
        words = str(error)
        for secret in self._secrets:
            words = without(words, secret)
        return StoreError(f"{type(error).__name__}: {printable(words) or '-'}")

    async def close(self) -> None:
        await self._redis.connection_pool.disconnect()

    def __repr__(self) -> str:
        """Without where it is: a password may be in that."""
        told = len(self._told[1])
        return f"<fleet {self._fleet} in a Redis that was told of {told} customers>"


def _client(url: str) -> tuple[Any, str, tuple[str, ...]]:
    place = redis_place("quota_store", url)
    try:
        from redis.asyncio import ConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        want = "redis to be installed: pip install 'lbclient[redis]'"
        raise ConfigError("quota_store", place.shown, want) from None
    # One attempt each time: the next interval brings another.
    try:
        pool: Any = ConnectionPool.from_url(
            place.url,
            socket_timeout=INTERVAL,
            socket_connect_timeout=INTERVAL,
            retry=Retry(NoBackoff(), 0),
        )
        pool.make_connection()
    except (TypeError, ValueError, OSError) as error:
        # Not its words, which may repeat a value.
        want = f"options that redis-py knows: {type(error).__name__}"
        raise ConfigError("quota_store", place.shown, want) from None
    return Redis(connection_pool=pool), place.fleet, place.secrets


def without(words: str, secret: str) -> str:
    """Replaces a secret, and also its beginning, as Redis cuts what it repeats.

    >>> without("beginning with: 'opensesame' 'opense'", "opensesame")
    "beginning with: '...' '...'"
    """
    begins, rest = secret[:BEGINNING], secret[BEGINNING:]
    if not rest:  # too short to be no accident within a word
        return re.sub(rf"(?<!\w){re.escape(begins)}(?!\w)", HIDDEN, words)
    first, *others = words.split(begins)
    return HIDDEN.join([first, *(part[_common(part, rest) :] for part in others)])


def _common(one: str, other: str) -> int:
    """How many characters they begin with alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _pairs(flat: Sequence[bytes]) -> list[tuple[Any, bytes]]:
    return [*zip(flat[::2], flat[1::2], strict=True)]


def _sound(found: Sequence[tuple[Any, Any]]) -> tuple[dict[str, float], int]:
    """Usage by customer, and how many entries were left out as malformed.

    Whoever has the password may write anything.
    """
    sound, malformed = {}, 0
    for said, score in found:
        if score is None:
            continue
        used = float(score)
        try:
            name = said.decode() if isinstance(said, bytes) else said
        except UnicodeDecodeError:
            used = inf
        if 0.0 <= used <= HIGHEST and len(name) <= LONGEST:
            sound[name] = used
        else:
            malformed += 1
    return sound, malformed
