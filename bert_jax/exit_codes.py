"""How a training process ends, for the shell and for whoever starts it again.

0         the run came to its last step
1         it failed; started again, it goes on from the newest checkpoint
2         what was asked for cannot be done, and could not if it were asked again
3         the guard of bad numbers stopped it, and would again
86        a step, a save or another piece of work took longer than config.hosts allows
128 + n   signal n ended it: 130 and 143 after a save, 134 where another process died
"""

from data_pipeline.exit_code import REFUSED

DONE, FAILED, BAD_NUMBERS, STUCK = 0, 1, 3, 86
BY_SIGNAL = 128  # plus the signal's number
# Starting the same command again would end the same way.
FINAL = (DONE, REFUSED, BAD_NUMBERS)


class Refused(ValueError):
    """What was asked for cannot be done, found after the work began: ends with REFUSED too."""
