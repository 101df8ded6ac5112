"""Define the exit codes of commands, for shells and restart scripts.

0         the run reached its last step
1         it failed; the same command resumes from the newest checkpoint
2         the request was refused, and would be again
3         the guard against bad steps stopped the run, and would again
86        a step, a save or another piece of work took longer than config.hosts allows
128 + n   signal n stopped it: 129 (HUP), 130 (Ctrl-C), 138 (USR1), 140 (USR2) and 143 (TERM); a
          training run saves first; 134: another process died; 141: the reader of stdout has gone
"""

from data_pipeline.cli.main import REFUSED, describe_os_error
from data_pipeline.io.refused import Refused

DONE, FAILED, BAD_NUMBERS, STUCK = 0, 1, 3, 86


def describe_failure(error: BaseException) -> tuple[int, str]:
    """Return the exit code of a run that ends with an error, and the error in one line."""
    if isinstance(error, OSError):
        return FAILED, f"error: {describe_os_error(error)}"
    if isinstance(error, Refused):
        return REFUSED, f"error: {error}"
    if isinstance(error, FloatingPointError):
        return BAD_NUMBERS, f"error: {error}"
    return FAILED, f"{type(error).__name__}: {error}"
