"""Start and end commands, parse flags, and print to the terminal.

In: a command's arguments and its work. Out: an exit code, escaped text, one line for an error.
Read main.py first, then flags.py, terminal.py, stderr_log.py, live_line.py, child_process.py and
worker_pool.py.
"""
