"""Train what came before BERT on a store: python -m bert_jax.baseline KIND --store=STORE ...

    skipgram    a vector for each token, by skip-gram with negative sampling (word2vec)
    bilm        LSTMs that read left to right and right to left (ELMo, over tokens)

    --store=STORE    folder that data_pipeline.build wrote
    --workdir=DIR    a new folder, or one of the same training, to resume it
    --seed=0         and other settings of the kind

Writes DIR/summary.json. skipgram also writes DIR/vectors.npz, a vector for each token of the
vocabulary, in the format of bert_jax.features.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from bert_jax.lab.baselines.settings import BASELINES
from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused
from data_pipeline.spec.fields import describe_setting


def _define_settings() -> dict[str, flags.FlagHolder]:
    """Define a flag for each setting of any kind; None means the default of the kind."""
    words: dict[str, list[str]] = {}
    is_whole: dict[str, bool] = {}
    for kind, options in BASELINES.items():
        for field in dataclasses.fields(options):
            words.setdefault(field.name, []).append(f"{kind}: {describe_setting(field)}")
            is_whole[field.name] = isinstance(field.default, int)
    return {
        name: (flags.DEFINE_integer if is_whole[name] else flags.DEFINE_float)(
            name, None, " | ".join(words[name])
        )
        for name in words
    }


_STORE = flags.DEFINE_string("store", "", "folder that data_pipeline.build wrote")
_WORKDIR = flags.DEFINE_string("workdir", "", "folder of the baseline")
_SETTINGS = _define_settings()

USAGE = f"python -m bert_jax.baseline {'|'.join(BASELINES)} --store=STORE --workdir=DIR"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

import jax

from bert_jax.lab.baselines import bilm, skipgram, training
from bert_jax.lab.baselines.settings import BILM, SKIPGRAM
from bert_jax.logging.console import Screen, duration
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.spec.fields import check_fields
from data_pipeline.store import Store

_TRAIN: dict[str, Callable[[pathlib.Path, Store, Any, Screen], None]] = {
    SKIPGRAM: skipgram.train,
    BILM: bilm.train,
}


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        if not arguments or arguments[0] not in BASELINES:
            given = repr(arguments[0]) if arguments else "missing"
            raise Refused(f"KIND is {given}; it must be one of {', '.join(BASELINES)}; {USAGE}")
        cli.refuse_arguments(arguments[1:], USAGE)
        kind = arguments[0]
        settings = _read_settings(kind, BASELINES[kind])
        for flag in (_STORE, _WORKDIR):
            if not flag.value:
                raise Refused(f"--{flag.name} is missing; {USAGE}")
        log.hold()
        store = training.open_text(_STORE.value)
        jax.devices()  # refuses a missing device before anything is written
        folder = pathlib.Path(_WORKDIR.value)
        training.claim_baseline(folder, kind, settings, store)
    screen = Screen(is_writer=True)
    screen.table(f"{kind} on {_STORE.value}", [(k, str(v)) for k, v in vars(settings).items()])
    if training.read_summary(folder) is None:
        _TRAIN[kind](folder, store, settings, screen)
    summary = training.read_summary(folder) or {}
    rows = [(name, str(value)) for name, value in summary.items() if name != "seconds"]
    screen.table("done", [*rows, ("time", duration(summary["seconds"])), ("in", str(folder))])
    return 0


def _read_settings(kind: str, options: type[Any]) -> Any:
    """Build the settings of a kind from the flags; refuse a flag of another kind."""
    given = {name: flag.value for name, flag in _SETTINGS.items() if flag.value is not None}
    names = [field.name for field in dataclasses.fields(options)]
    for name in given.keys() - set(names):
        raise Refused(f"--{name} is no setting of {kind}; choose from {', '.join(names)}")
    settings = options(**given)
    check_fields(settings, "--")
    return settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "the same command resumes", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
