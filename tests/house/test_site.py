"""The documentation site builds, and no link in it leads nowhere."""

import re
from collections.abc import Callable
from pathlib import Path

import lbclient
from tests import needs


def test_the_site_builds_without_a_warning(
    module: Callable[..., str], tmp_path: Path
) -> None:
    needs.module("mkdocs")
    # Warnings, such as a page that is not in `nav`, are errors: `strict` in mkdocs.yml.
    # With `--quiet` none would be counted.
    module("mkdocs", "build", "--site-dir", tmp_path)
    home = (tmp_path / "index.html").read_text()
    linked = re.findall(r'href="([^":#]+\.html)', home)
    assert "concepts.html" in linked
    assert [link for link in linked if not (tmp_path / link).exists()] == []
    api = (tmp_path / "api.html").read_text()
    shown = set(re.findall(r'id="lbclient\.([\w.]+)"', api))
    assert set(vars(lbclient)["__all__"]) <= {name.split(".")[-1] for name in shown}
    assert {"Server.statistics", "SyncServer.statistics"} <= shown  # of their base
