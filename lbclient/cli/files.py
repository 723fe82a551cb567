"""The files that a command writes: checked before it runs rather than after."""

import json
import os
from pathlib import Path

from lbclient.core.errors import ConfigError


def check(field: str, file: str) -> None:
    """Raises ConfigError for a file that cannot be written; leaves none behind."""
    path = Path(file)
    try:
        if path.is_fifo():
            return  # whoever reads it would take this for the end
        is_there = path.exists()
        path.open("a").close()
        if not is_there:
            os.unlink(os.path.realpath(path))  # not a link to it
    except OSError as error:
        raise unwritable(field, file, error) from None


def write_json(file: str, what: object) -> None:
    """Raises ConfigError if it cannot be written."""
    try:
        Path(file).write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise unwritable("json", file, error) from None


def unwritable(field: str, file: str, error: OSError) -> ConfigError:
    """What is told of a file that could not be."""
    want = f"a file that can be written: {error.strerror or error}"
    return ConfigError(field, file, want)
