"""Define the error of a request that cannot be fulfilled."""


class Refused(ValueError):
    """Report what the user must change: the command ends with exit code 2 and this sentence.

    The message says what is wrong, the value, what is allowed and the way out. A plain ValueError
    is a bug of ours: it shows its traceback, and the exit code is 1.
    """
