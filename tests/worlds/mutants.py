"""Plants faults, one at a time, and counts the worlds that find each.

`python -m tests.worlds.mutants --worlds 60` prints a table: the mutant, the number of
worlds until one broke a promise, and which. Mends of earlier faults are among them,
taken out. Each runs in a process of its own, with another text in one module.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.worlds.planting import ROOT, Mutant, plant
from tests.worlds.server_mutants import SERVER_MUTANTS
from tests.worlds.worker_mutants import WORKER_MUTANTS

MUTANTS = [
    # --- the state of calls
    Mutant(
        "an expired call stays in the queue",
        "client/calls/waiting.py",
        "        balancer.pending.leave(self)\n        waited",
        "        waited",
    ),
    Mutant(
        "a cancelled call stays in the queue",
        "client/calls/sending.py",
        "        self._balancer.pending.leave(self)\n        was_sent",
        "        was_sent",
    ),
    Mutant(
        "the timer of a wait is not ended by its end",
        "client/calls/waiting.py",
        "            if timer is not None:\n                timer.cancel()",
        "            pass",
    ),
    Mutant(
        "a waiting call has no deadline",
        "client/calls/waiting.py",
        "        if self._deadline is not None and self._error is None:",
        "        if False:",
    ),
    Mutant(
        "a wrapped call is done before its attempt is",
        "client/calls/sending.py",
        "            return self._attempt_end.has_come\n",
        "            return True\n",
    ),
    Mutant(
        "a call that was given up is told CancelledError",
        "client/calls/sending.py",
        "        if not cause_of(inner):\n            return False\n"
        "        if cancellations() > before:\n            self.cancel()  #",
        "        if True:\n            return False\n"
        "        if cancellations() > before:\n            self.cancel()  #",
    ),
    Mutant(
        "the same, of a direct call",
        "client/calls/direct.py",
        "        if not cause_of(self):\n            return False",
        "        if True:\n            return False",
    ),
    Mutant(
        "a retried direct call forgets its callbacks",
        "client/calls/direct.py",
        "        later.add_done_callback(self._tell)",
        "        pass",
    ),
    Mutant(
        "a stream that is dropped half-read goes on",
        "client/calls/streams.py",
        "    def __del__(self) -> None:\n        self._abandon()",
        "    def __del__(self) -> None:\n        pass",
    ),
    Mutant(
        "a failed write takes the place of the status",
        "client/calls/sending.py",
        "        if call is not None and call.streams_requests:",
        "        if False:",
    ),
    Mutant(
        "what a stream has read is forgotten at a retry",
        "client/calls/streams.py",
        "        return self._has_read",
        "        return False",
    ),
    Mutant(
        "who gives up a read leaves a call that is not sent",
        "client/calls/streams.py",
        "                    call.cancel()  # what grpc.aio",
        "                    pass  # what grpc.aio",
    ),
    Mutant(
        "a hedged call has an attempt before it is sent",
        "client/calls/hedged.py",
        "            if attempt is not None and attempt.is_hedge:",
        "            if attempt.is_hedge:",
    ),
    # --- counts
    Mutant(
        "a call that was not begun stays in flight",
        "client/calls/call_ends.py",
        "        attempt.backend.load.forget()\n",
        "        pass\n",
    ),
    Mutant(
        "who leaves lets nobody in",
        "client/balancer.py",
        "        self.connections.call_left(backend)\n        if self.pending.waiters:",
        "        self.connections.call_left(backend)\n        if False:",
    ),
    Mutant(
        "who waits begins between two runs of the loop",
        "client/balancer.py",
        "        if not self.loop.is_running():",
        "        if False:",
    ),
    Mutant(
        "a cancelled wait is not counted",
        "client/calls/sending.py",
        "self._balancer.call_ends.count(\n            grpc.StatusCode.CANCELLED",
        "(lambda *_: None)(\n            grpc.StatusCode.CANCELLED",
    ),
    Mutant(
        "waiting calls outlive their channel",
        "client/balancer.py",
        "def _stop(self) -> None:\n        self.pending.cancel()",
        "def _stop(self) -> None:",
    ),
    Mutant(
        "the queue serves one call at a time",
        "client/pending.py",
        "            waiter.start(backend, now)\n        if not",
        "            waiter.start(backend, now)\n            break\n        if not",
    ),
    # --- retries
    Mutant(
        "nothing that failed was sent",
        "client/calls/attempt_outcome.py",
        "    return not was_not_sent(call, backend.channel, backend.tells_refusals())",
        "    return False",
    ),
    Mutant(
        "every method is idempotent",
        "core/retries/retry.py",
        "        if failure.refusal is None and not self._is_idempotent():",
        "        if False:",
    ),
    Mutant(
        "attempts have no number",
        "core/retries/retry.py",
        "        if self.attempt + 1 >= self._attempts:",
        "        if self.attempt + 1 >= 9:",
    ),
    Mutant(
        "the budget for retries has no end",
        "core/retries/retry.py",
        "        if self._balance <= 0.0:\n            return False",
        "        pass",
    ),
    Mutant(
        "a retry starts after the deadline",
        "core/retries/retry.py",
        "        if left is not None and delay >= left:",
        "        if False:",
    ),
    Mutant(
        "a call is retried after it was answered",
        "core/retries/retry.py",
        "        if failure.is_answered:\n",
        "        if False:\n",
    ),
    Mutant(
        "two attempts both answer a hedged call",
        "client/calls/hedged.py",
        "        if hedge is None:  # the other one has decided the call",
        "        if hedge is None and not self._lbclient:",
    ),
    # --- connections and health
    Mutant(
        "a lost connection is not made again",
        "client/backends/connection.py",
        "while (connectivity := channel.get_state(try_to_connect=True)) is not READY:",
        "while (connectivity := channel.get_state()) is not READY:",
    ),
    Mutant(
        "silence is no news",
        "core/backends/silence.py",
        "        return self._judge_at is not None and now >= self._judge_at",
        "        return False",
    ),
    Mutant(
        "a silent connection is kept",
        "core/backends/silence.py",
        "        return self._redial_at is not None and now >= self._redial_at",
        "        return False",
    ),
    Mutant(
        "a lost connection is ready",
        "core/backends/lifecycle.py",
        '        return self.connection.enter(State.CONNECTING, "connection lost")',
        '        return self.connection.enter(State.READY, "connection lost")',
    ),
    Mutant(
        "a lame duck is ready",
        "core/backends/lifecycle.py",
        '        return self.connection.enter(State.LAME_DUCK, "it sent GOAWAY")',
        '        return self.connection.enter(State.READY, "it sent GOAWAY")',
    ),
    Mutant(
        "a drained backend is not closed",
        "client/backends/connections.py",
        "            self._retire(backend)\n            backend.close_now()",
        "            self._retire(backend)",
    ),
    Mutant(
        "former connections are not ended",
        "client/backends/backend.py",
        "        channels = self._former.release()\n",
        "        channels = []\n",
    ),
    Mutant(
        "turns to connect are not given back",
        "client/connect_pacer.py",
        "call_later(hold, self._turns.release)",
        "call_later(1e4 * hold, self._turns.release)",
    ),
    Mutant(
        "an empty answer of the resolver is believed",
        "client/backends/discovery.py",
        "        if not endpoints and self._connections.pool.endpoints:",
        "        if False:",
    ),
    Mutant(
        "an ejected backend has no trial",
        "core/outliers/answer_record.py",
        "        return self.trial_at if self.tried_at is None else",
        "        return 1e9 if self.tried_at is None else",
    ),
    Mutant(
        "a silent backend is ready",
        "core/backends/lifecycle.py",
        'return self.connection.enter(State.CONNECTING, f"silent for {seconds:.1f} s")',
        'return self.connection.enter(State.READY, f"silent for {seconds:.1f} s")',
    ),
    Mutant(
        "connections are tried again without a pause",
        "grpc_seam/channels.py",
        '"grpc.max_reconnect_backoff_ms": round(max_backoff * 1000)',
        '"grpc.max_reconnect_backoff_ms": 20',
    ),
    Mutant(
        "the first answer of a stream is lost",
        "client/calls/streams.py",
        "call._begin_reading(message)\n                    return",
        "call._begin_reading(message)\n"
        "                        continue\n                    return",
    ),
    Mutant(
        "the connection of a LOOK is not closed",
        "client/health/ordered_checks.py",
        "            step(channel.close())",
        "            self.__dict__.setdefault('kept', []).append(channel)",
    ),
    Mutant(
        "what a resolver raises is not caught",
        "client/backends/discovery.py",
        "        error = printable(error)\n        logger",
        "        raise RuntimeError(error)\n        logger",
    ),
    Mutant(
        "nobody may wait for the first connection",
        "client/pending.py",
        "        if len(self) >= self._config.max_waiting:",
        "        if not self._pool.ready:",
    ),
    # --- servers, beside clients
    Mutant(
        "what is too late has no trial",
        "core/overload/admission.py",
        "        if now < self._trial_at:",
        "        if True:",
    ),
    Mutant(
        "errors of a crash count until they have faded",
        "pickers/p2c.py",
        "now - HELD_FOR",
        "now - 5 * HELD_FOR",
    ),
]


EVERY = (*MUTANTS, *WORKER_MUTANTS, *SERVER_MUTANTS)


def hunt(mutant: Mutant, first: int, worlds: int) -> str:
    """In a process of its own: the number of worlds, and the promise."""
    command = [sys.executable, "-m", "tests.worlds.mutants"]
    command += ["--hunt", mutant.name, "--seed", str(first), "--worlds", str(worlds)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else f"? {done.stderr.strip()[-200:]}"


def found_by(name: str, first: int, worlds: int) -> str:
    """The number of worlds until one broke a promise, or "kept" if it is the world that
    is kept for this; and the promises."""
    # Not before the mutant is planted.
    from tests.worlds.arrivals import arrivals_of
    from tests.worlds.either import broken, run
    from tests.worlds.kept import KEPT
    from tests.worlds.plan import plan_of, workers_of

    make: Callable[[int], Any] = plan_of
    for mutants, other in (SERVER_MUTANTS, arrivals_of), (WORKER_MUTANTS, workers_of):
        if any(one.name == name for one in mutants):
            make = other
    plans: list[tuple[str, Any]]
    plans = [(str(n), make(first + n - 1)) for n in range(1, worlds + 1)]
    if name in KEPT:
        plans.append(("kept", KEPT[name]))
    for which, plan in plans:
        try:
            found = broken(run(plan))
        except Exception as error:
            return f"{which} | a world ends with {error!r}"
        if found:
            names = list(dict.fromkeys(each for each, _ in found))
            return f"{which} | {'; '.join(names)}"
    return f"none of {worlds} | "


def rows(names: list[str], first: int, worlds: int) -> Iterator[str]:
    for mutant in EVERY:
        if not names or mutant.name in names:
            yield f"| {mutant.name} | {hunt(mutant, first, worlds)} |"


def main() -> None:
    parser = argparse.ArgumentParser("tests.worlds.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="of mutants; all of them")
    parser.add_argument("--seed", type=int, default=0, help="of the first world")
    parser.add_argument("--worlds", type=int, default=60, help="at most, for each")
    parser.add_argument("--hunt", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.hunt is not None:
        plant(next(one for one in EVERY if one.name == asked.hunt))
        print(found_by(asked.hunt, asked.seed, asked.worlds))
        return
    began_at = time.monotonic()
    print("| planted fault | worlds until it was found | by the promise |")
    print("|---|---:|---|")
    for row in rows(asked.names, asked.seed, asked.worlds):
        print(row, flush=True)
    print(f"{time.monotonic() - began_at:.0f} s")


if __name__ == "__main__":
    main()
