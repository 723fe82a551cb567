"""What a worker knows of its task: its own ports and those of its siblings.

The process is a worker of one task for its whole life, so there is one `Membership` in
it, which its servers find by `membership`. A process that is no worker has none.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from lbclient.core.errors import ConfigError
from lbclient.server.report.udp import host_of
from lbclient.server.workers.messages import Ports, UsageHeard, UsageTold


class Membership:
    """A worker's place in its task. Owned by the worker's process, which writes it.

    `group` is one number for all workers of the task. `own` are this worker's own ports
    by shared port. `count` is how many workers there are to be, and `pids` are their
    processes. `siblings` are the ports of all workers that serve, and `serving` is how
    many do; 0 once the task leaves. `period` is how many seconds the server may take to
    leave, if known. `say_quiet` is called once this worker leaves and has no requests
    of clients that watch its health; `is_all_quiet` is set when all workers that leave
    with it have said so.
    """

    def __init__(self, number: int, group: int, slot: int, count: int = 1) -> None:
        self.count = count
        self.number = number
        self.group = group
        self.own: dict[int, int] = {}
        self.siblings: Ports = ()
        self.serving = 0
        self.is_all_quiet = False
        self.period: float | None = None
        self.say_quiet: Callable[[], object] = lambda: None
        self.pids: tuple[int, ...] = ()
        self.tell_usage: Callable[[UsageTold], object] = lambda _: None
        self._asked: dict[str, asyncio.Future[UsageHeard]] = {}
        self._slot = slot
        self._has_said = False
        self._tell: list[Callable[[int, Ports, int], None]] = []

    def own_address(self, address: str, port: int, ports: str) -> str | None:
        """Where this worker alone is to listen, besides this address that all share.

        `ports` is as `ServerConfig.worker_ports`. None: nowhere. Raises ConfigError for
        an address that workers cannot share.
        """
        if host_of(address) is None:
            return None  # a path, which is one process's
        host, _, asked = address.rpartition(":")
        if asked == "0":
            want = f"a port that all workers share, such as {host}:50051"
            raise ConfigError("address", address, want)
        if ports == "off":
            return None
        own = 0 if ports == "any" else port + 1 + self._slot
        if own > 65535:
            raise ConfigError("worker_ports", ports, f"ports after {port} up to 65535")
        return f"{host}:{own}"

    def agrees_to_goaway(self) -> bool:
        """Called when GOAWAY is due for this worker. Returns whether it is due for all
        workers that leave with it: else clients without health checks would move from
        one of them to the next."""
        if not self._has_said:
            self._has_said = True
            self.say_quiet()
        return self.is_all_quiet

    def follow(self, tell: Callable[[int, Ports, int], None]) -> None:
        """Tells the group, its ports and how many serve, now and whenever they
        change."""
        self._tell.append(tell)
        tell(self.group, self.siblings, self.serving)

    def learn(self, siblings: Ports, serving: int) -> None:
        if (siblings, serving) != (self.siblings, self.serving):
            self.siblings, self.serving = siblings, serving
            for tell in self._tell:
                tell(self.group, siblings, serving)

    async def ask_usage(self, told: UsageTold) -> UsageHeard:
        """Tells the supervisor what customers used of a server, and returns what they
        used of all servers of the task. Waits for the answer until it is cancelled."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[UsageHeard] = loop.create_future()
        self._asked[told.server] = answer
        try:
            self.tell_usage(told)
            return await answer
        finally:
            self._asked.pop(told.server, None)

    def hear_usage(self, heard: UsageHeard) -> None:
        answer = self._asked.get(heard.server)
        if answer is not None:  # of a loop that may be another thread's
            with suppress(RuntimeError):  # it is closed
                answer.get_loop().call_soon_threadsafe(_tell, answer, heard)

    def __repr__(self) -> str:
        return f"<worker {self.number} of group {self.group}, own ports {self.own}>"


def _tell(answer: "asyncio.Future[UsageHeard]", heard: UsageHeard) -> None:
    if not answer.done():
        answer.set_result(heard)


_membership: Membership | None = None


def membership() -> Membership | None:
    """Returns what this process knows of its task; None: it is no worker."""
    return _membership


def join(member: Membership) -> Membership:
    global _membership
    _membership = member
    return member
