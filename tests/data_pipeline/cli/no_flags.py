"""A command without flags, for tests of how commands start and end."""

import dataclasses

from data_pipeline.cli.flags import Command


@dataclasses.dataclass(frozen=True)
class NoFlags:
    """Nothing."""


COMMAND = Command("some.command", "Do it.", NoFlags, "python -m some.command")
