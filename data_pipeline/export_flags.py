"""The flags of `python -m data_pipeline.export_tfrecord`, read and checked before any work."""

import argparse
import dataclasses
import os
import pathlib
from typing import Any

from data_pipeline.flag_parser import MOST_WORKERS, FlagParser, boolean, check_range
from data_pipeline.options import OPTIONS_OF_A_RUN, PretrainOptions
from data_pipeline.store import HELDOUT, TRAIN, check_is_local
from data_pipeline.tfrecord import COMPRESSIONS

_MOST_EPOCHS = 10_000
_MOST_SHARDS = 99_999  # their numbers have five digits in the files' names
EXAMPLE = (
    "python -m data_pipeline.export_tfrecord STORE --output=DIR --seq_len=128 "
    "--max_predictions_per_seq=20"
)


@dataclasses.dataclass(frozen=True)
class ExportFlags:
    """What to export: each field is a flag of the same name, PretrainOptions' fields among them."""

    store: str
    output: pathlib.Path
    seq_len: int
    max_predictions_per_seq: int
    split: str
    epochs: int  # 0: as many as there are different ones
    shards: int
    compression: str
    workers: int
    options: PretrainOptions


def parse_flags(argv: list[str]) -> ExportFlags:
    """Read the command line.

    Raises:
      ValueError: an unknown or a missing flag, a value outside what is allowed, packed rows.
    """
    values = vars(_parser().parse_args(argv))
    options = PretrainOptions(
        store=values["store"], **{name: values.pop(name) for name in _sampler_flags()}
    )
    if not values["output"]:
        raise ValueError(f"--output is missing; a whole command is: {EXAMPLE}")
    check_is_local("--output", values["output"])
    values["output"] = pathlib.Path(values["output"])
    values["workers"] = values["workers"] or os.cpu_count() or 1
    flags = ExportFlags(**values, options=options)
    _check(flags)
    return flags


def _sampler_flags() -> dict[str, Any]:
    """Name and default of the settings that shape examples."""
    fields = dataclasses.fields(PretrainOptions)
    return {field.name: field.default for field in fields if field.name not in OPTIONS_OF_A_RUN}


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="python -m data_pipeline.export_tfrecord",
        description="Writes the examples of a store as TFRecords with Google BERT's features.",
        epilog=f"example: {EXAMPLE}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("store", metavar="STORE", help="folder that python -m data_pipeline.build wrote")
    add("--output", default="", metavar="DIR", help="the folder to make")
    add("--seq_len", default=128, type=int, metavar="N", help="tokens in an example; default 128")
    add(
        "--max_predictions_per_seq",
        default=20,
        type=int,
        metavar="N",
        help="most masked tokens in an example; default 20; take 77 for 512 tokens",
    )
    add("--split", default=TRAIN, metavar="SPLIT", help=f"{TRAIN} | {HELDOUT}; default {TRAIN}")
    add(
        "--epochs",
        default=0,
        type=int,
        metavar="N",
        help="passes over the text, each with its own pairs, masks and order; default: the value "
        "of --dupe_factor, or 1 for a store of ready-made examples",
    )
    add(
        "--shards",
        default=10,
        type=int,
        metavar="N",
        help="number of files; examples go to them in turn; default 10",
    )
    add(
        "--compression",
        default="none",
        metavar="KIND",
        help=" | ".join(COMPRESSIONS) + "; default none",
    )
    add(
        "--workers",
        default=0,
        type=int,
        metavar="N",
        help="number of processes; default: one per core",
    )
    for name, default in _sampler_flags().items():
        add(
            f"--{name}",
            default=default,
            type=boolean if isinstance(default, bool) else type(default),
            metavar=type(default).__name__.upper(),
            help=argparse.SUPPRESS
            if name == "packed_examples"
            else f"as config.data.{name} in a training run; default {str(default).lower()}",
        )
    return parser


def _check(flags: ExportFlags) -> None:
    flags.options.check_flags()
    if flags.options.packed_examples > 1:
        raise ValueError(
            f"--packed_examples is {flags.options.packed_examples}; Google BERT's records know one "
            "example a row: leave it out"
        )
    for name, allowed in (("split", (TRAIN, HELDOUT)), ("compression", tuple(COMPRESSIONS))):
        if getattr(flags, name) not in allowed:
            raise ValueError(
                f"--{name} is {getattr(flags, name)!r}; it must be one of {', '.join(allowed)}"
            )
    if flags.epochs:
        check_range("epochs", flags.epochs, 1, _MOST_EPOCHS, ", or 0 for the default")
    check_range("shards", flags.shards, 1, _MOST_SHARDS)
    check_range("workers", flags.workers, 1, MOST_WORKERS, ", or 0 for one per core")
