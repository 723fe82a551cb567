"""The fields of log records, and the formatter of docs/logging.md."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lbclient.log import FIELDS, PREFIX, Log, set_subject

PAGE = (Path(__file__).parents[2] / "docs" / "logging.md").read_text()

logger = Log("lbclient.test")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    kept = Kept()
    logger.logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield kept.records
    logger.logger.removeHandler(kept)
    logger.setLevel(logging.NOTSET)


def fields(record: logging.LogRecord) -> dict[str, str]:
    return {name: vars(record)[PREFIX + name] for name in FIELDS}


def test_a_record_has_every_field(records: list[logging.LogRecord]) -> None:
    logger.info("%s left", "b:1", channel="c", backend="b:1", state="lame duck")
    (record,) = records
    assert record.getMessage() == "b:1 left"
    assert record.funcName == "test_a_record_has_every_field"
    said = {"channel": "c", "backend": "b:1", "state": "lame duck", "reason": ""}
    assert fields(record) == said


def test_words_about_a_backend_or_a_channel_begin_with_it(
    records: list[logging.LogRecord],
) -> None:
    logger.about(logging.INFO, "%d endpoints", 3, channel="c")
    logger.about(logging.INFO, channel="c", backend="b:1", reason="100% used")
    assert [one.getMessage() for one in records] == ["c: 3 endpoints", "b:1: 100% used"]
    assert (
        records[0].funcName == "test_words_about_a_backend_or_a_channel_begin_with_it"
    )
    said = {"channel": "c", "backend": "b:1", "state": "", "reason": "100% used"}
    assert fields(records[1]) == said


def test_a_task_has_a_subject_unless_a_call_names_another(
    records: list[logging.LogRecord],
) -> None:
    async def follow() -> None:
        set_subject(channel="c", backend="b:1")
        logger.info("it answers", reason="a check")
        logger.info("20 changes at once", channel="c")

    asyncio.run(follow())
    logger.info("of nobody")
    named = [(one["channel"], one["backend"]) for one in map(fields, records)]
    assert named == [("c", "b:1"), ("c", ""), ("", "")]
    assert fields(records[0])["reason"] == "a check"


def test_an_error_that_cannot_be_told_costs_no_record(
    records: list[logging.LogRecord],
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise TypeError

    for error in (TimeoutError("no answer"), Mute()):
        logger.info("failed", reason=error)
    reasons = [fields(record)["reason"] for record in records]
    assert reasons == ["TimeoutError: no answer", "Mute"]


@pytest.fixture
def records_with_own_fields() -> Iterator[None]:
    """As applications have them: a field that was there before raises KeyError."""
    before = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        vars(record).update(dict.fromkeys(FIELDS, "the application's"))
        return record

    logging.setLogRecordFactory(make)
    yield
    logging.setLogRecordFactory(before)


@pytest.mark.usefixtures("records_with_own_fields")
def test_fields_are_no_attributes_of_others(records: list[logging.LogRecord]) -> None:
    logger.info("left", channel="c", reason="r")
    (record,) = records
    assert fields(record)["reason"] == "r"
    assert vars(record)["reason"] == "the application's"


def test_the_page_names_the_fields_and_writes_them_as_json(
    records: list[logging.LogRecord],
) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [PREFIX + name for name in FIELDS]
    code, example = re.findall(r"```(?:python|json)\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, Any] = {"__name__": "logging_page"}
    exec(code.partition("\n\nhandler = ")[0], scope)
    shown = json.loads(example)
    said = {name: shown[PREFIX + name] for name in FIELDS}
    logger.info("%s", shown["message"], **said)
    written = json.loads(scope["JsonFormatter"]().format(records[0]))
    assert written.keys() == shown.keys()
    assert written["message"] == shown["message"]
    assert {name: written[PREFIX + name] for name in FIELDS} == said
