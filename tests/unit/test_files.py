"""A file that a command is to write is tried before; nothing must tell of that."""

import os
from pathlib import Path

import pytest

from lbclient.cli import files
from lbclient.core.errors import ConfigError


def test_a_file_that_is_there_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    files.check("json", str(tmp_path / "a.json"))
    assert (tmp_path / "a.json").read_text() == "old"


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    files.check("json", str(tmp_path / "a.json"))
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_nothing_stays_one(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to("a.json")
    files.check("json", str(link))
    assert list(tmp_path.iterdir()) == [link]


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """Without a reader that would take for ever."""
    os.mkfifo(tmp_path / "pipe")
    files.check("json", str(tmp_path / "pipe"))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"json = .*can be written: Is a directory"):
        files.check("json", str(tmp_path))
