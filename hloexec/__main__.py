"""The command `hloexec`, also available as `python -m hloexec`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command line; until it can say something, Ctrl-C ends it in silence."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hloexec.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
