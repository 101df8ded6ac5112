"""The flags of `python -m data_pipeline.import_tfrecord`, read and checked before any work."""

import dataclasses
import pathlib

from data_pipeline.flag_parser import FlagParser, boolean
from data_pipeline.store import check_is_local

EXAMPLE = (
    "python -m data_pipeline.import_tfrecord --input='records/*.tfrecord*' --vocab=vocab.txt "
    "--output=stores/records"
)
_HOLDOUT = 0.01


@dataclasses.dataclass(frozen=True)
class ImportFlags:
    """What to import: each field is a flag of the same name."""

    input: str
    heldout_input: str
    vocab: str
    lowercase: bool
    output: pathlib.Path
    holdout: float  # 0 where heldout_input is given


def parse_flags(argv: list[str]) -> ImportFlags:
    """Read the command line.

    Raises:
      ValueError: an unknown or a missing flag, a value outside what is allowed, an address such as
        gs:// for a path.
    """
    values = vars(_parser().parse_args(argv))
    for name in ("input", "vocab", "output"):
        if not values[name]:
            raise ValueError(f"--{name} is missing; a whole command is: {EXAMPLE}")
    for name in ("input", "heldout_input", "vocab", "output"):
        for path in values[name].split(","):
            check_is_local(f"--{name}", path.strip())
    if values["heldout_input"] and values["holdout"] is not None:
        raise ValueError(
            f"--holdout is {values['holdout']} and --heldout_input is {values['heldout_input']}; "
            "held-out examples are either a share of --input or those of --heldout_input: leave "
            "one of them out"
        )
    if values["holdout"] is None:
        values["holdout"] = 0.0 if values["heldout_input"] else _HOLDOUT
    elif not 0.0 < values["holdout"] <= 0.5:
        raise ValueError(
            f"--holdout is {values['holdout']}; it must be more than 0 and at most 0.5 "
            f"(default {_HOLDOUT})"
        )
    values["output"] = pathlib.Path(values["output"])
    return ImportFlags(**values)


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="python -m data_pipeline.import_tfrecord",
        description="Makes a store that bert_jax trains from out of TFRecords with Google BERT's "
        "features, as create_pretraining_data.py writes them.",
        epilog=f"example: {EXAMPLE}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--input",
        default="",
        metavar="GLOB[,GLOB]",
        help="TFRecord files, plain or gzipped; their examples may have several lengths, such as "
        "128 and 512",
    )
    add(
        "--heldout_input",
        default="",
        metavar="GLOB[,GLOB]",
        help="files of examples to evaluate on; without it, --holdout of --input is held out",
    )
    add(
        "--vocab",
        default="",
        metavar="FILE",
        help="the vocab.txt or *.model that the ids were made with",
    )
    add(
        "--lowercase",
        default=True,
        type=boolean,
        metavar="BOOL",
        help="whether the ids were made from lowercased text; default true",
    )
    add("--output", default="", metavar="STORE", help="the folder to make")
    add(
        "--holdout",
        default=None,
        type=float,
        metavar="SHARE",
        help="share of the examples to hold out, chosen by the text of their first segment; "
        f"default {_HOLDOUT}",
    )
    return parser
