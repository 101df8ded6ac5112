"""Train baselines from before BERT on a store, and learn tasks on frozen vectors.

The first argument selects one: skipgram, bilm and cove train vectors; task learns a task on those
or on a BERT's; ner finds named entities on a frozen BERT, as in the paper.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.config.finetune_schema import FinetuneConfig
from bert_jax.lab.baselines.settings import (
    BILM,
    COVE,
    SKIPGRAM,
    BiLM,
    CoVe,
    SkipGram,
    Tagger,
    Training,
)
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig
from data_pipeline.cli.flags import Command, Kinds, flag
from data_pipeline.io import Refused

_MODULE = "bert_jax.baseline"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineFlags:
    """Declare the flags of every training; `settings` has the flags of its kind."""

    store: str = flag("", "store that data_pipeline.build made", metavar="STORE", is_required=True)
    workdir: str = flag(
        "", "new folder, or one of the same training, to resume it", metavar="DIR", is_required=True
    )
    settings: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkipGramFlags(BaselineFlags):
    """Declare the flags of skipgram."""

    settings: SkipGram


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiLMFlags(BaselineFlags):
    """Declare the flags of bilm."""

    settings: BiLM


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoVeFlags(BaselineFlags):
    """Declare the flags of cove."""

    from_: str = flag(
        "",
        "workdir of a skip-gram trained on --store, whose vectors the encoder reads",
        metavar="SKIPGRAM",
        is_required=True,
    )
    parallel: str = flag(
        "",
        "aligned texts; each line has a text, a tab and its translation",
        metavar="FILE.tsv",
        is_required=True,
    )
    target_store: str = flag(
        "", "store whose vocabulary encodes the translations", metavar="STORE", is_required=True
    )
    settings: CoVe


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFlags:
    """Declare the flags of task."""

    kind: str = flag(
        "",
        "which vectors: counts (tf-idf of tokens), skipgram, elmo (all layers of a biLM), taglm "
        "(skip-gram and the biLM's last layer), cove (skip-gram and CoVe's last layer), bert (its "
        "last four layers)",
        choices=("counts", "skipgram", "elmo", "taglm", "cove", "bert"),
        is_positional=True,
        is_required=True,
    )
    from_: str = flag(
        "",
        "what KIND reads: counts a STORE, skipgram a SKIPGRAM, elmo a BILM, taglm SKIPGRAM,BILM, "
        "cove a COVE, bert a CHECKPOINT",
        metavar="PLACE,...",
        is_required=True,
    )
    config: GivenConfig[FinetuneConfig] = cli.config_flag(
        FinetuneConfig, about=" of the task; only config.data and config.seed are read"
    )
    workdir: str = flag(
        "", "new folder, for summary.json and predictions", metavar="DIR", is_required=True
    )
    tagger: Tagger


@dataclasses.dataclass(frozen=True, kw_only=True)
class NerFlags:
    """Declare the flags of ner."""

    checkpoint: str = flag("", "workdir, hf:DIR or google:PREFIX", metavar="CK", is_required=True)
    data_dir: str = flag(
        "", "folder of the training, dev and test files", metavar="DIR", is_required=True
    )
    output: str = flag("", "new folder", metavar="DIR", is_required=True)
    features: str = flag(
        "concatenated_last_four",
        "vectors to use, or all: embeddings, second_to_last, last, weighted_last_four, "
        "concatenated_last_four, weighted_all; several separated by commas",
    )
    max_seq_length: int = flag(
        0, "longest row in tokens; 0: 128, or the model's positions if fewer", minimum=0
    )
    training: Training

    def __post_init__(self) -> None:
        if pathlib.Path(self.output).exists():
            raise Refused(f"--output is {self.output}, which exists already; give a new folder")


_RUN = f"python -m {_MODULE}"
COMMAND = Kinds(
    __doc__,
    {
        SKIPGRAM: Command(
            f"{_MODULE} {SKIPGRAM}",
            "Train a vector for each token, by skip-gram with negative sampling (word2vec).\n\n"
            "Writes summary.json and vectors.npz, in the format of bert_jax.features.",
            SkipGramFlags,
            f"{_RUN} {SKIPGRAM} --store=stores/mine --workdir=runs/skipgram",
        ),
        BILM: Command(
            f"{_MODULE} {BILM}",
            "Train LSTMs that read left to right and right to left (ELMo, over tokens).",
            BiLMFlags,
            f"{_RUN} {BILM} --store=stores/mine --workdir=runs/bilm",
        ),
        COVE: Command(
            f"{_MODULE} {COVE}",
            "Train an encoder of texts by their translation (CoVe, over tokens).",
            CoVeFlags,
            f"{_RUN} {COVE} --store=stores/english --target_store=stores/german "
            "--from=runs/skipgram --parallel=aligned.tsv --workdir=runs/cove",
        ),
        "task": Command(
            f"{_MODULE} task",
            "Learn a task on token counts or frozen vectors.\n\nA linear model on a text's mean "
            "vector predicts classes and numbers, a BiLSTM predicts tags. summary.json has the "
            "same names as in fine-tuning.",
            TaskFlags,
            f"{_RUN} task counts --from=stores/mine --config=configs/finetune/glue.py:task=rte "
            "--config.data.dir=DIR --workdir=runs/counts",
        ),
        "ner": Command(
            f"{_MODULE} ner",
            "Find named entities on the vectors of a frozen BERT, by a BiLSTM (table 7 of the "
            "paper).\n\nThe vectors of all layers are computed once; the best epoch on dev is "
            "scored.",
            NerFlags,
            f"{_RUN} ner --checkpoint=hf:CK --data_dir=DIR --output=runs/frozen_ner --features=all",
        ),
    },
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

import jax

from bert_jax.lab.baselines import bilm, cove, frozen_ner, frozen_task, skipgram, training
from bert_jax.logging.console import Screen, duration
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.store import open_store

# Settings -> the kind, and the function that trains it: (folder, text, settings, screen) -> None.
_TRAIN: dict[type[Any], tuple[str, Callable[[pathlib.Path, Any, Any, Screen], None]]] = {
    SkipGram: (SKIPGRAM, skipgram.train),
    BiLM: (BILM, bilm.train),
    CoVe: (COVE, cove.train),
}


def _train(log: LibraryLog, flags: BaselineFlags) -> int:
    folder, settings = pathlib.Path(flags.workdir), flags.settings
    with cli.preparing():
        log.hold()
        store = training.open_text(flags.store)
        jax.devices()  # refuses a missing device before anything is written
        kind, train = _TRAIN[type(settings)]
        text: Any = store
        others: dict[str, Any] = {}
        if isinstance(flags, CoVeFlags):
            stores, path = (store, open_store(flags.target_store)), pathlib.Path(flags.parallel)
            text = cove.open_texts(path, stores, flags.from_, settings.seq_len)
            others = text.describe()
        training.claim_baseline(folder, kind, settings, store, **others)
    screen = Screen(is_writer=True)
    screen.table(f"{kind} on {flags.store}", [(k, str(v)) for k, v in vars(settings).items()])
    if training.read_summary(folder) is None:
        train(folder, text, settings, screen)
    summary = training.read_summary(folder) or {}
    rows = [(name, str(value)) for name, value in summary.items() if name != "seconds"]
    screen.table("done", [*rows, ("time", duration(summary["seconds"])), ("in", str(folder))])
    return 0


def _learn_task(log: LibraryLog, flags: TaskFlags) -> int:
    with cli.preparing():
        config = flags.config.load()
        if config.init:
            raise Refused(
                f"config.init is {config.init}; give it as --from, and leave config.init out"
            )
        log.hold()
        learning = frozen_task.open_learning(
            flags.kind, flags.from_.split(","), config, flags.tagger, pathlib.Path(flags.workdir)
        )
    learning.run(Screen(is_writer=True))
    return 0


def _find_entities(log: LibraryLog, flags: NerFlags) -> int:
    with cli.preparing():
        kinds = frozen_ner.parse_features(flags.features)
        log.hold()
        encoder, task = frozen_ner.open_task(
            flags.checkpoint, flags.data_dir, flags.max_seq_length, kinds
        )
    output, screen = pathlib.Path(flags.output), Screen(is_writer=True)
    frozen_ner.find_entities(encoder, task, kinds, flags.training, output, screen)
    return 0


def _main(log: LibraryLog, flags: BaselineFlags | TaskFlags | NerFlags) -> int:
    match flags:
        case TaskFlags():
            return _learn_task(log, flags)
        case NerFlags():
            return _find_entities(log, flags)
    return _train(log, flags)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    again = "the same command resumes a training and starts a task again; ner needs a new --output"
    return cli.run(COMMAND, _main, again, argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
