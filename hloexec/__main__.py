"""`python -m hloexec` is the command `hloexec`."""

from __future__ import annotations

import sys

from hloexec.cli import main

if __name__ == "__main__":
    sys.exit(main())
