"""The flags of `python -m data_pipeline.build`, read and checked before any file is opened."""

import dataclasses
import os
import pathlib

from data_pipeline.beam_encoding import check_installed, check_options
from data_pipeline.cleaning import DROP, KEEP, NORMAL_FORMS, TOGETHER, CleaningOptions
from data_pipeline.files import is_address
from data_pipeline.flag_parser import MOST_WORKERS, FlagParser, boolean, check_range
from data_pipeline.store import check_is_local
from data_pipeline.text_options import DOCUMENT_RULES, SENTENCE_RULES, TextOptions
from data_pipeline.vocab_training import BPE, LEAST_COVERAGE, TRAINED, UNIGRAM, WORDPIECE

EXAMPLE = (
    "python -m data_pipeline.build --input='corpus/*.txt.gz' --output=stores/corpus "
    "--train_vocab=wordpiece --vocab_size=30522"
)

MOST_PIECES = 1 << 24
LOCAL, BEAM = "local", "beam"  # runners
_CLEANING = dataclasses.fields(CleaningOptions)


@dataclasses.dataclass(frozen=True)
class BuildFlags:
    """What to build: a flag for each field, and for each of TextOptions and CleaningOptions."""

    input: str
    output: pathlib.Path
    address: str  # in a bucket, to which the store is copied; "" for a local one
    scratch: str
    vocab: str
    train_vocab: str
    vocab_size: int
    reserved_pieces: int
    character_coverage: float | None
    lowercase: bool
    holdout: float
    runner: str
    workers: int
    beam_options: str
    overwrite: bool
    text: TextOptions
    cleaning: CleaningOptions


def parse_flags(argv: list[str]) -> BuildFlags:
    """Read the command line.

    Raises:
      ValueError: an unknown flag, a value outside what is allowed, an address such as gs:// for
        --output or --vocab, two flags that exclude each other, a flag that is missing.
    """
    values = _parser().parse_args(argv)
    address = values.output.rstrip("/") if is_address(values.output) else ""
    if not address:
        check_is_local("--output", values.output)
    check_is_local("--vocab", values.vocab)
    check_is_local("--scratch", values.scratch)
    if values.scratch and not address:
        raise ValueError(
            f"--scratch is {values.scratch}, but --output={values.output} is a folder here, in "
            "which the store is built; leave it out"
        )
    flags = BuildFlags(
        input=values.input,
        output=pathlib.Path(values.output),
        address=address,
        scratch=values.scratch,
        vocab=values.vocab,
        train_vocab=values.train_vocab,
        vocab_size=values.vocab_size,
        reserved_pieces=values.reserved_pieces,
        character_coverage=values.character_coverage,
        lowercase=values.lowercase,
        holdout=values.holdout,
        runner=values.runner,
        workers=values.workers or os.cpu_count() or 1,
        beam_options=values.beam_options,
        overwrite=values.overwrite,
        text=TextOptions(values.documents, values.sentences, values.language, values.text_key),
        cleaning=CleaningOptions(
            **{field.name: getattr(values, field.name) for field in _CLEANING}
        ),
    )
    _check(flags, has_output=bool(values.output))
    _check_runner(flags, has_workers=bool(values.workers))
    return flags


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="python -m data_pipeline.build",
        description="Turns text files into a store that bert_jax trains from.",
        epilog=f"example: {EXAMPLE}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--input",
        default="",
        metavar="GLOB[,GLOB]",
        help="files, local or gs://, or tfds:NAME/CONFIG: plain text, WikiExtractor's <doc> files, "
        "JSON lines (known by .jsonl, .json or a first line that is a JSON object, as "
        "WikiExtractor's --json writes) or Parquet; each plain, or as .gz, .bz2, .xz or .zst",
    )
    add("--output", default="", metavar="STORE", help="the folder to make, local or gs://")
    add(
        "--scratch",
        default="",
        metavar="FOLDER",
        help="where a store for gs:// is built before it is copied; default: the system's "
        "temporary folder",
    )
    add(
        "--holdout",
        default=0.01,
        type=float,
        metavar="SHARE",
        help="share of the documents to hold out for evaluation; default 0.01",
    )
    add(
        "--overwrite",
        default=False,
        type=boolean,
        metavar="BOOL",
        help="replace a finished store; default false",
    )
    _add_text(parser)
    _add_vocabulary(parser)
    _add_cleaning(parser)
    _add_runner(parser)
    return parser


