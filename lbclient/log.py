"""lbclient's loggers: each record has fields for formatters that write JSON.

docs/logging.md lists the fields. Their names have a prefix: `logging` raises KeyError
for a field that a record has already, and an application may give its records a
`channel` or a `state` of its own.
"""

import logging
from collections.abc import Mapping, MutableMapping
from contextvars import Context, ContextVar
from typing import Any

FIELDS = ("channel", "backend", "state", "reason")
PREFIX = "lbclient_"

_subject: ContextVar[Mapping[str, str] | None] = ContextVar("_subject", default=None)


def set_subject(**fields: str) -> None:
    """What this task logs is about this `channel` and `backend`, unless a log call
    names one of them. Tasks and timers that this task starts inherit it."""
    _subject.set(fields)


def bare_context() -> Context:
    """Makes a context that has nothing of this one but its subject."""
    context = Context()
    context.run(_subject.set, _subject.get())
    return context


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls take `FIELDS` as keywords: `log.info("...", backend=...)`.

    A record has all fields, so a `%`-style format may name any; one that does not
    apply is empty.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        said = {name: _text(kwargs.pop(name)) for name in FIELDS if name in kwargs}
        if not ("channel" in said or "backend" in said):
            said = {**(_subject.get() or {}), **said}
        kwargs["extra"] = {PREFIX + name: said.get(name, "") for name in FIELDS}
        return msg, kwargs

    def about(
        self,
        level: int,
        words: str = "",
        *arguments: object,
        reason: object = "",
        exc_info: bool | BaseException = False,
        **fields: str,
    ) -> None:
        """Logs words after what they are about: the `backend`, or else the `channel`.

        Both are fields of the record, too. Without words it logs the reason.
        """
        if not words:
            words, arguments = "%s", (reason,)
        subject = fields.get("backend") or fields.get("channel", "")
        said: dict[str, Any] = {**fields, "reason": reason, "exc_info": exc_info}
        # The record names the line that calls this.
        self.log(level, f"%s: {words}", subject, *arguments, stacklevel=2, **said)


def _text(value: object) -> str:
    """
    >>> _text(TimeoutError("no answer"))
    'TimeoutError: no answer'
    """
    try:
        is_error = isinstance(value, BaseException)
        return f"{type(value).__name__}: {value}" if is_error else str(value)
    except Exception:  # of an error that is not ours
        return type(value).__name__
