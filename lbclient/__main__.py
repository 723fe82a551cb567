"""`python -m lbclient` is `lbclient`."""

import sys

from lbclient.cli import main

if __name__ == "__main__":
    sys.exit(main())
