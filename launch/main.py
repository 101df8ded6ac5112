"""Run a script of this folder: `python launch/main.py NAME [ARGUMENT ...]`."""

import signal
import sys

from cloud.commands import COMMANDS
from cloud.text import refuse

if __name__ == "__main__":
    if not COMMANDS.keys() & sys.argv[1:2]:
        refuse(f"{sys.argv[1:2]} is no script of launch/; run one of {', '.join(COMMANDS)}")
    if sys.argv[1] == "logs" or "--dry-run" in sys.argv:  # they end as `tail` does, after | head
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
