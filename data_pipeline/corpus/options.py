"""Declare and check the flags of `python -m data_pipeline.build` before any file is opened."""

import dataclasses
from collections.abc import Iterable

from data_pipeline.cli.flags import MAX_WORKERS, Command, flag, section
from data_pipeline.cli.worker_pool import count_cores
from data_pipeline.corpus.beam import check_installed, check_options
from data_pipeline.io import Refused
from data_pipeline.io.address import is_address
from data_pipeline.read.cleaning import CleaningOptions
from data_pipeline.read.options import TextOptions
from data_pipeline.store import check_is_local
from data_pipeline.vocab.byte_level import MAX_TRAINED
from data_pipeline.vocab.sentencepiece_model import ALBERT, NO_RULES, RECORDED, RULES, XLNET
from data_pipeline.vocab.train import BPE, BYTE_BPE, MIN_COVERAGE, TRAINED, UNIGRAM, WORDPIECE
from data_pipeline.vocab.wordpiece import MAX_PIECES

EXAMPLE = (
    "python -m data_pipeline.build --input='corpus/*.txt.gz' --output=stores/corpus "
    "--train_vocab=wordpiece --vocab_size=30522"
)

LOCAL, BEAM = "local", "beam"  # runners
_VOCABULARY = "vocabulary (--vocab, or --train_vocab and --vocab_size)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildFlags:
    """Declare the flags; `text` and `cleaning` hold the flags of their classes."""

    input: str = flag(
        "",
        "files, local, gs:// or hf://, or tfds:NAME/CONFIG: plain text, WikiExtractor's <doc> "
        "files, JSON lines (known by .jsonl, .json or a first line that is a JSON object), csv, "
        "tsv, Parquet or Arrow; each plain, or as .gz, .bz2, .xz or .zst",
        metavar="GLOB[,GLOB]",
        is_required=True,
    )
    output: str = flag("", "the folder of the store to make, local or gs://", metavar="DIR")
    scratch: str = flag(
        "",
        "folder in which to build a store for gs://; default: the system's temporary folder",
        metavar="DIR",
    )
    holdout: float = flag(
        0.01, "share of the documents to hold out for evaluation", above=0, maximum=0.5
    )
    overwrite: bool = flag(False, "replace a finished store")
    text: TextOptions = section("text")
    vocab: str = flag(
        "",
        "a vocab.txt, a tokenizer.json of WordPiece, BPE or Unigram, a RoBERTa's vocab.json "
        "next to its merges.txt, or a SentencePiece *.model",
        _VOCABULARY,
        metavar="FILE",
    )
    compare_vocabs: str = flag(
        "",
        "instead of a build: measure these vocabularies on the input, and write nothing; a "
        "vocab.txt is lowercased unless it has capitals",
        _VOCABULARY,
        metavar="FILE[,FILE]",
    )
    train_vocab: str = flag(
        "",
        f"instead of --vocab: train one on the input, {WORDPIECE} ([PAD] 0, [UNK] 100, [CLS] 101, "
        f"[SEP] 102, [MASK] 103), or a SentencePiece model, {UNIGRAM} or {BPE} ([PAD] 0, [UNK] 1, "
        f"[CLS] 2, [SEP] 3, [MASK] 4), or {BYTE_BPE}: byte-level BPE like ModernBERT's, same ids",
        _VOCABULARY,
        choices=("", *TRAINED),
    )
    vocab_size: int = flag(
        0,
        "number of pieces to train, special ones included (BERT: 30522)",
        _VOCABULARY,
        minimum=0,
        maximum=MAX_PIECES,
    )
    reserved_pieces: int = flag(
        0,
        "how many of these to reserve for later use as [unusedN]; WordPiece has 99 more, like BERT",
        _VOCABULARY,
        minimum=0,
    )
    character_coverage: float | None = flag(
        None,
        "share of the text whose characters get pieces; the rarest characters become [UNK]. "
        "Default: 1 if all characters fill at most a tenth of the vocabulary, else 0.9995",
        _VOCABULARY,
        minimum=MIN_COVERAGE,
        maximum=1,
    )
    lowercase: bool = flag(True, "lowercase the text and strip accents", _VOCABULARY)
    sentencepiece_rules: str = flag(
        NO_RULES,
        "how to prepare text for a SentencePiece *.model in --vocab: as for the published "
        f"{ALBERT} (lowercased) or {XLNET}, both without accents and extra spaces",
        _VOCABULARY,
        choices=RULES,
    )
    cleaning: CleaningOptions = section(
        "cleaning (off by default; the report counts what it drops)"
    )
    workers: int = flag(
        0, "number of processes; 0: one per core", "processes", minimum=0, maximum=MAX_WORKERS
    )
    runner: str = flag(
        LOCAL,
        "processes on this machine, or Apache Beam; both write the same store",
        "processes",
        choices=(LOCAL, BEAM),
    )
    beam_options: str = flag(
        "",
        "options for Beam, as in '--runner=DataflowRunner --temp_location=gs://...'",
        "processes",
    )

    def __post_init__(self) -> None:
        self.text.check()
        self.cleaning.check()

    @property
    def address(self) -> str:
        """Return the place in a bucket for the copy of the store; "" for a local store."""
        return self.output.rstrip("/") if is_address(self.output) else ""


