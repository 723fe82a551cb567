"""The demo's picture of the fleet."""

import io

from rich.console import Console

from examples.fleet.view import BAR, Plain, Row, Scene, bar, choose_view, picture

ROWS = (
    Row("backend-0", 1.0, 0.95, "ready", 61.7, 0.57, 3, ""),
    Row("backend-1", 2.5, 0.25, "lame duck 1 ready 3", 140.0, 1.43, 1, "SIGTERM"),
)


def test_a_bar_is_as_long_as_the_utilization_with_a_mark_at_the_mean() -> None:
    assert BAR == 20
    assert bar(0.5, 1.2) == f"[green]{'█' * 10}{' ' * 9}|[/green]"
    assert bar(0.8, 0.0) == f"[yellow]|{'█' * 15}{' ' * 4}[/yellow]"
    assert bar(3.0, 0.5).count("█") == BAR - 1


def test_the_picture_shows_every_backend_with_what_is_done_to_it() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(picture(Scene("5/7 rolling restart", 3.4, ROWS)))
    lines = console.export_text().splitlines()
    assert lines[0].strip() == "5/7 rolling restart, 3 s left"
    first, second = lines[2:4]
    assert first.split()[:2] == ["backend-0", "1"]
    assert first.split()[-5:] == ["95%", "62", "0.57", "3", "ready"]
    assert second.rstrip().endswith("1 SIGTERM lame duck 1 ready 3")


def test_what_is_no_terminal_gets_plain_lines() -> None:
    assert isinstance(choose_view({"TERM": "xterm"}), Plain)
