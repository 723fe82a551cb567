"""`python -m lbclient.config` lists the settings; with a page it writes its tables."""

import argparse
import sys
from pathlib import Path

from lbclient.config.tables import listing, with_tables


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lbclient.config",
        description="Lists every setting of channels and servers.",
    )
    parser.add_argument(
        "page", nargs="?", type=Path, help="a page of the docs, to write its tables in"
    )
    page: Path | None = parser.parse_args().page
    if page is None:
        sys.stdout.write(listing())
    else:
        page.write_text(with_tables(page.read_text()))


if __name__ == "__main__":
    main()
