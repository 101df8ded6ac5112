"""Run a script of this folder: `python launch/main.py NAME [ARGUMENT ...]`."""

import sys

from cloud.commands import COMMANDS

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