COMMAND = Command(
    "data_pipeline.build",
    "Turn text files into a store that bert_jax trains from.",
    BuildFlags,
    EXAMPLE,
)


def check_flags(flags: BuildFlags) -> BuildFlags:
    """Check the flags; return them with the number of workers filled in.

    Raises:
      Refused: --output is missing, --vocab or --scratch is an address such as gs://, two flags
        exclude each other, or the runner is not installed.
    """
    if flags.compare_vocabs:
        _check_comparison(flags)
        return flags
    if not flags.output:
        raise Refused(
            "--output is missing: the folder of the store to make, local or gs://; as in: "
            f"{EXAMPLE}"
        )
    if not flags.address:
        _refuse(
            flags,
            ("scratch",),
            f"--output={flags.output} is a folder here, in which the store is built",
        )
    for name in ("vocab", "scratch", *(() if flags.address else ("output",))):
        check_is_local(f"--{name}", getattr(flags, name))
    _check_vocabulary(flags)
    if flags.runner == LOCAL:
        because = f"--runner is {LOCAL}, and only --runner={BEAM} reads them"
        _refuse(flags, ("beam_options",), because)
    else:
        because = f"with --runner={BEAM} Beam starts the processes, as --beam_options say"
        _refuse(flags, ("workers",), because)
        check_installed()
        check_options(flags.beam_options)
    return dataclasses.replace(flags, workers=flags.workers or count_cores())


def _refuse(flags: BuildFlags, names: Iterable[str], because: str) -> None:
    """Raise Refused if one of these flags is given: it would be ignored."""
    for name in names:
        if (value := getattr(flags, name)) != getattr(BuildFlags, name):
            raise Refused(f"--{name} is {value}, but {because}; omit it")


def _check_comparison(flags: BuildFlags) -> None:
    """Raise Refused for a flag that --compare_vocabs does not read."""
    are_read = {"input", "text", "cleaning", "compare_vocabs", RECORDED}
    _refuse(
        flags,
        (field.name for field in dataclasses.fields(flags) if field.name not in are_read),
        "--compare_vocabs builds nothing: it reads the input and shows each vocabulary on it",
    )
    for path in flags.compare_vocabs.split(","):
        if not path.strip():
            raise Refused(
                f"--compare_vocabs is {flags.compare_vocabs}, with nothing before or after a "
                "comma; give paths with a comma between each two"
            )
        check_is_local("--compare_vocabs", path)


def _check_vocabulary(flags: BuildFlags) -> None:
    """Raise Refused unless a vocabulary is either read or trained, with the flags for it."""
    if bool(flags.vocab) == bool(flags.train_vocab):
        state = "both are given" if flags.vocab else "neither is given"
        raise Refused(
            f"one of --vocab=FILE and --train_vocab=KIND is needed, {state}; a vocabulary is "
            f"either read or trained, as in: {EXAMPLE}"
        )
    if flags.vocab:
        because = f"the pieces of --vocab={flags.vocab} are fixed, and --train_vocab trains others"
        _refuse(flags, ("vocab_size", "reserved_pieces", "character_coverage"), because)
        return
    _refuse(flags, (RECORDED,), "--train_vocab trains a model whose own rules prepare the text")
    if flags.train_vocab == BYTE_BPE:
        because = f"--train_vocab={BYTE_BPE} has a piece for every byte"
        _refuse(flags, ("character_coverage",), because)
        if flags.lowercase:
            raise Refused(
                f"--lowercase is true, but --train_vocab={BYTE_BPE} keeps case, as RoBERTa and "
                "ModernBERT do; add --lowercase=false"
            )
        if flags.vocab_size > MAX_TRAINED:
            raise Refused(
                f"--vocab_size is {flags.vocab_size}, whose tokenizer.json would be too large to "
                f"read; --train_vocab={BYTE_BPE} takes at most {MAX_TRAINED} (ModernBERT: 50368)"
            )
    if not flags.vocab_size:
        raise Refused(
            "--vocab_size is missing; --train_vocab needs it, as in --vocab_size=30522, BERT's"
        )
    if flags.reserved_pieces > flags.vocab_size:
        raise Refused(
            f"--reserved_pieces is {flags.reserved_pieces}; it must be at most --vocab_size, "
            f"{flags.vocab_size}"
        )
