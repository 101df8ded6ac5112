"""List the settings of configs: default, unit, range and description.

A command with --config takes each setting as --config.KEY=VALUE.
"""

import dataclasses
import difflib
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.config import Config, FinetuneConfig, Phase, overrides
from bert_jax.lab.study_config import StudyConfig, StudyRow, StudyTask
from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console, print_paragraph
from data_pipeline.io import Refused
from data_pipeline.spec.fields import get_setting


@dataclasses.dataclass(frozen=True)
class SettingsFlags:
    """Declare the flags."""

    pattern: str = flag(
        "",
        "part of a key or of its description; all settings if not given",
        metavar="PATTERN",
        is_positional=True,
    )


COMMAND = Command("bert_jax.settings", __doc__, SettingsFlags, "python -m bert_jax.settings warmup")


@dataclasses.dataclass(frozen=True)
class SettingRow:
    """Describe a setting in words."""

    name: str
    default: str
    allowed: str
    about: str


@dataclasses.dataclass(frozen=True)
class SettingsGroup:
    """Hold the settings of one dataclass of a config."""

    key: str  # config.model, config.phases[0], or config
    about: str
    rows: tuple[SettingRow, ...]


def list_all() -> dict[type[Any], list[SettingsGroup]]:
    """Return the groups of each kind of config; of fine-tuning, what differs from pre-training."""
    study = StudyConfig(rows=(StudyRow(),), tasks=(StudyTask(),))
    return {
        Config: list(_list_groups(Config())),
        FinetuneConfig: list(_list_groups(FinetuneConfig(), Config())),
        StudyConfig: list(_list_groups(study)),
    }


def _list_groups(config: Any, known: Any = None) -> Iterator[SettingsGroup]:
    """Yield the settings outside of groups, then each group.

    Of a group that `known` has too, yield only the settings with another default there.
    """
    yield _describe_group("config", config)
    for field in dataclasses.fields(config):
        value, other = getattr(config, field.name), getattr(known, field.name, None)
        if dataclasses.is_dataclass(value) and value != other:
            shared = other if type(other) is type(value) else None
            yield _describe_group(f"config.{field.name}", value, shared)
        elif isinstance(value, tuple):
            yield _describe_group(f"config.{field.name}[0]", value[0])


def _describe_group(key: str, config: Any, shared: Any = None) -> SettingsGroup:
    hints, rows = typing.get_type_hints(type(config)), []
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        known, default = get_setting(field), getattr(config, field.name)
        if hint not in (int, float, bool, str) or default == getattr(shared, field.name, None):
            continue
        is_required = isinstance(config, Phase) and field.default is dataclasses.MISSING
        words, allowed = ("", "") if known is None else (known.help, known.allowed())
        if known is not None and known.unit:
            words = f"{words} [{known.unit}]"
        allowed = allowed or {int: "whole number", bool: "True or False"}.get(hint, "")
        default_text = "required" if is_required else "empty" if default == "" else f"{default}"
        rows.append(SettingRow(field.name, default_text, allowed, words))
    return SettingsGroup(key, inspect.cleandoc(type(config).__doc__ or ""), tuple(rows))


def _main(log: LibraryLog, flags: SettingsFlags) -> int:
    console, has_any = make_console(highlight=False), False
    pattern, words = flags.pattern.lower(), set[str]()
    for kind, groups in list_all().items():
        rows = [(f"{group.key}.{row.name}", row) for group in groups for row in group.rows]
        words |= {word for key, _ in rows for word in re.findall("[a-z]+", key)}
        listed = [(key, row) for key, row in rows if pattern in f"{key} {row.about}".lower()]
        if listed:
            has_any = True
            console.print(", ".join(kind.PURPOSE[:2]), style="bold", markup=False)
        for key, row in listed:
            default = "" if row.default == "empty" else row.default
            console.print(f"--{key}={default}", markup=False, soft_wrap=True)
            print_paragraph(console, f"{row.about}; {row.allowed}".strip("; "), "dim")
    if not has_any:
        near = [key.removeprefix("--") for key in overrides.near_fields(Config, flags.pattern)]
        near = near or difflib.get_close_matches(pattern, sorted(words))
        hint = f"did you mean {' or '.join(near)}?" if near else "without a pattern all are listed"
        raise Refused(f"{flags.pattern!r} is in no key or description of a setting; {hint}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was changed", argv)


if __name__ == "__main__":
    sys.exit(main())
