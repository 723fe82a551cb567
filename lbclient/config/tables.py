"""What people read of the settings: a listing, and the tables of the docs.

`with_table` puts any table that a program writes into its page.
"""

from textwrap import indent

from lbclient.config.fields import settings
from lbclient.config.sources import SECTIONS

HEAD = "| field | default | values | variable |\n|---|---|---|---|\n"

# A table is between these; all else on a page is written by hand.
BEGIN = "<!-- settings of {}: `make settings` writes this table -->\n"
END = "<!-- end of settings -->\n"


def listing() -> str:
    """Every setting with its help, default, values and variable, for a terminal."""
    parts = []
    for section, config in SECTIONS.items():
        parts.append(f"[{section}]")
        for setting in settings(config):
            where = f"{setting.name}, {setting.variable_text.replace('`', '')}"
            parts.append(f"{where}\n{indent(setting.words, '    ')}")
    return "\n\n".join(parts) + "\n"


def table(section: str) -> str:
    """The settings of a section in Markdown."""
    rows = [
        f"| `{setting.name}` | {setting.default_text} | {setting.kind.want} "
        f"| {setting.variable_text} |\n"
        for setting in settings(SECTIONS[section])
    ]
    return HEAD + "".join(rows)


def with_tables(page: str) -> str:
    """A page with each table of settings as it is today.

    Raises ValueError if the page has no place for a section's table.
    """
    for section in SECTIONS:
        page = with_table(page, BEGIN.format(section), table(section), END)
    return page


def with_table(page: str, begin: str, text: str, end: str) -> str:
    """The page with another table between the lines `begin` and `end`.

    Raises ValueError if the page has no place for it.
    """
    before, is_begun, rest = page.partition(begin)
    _, is_ended, after = rest.partition(end)
    if not (is_begun and is_ended):
        raise ValueError(f"no place for a table: want {begin!r}, then {end!r}")
    return f"{before}{begin}{text}{end}{after}"