def _add_text(parser: FlagParser) -> None:
    add = parser.add_argument_group("text").add_argument
    add(
        "--documents",
        default="blank_line",
        metavar="RULE",
        help="what a document is in plain text: "
        + " | ".join(DOCUMENT_RULES)
        + "; default blank_line",
    )
    add(
        "--sentences",
        default="split",
        metavar="RULE",
        help=" | ".join(SENTENCE_RULES)
        + ": find the sentences in the text, or take each line as one; default split",
    )
    add(
        "--language",
        default="en",
        metavar="CODE",
        help="language whose rules find the sentences: two or three letters (ISO 639); default en",
    )
    add(
        "--text_key",
        default="text",
        metavar="KEY",
        help="key or column that holds the text in JSON, Parquet or TFDS; default text",
    )


def _add_vocabulary(parser: FlagParser) -> None:
    add = parser.add_argument_group(
        "vocabulary", "give --vocab, or --train_vocab and --vocab_size"
    ).add_argument
    add(
        "--vocab",
        default="",
        metavar="FILE",
        help="a vocab.txt, the tokenizer.json of a BERT, or a SentencePiece *.model",
    )
    add(
        "--train_vocab",
        default="",
        metavar="KIND",
        help=f"instead of --vocab: train one on the input, {WORDPIECE} ([PAD] 0, [UNK] 100, "
        f"[CLS] 101, [SEP] 102, [MASK] 103), or a SentencePiece model, {UNIGRAM} or {BPE} "
        "([PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4)",
    )
    add(
        "--vocab_size",
        default=0,
        type=int,
        metavar="N",
        help="number of pieces to train, special ones included",
    )
    add(
        "--reserved_pieces",
        default=0,
        type=int,
        metavar="N",
        help="how many of these to keep free for later use, as [unusedN]; default 0. WordPiece "
        "has 99 more, as BERT's",
    )
    add(
        "--character_coverage",
        default=None,
        type=float,
        metavar="SHARE",
        help="share of the text whose characters get pieces; the rarest others become [UNK]. "
        "Default: 1 if all characters fill at most a tenth of the vocabulary, else 0.9995",
    )
    add(
        "--lowercase",
        default=True,
        type=boolean,
        metavar="BOOL",
        help="lowercase the text and strip accents; default true",
    )


def _add_cleaning(parser: FlagParser) -> None:
    group = parser.add_argument_group(
        "cleaning", "off by default; the report counts what is left out"
    )
    helps = {
        "normalize": ("FORM", " | ".join(NORMAL_FORMS) + ": Unicode normal form of the text"),
        "min_document_chars": ("N", "leave out shorter documents"),
        "max_word_chars": (
            "N",
            "leave out lines (of plain text: paragraphs, with --sentences=split) with a longer "
            "word: base64, tables without spaces",
        ),
        "drop_duplicate_documents": ("BOOL", "leave out all but the first of equal documents"),
        "drop_duplicate_lines": (
            "BOOL",
            "leave out a line (of plain text: a paragraph, with --sentences=split) that occurred "
            "before anywhere",
        ),
        "near_duplicates": (
            "RULE",
            f"{KEEP} | {TOGETHER} (keep a cluster on one side of the held-out split) | {DROP} "
            "(keep only the first of a cluster); default keep",
        ),
        "near_duplicate_threshold": (
            "SHARE",
            "two documents are near duplicates if they share this much of their runs of 5 words; "
            "default 0.8",
        ),
    }
    for field in _CLEANING:
        metavar, text = helps[field.name]
        kind = boolean if field.type is bool else field.type
        group.add_argument(
            f"--{field.name}", default=field.default, type=kind, metavar=metavar, help=text
        )


