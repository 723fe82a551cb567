"""Runs a synchronous server until SIGTERM or Ctrl-C, then drains and stops it."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import grpc

from lbclient.core.model import State
from lbclient.log import Log
from lbclient.server.os_signals import SIGNALS, without_echo
from lbclient.server.sync.running import drain, start
from lbclient.server.warmup import Warmup, check

POLL_INTERVAL = 0.05  # seconds in which a signal is noticed

logger = Log(__name__)


def serve_sync(server: grpc.Server, warmup: Warmup | None = None) -> None:
    """Starts the server if need be, and returns when it has stopped.

    As `lbclient.serve`, for a server of `grpc.server` or `lbclient.sync_server`: the
    first SIGTERM or SIGINT drains it; another one, half a second later or more, stops
    it. Signals are handled in the main thread only; in another one `serve_sync` returns
    when somebody stops the server. While `warmup` runs clients connect and wait; if it
    raises, the server is stopped and so does `serve_sync`. Raises TypeError for what is
    no server.
    """
    if isinstance(server, grpc.aio.Server):
        raise TypeError(f"this is an asyncio server, await lbclient.serve: {server!r}")
    if not isinstance(server, grpc.Server):
        raise TypeError(f"no server of grpc or lbclient's sync_server: {server!r}")
    check(warmup)
    leave, hurry = Event(), Event()

    def on_signal() -> None:
        (hurry if leave.is_set() else leave).set()

    with _handling(without_echo(on_signal)):
        try:
            _until(leave, _begin(lambda: start(server, warmup)))
            while not leave.is_set() and server.wait_for_termination(POLL_INTERVAL):
                pass
            if leave.is_set():
                words = "stopping; send the signal again to stop immediately; %r"
                logger.info(words, server, state=State.LAME_DUCK.value)
                _until(hurry, _begin(lambda: drain(server)))
        finally:
            server.stop(None).wait()


def _begin(work: Callable[[], object]) -> "Future[None]":
    """In a daemon thread, as the main one waits for signals."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, name="lbclient serve", daemon=True).start()
    return done


def _until(signalled: Event, work: "Future[None]") -> None:
    """Waits for the work, but not beyond the signal. Raises what the work raises."""
    while not signalled.is_set():
        if wait_for((work,), POLL_INTERVAL).done:
            return work.result()


@contextmanager
def _handling(on_signal: Callable[..., Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        logger.info("signal handlers not installed: not the main thread")
        yield
        return
    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
