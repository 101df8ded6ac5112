"""Run a script of this folder: `python launch/main.py NAME [ARGUMENT ...]`."""

import signal
import sys

from cloud.commands import COMMANDS

if __name__ == "__main__":
    if sys.argv[1] == "logs" or "--dry-run" in sys.argv:  # they end as `tail` does, after | head
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
