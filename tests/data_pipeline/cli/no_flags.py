"""Define a command without flags, to test how commands start and end."""

import dataclasses

from data_pipeline.cli.flags import Command


@dataclasses.dataclass(frozen=True)
class NoFlags:
    """Declare no flag."""


COMMAND = Command("some.command", "Do it.", NoFlags, "python -m some.command")
