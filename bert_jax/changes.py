"""What a run that went on was set otherwise: from which step, which setting, before and then.

Kept in the receipt, whose config is that of the newest start: the earlier ones follow from it.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.run_config import RunConfig


@dataclasses.dataclass(frozen=True)
class Change:
    """A setting that a later start of a run gave otherwise."""

    since_step: int  # steps that were done and saved at that start
    setting: str  # as it is called after "config."
    before: Any
    now: Any

    def in_words(self) -> str:
        return f"{self.setting} {self.before} -> {self.now} since step {self.since_step:,}"


def changed(
    known: Sequence[Change], before: dict[str, Any], config: RunConfig, step: int
) -> list[Change]:
    """What is known, and how this config differs from the last start's.

    `before` is a config as JSON has it. A setting that it lacks is younger than that start. Starts
    after the same step count as one.
    """
    now = dict(_settings(json.loads(json.dumps(dataclasses.asdict(config)))))
    changes = {(one.since_step, one.setting): one for one in known}
    for setting, value in _settings(before):
        if setting in now and now[setting] != value:
            first = changes.pop((step, setting), Change(step, setting, value, None))
            if first.before != now[setting]:
                changes[step, setting] = dataclasses.replace(first, now=now[setting])
    return list(changes.values())


def _settings(shown: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of a nested config: optim.learning_rate, phases[0].steps."""
    if isinstance(shown, dict):
        for name, value in shown.items():
            yield from _settings(value, f"{path}.{name}" if path else name)
    elif isinstance(shown, list):
        for number, value in enumerate(shown):
            yield from _settings(value, f"{path}[{number}]")
    else:
        yield path, shown