def _add_runner(parser: FlagParser) -> None:
    add = parser.add_argument_group("processes").add_argument
    add(
        "--workers",
        default=0,
        type=int,
        metavar="N",
        help="number of processes; default 0: one per core",
    )
    add(
        "--runner",
        default=LOCAL,
        metavar="RUNNER",
        help=f"{LOCAL} | {BEAM}: processes on this machine, or Apache Beam; both write the "
        "same store",
    )
    add(
        "--beam_options",
        default="",
        metavar="'--OPTION=...'",
        help="options for Beam, as in '--runner=DataflowRunner --temp_location=gs://...'",
    )


def _check(flags: BuildFlags, has_output: bool) -> None:
    for name, given in (("--input", bool(flags.input)), ("--output", has_output)):
        if not given:
            raise ValueError(f"{name} is missing; a whole command is: {EXAMPLE}")
    if bool(flags.vocab) == bool(flags.train_vocab):
        state = "both are given" if flags.vocab else "neither is given"
        raise ValueError(
            f"one of --vocab=FILE and --train_vocab=KIND is needed, {state}; a vocabulary is "
            f"either read or trained, as in: {EXAMPLE}"
        )
    if flags.train_vocab and flags.train_vocab not in TRAINED:
        raise ValueError(
            f"--train_vocab is {flags.train_vocab!r}; it must be {WORDPIECE}, or {UNIGRAM} or "
            f"{BPE} for a SentencePiece model"
        )
    if flags.train_vocab and not flags.vocab_size:
        raise ValueError(
            "--vocab_size is missing; --train_vocab needs it, as in --vocab_size=30522, BERT's"
        )
    if flags.train_vocab:
        check_range("vocab_size", flags.vocab_size, 1, MOST_PIECES, "; BERT has 30522")
    if flags.vocab and flags.vocab_size:
        raise ValueError(
            f"--vocab_size is {flags.vocab_size}, but the size of --vocab={flags.vocab} is fixed; "
            "leave it out, or train a vocabulary with --train_vocab"
        )
    if flags.reserved_pieces < 0 or (flags.vocab and flags.reserved_pieces):
        raise ValueError(
            f"--reserved_pieces is {flags.reserved_pieces}; it must be 0 or more, and 0 with "
            "--vocab, whose pieces are fixed"
        )
    if flags.train_vocab:
        check_range("reserved_pieces", flags.reserved_pieces, 0, flags.vocab_size)
    _check_coverage(flags)
    if not 0.0 < flags.holdout <= 0.5:
        raise ValueError(
            f"--holdout is {flags.holdout}; it must be more than 0 and at most 0.5 (default 0.01)"
        )
    check_range("workers", flags.workers, 1, MOST_WORKERS, ", or 0 for one per core")
    flags.text.check()
    flags.cleaning.check()


def _check_coverage(flags: BuildFlags) -> None:
    coverage = flags.character_coverage
    if coverage is None:
        return
    if flags.vocab:
        raise ValueError(
            f"--character_coverage is {coverage}, but the pieces of --vocab={flags.vocab} are "
            "fixed; leave it out, or train a vocabulary with --train_vocab"
        )
    if not LEAST_COVERAGE <= coverage <= 1.0:
        raise ValueError(
            f"--character_coverage is {coverage}; it must be from {LEAST_COVERAGE} to 1"
        )


def _check_runner(flags: BuildFlags, has_workers: bool) -> None:
    if flags.runner not in (LOCAL, BEAM):
        raise ValueError(f"--runner is {flags.runner!r}; it must be {LOCAL} or {BEAM}")
    if flags.runner == LOCAL and flags.beam_options:
        raise ValueError(
            f"--beam_options is {flags.beam_options!r}, but --runner is {LOCAL}; give "
            f"--runner={BEAM} too, or leave it out"
        )
    if flags.runner == BEAM:
        if has_workers:
            raise ValueError(
                f"--workers is {flags.workers}, but with --runner={BEAM} it is Beam that starts "
                "processes; leave it out, or give what your Beam runner takes with --beam_options"
            )
        check_installed()
        check_options(flags.beam_options)
