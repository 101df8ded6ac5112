"""Score a checkpoint: python -m bert_jax.evaluate --checkpoint=ADDRESS --store=STORE

    --store=STORE          masked words and next sentences on a store of the same vocabulary; that
                           of the run, where the checkpoint is one and --sentences is not given
    --sentences=FILE       the pseudo-log-likelihood of each line of FILE, - for stdin
    --output=FILE          the numbers as JSON lines as well, in a new file

A checkpoint is the workdir of a run, hf:DIR of Hugging Face's files or google:PREFIX of Google's.
"""

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from bert_jax import command_line, masked_lm, pretrained, pseudo_likelihood, store_scores
from bert_jax.config import Config
from bert_jax.feed import open_store
from bert_jax.initial_weights import InitialWeights, with_vocabulary
from bert_jax.pseudo_likelihood import Score
from bert_jax.screen import Screen
from bert_jax.store_scores import SPLITS, Asked
from data_pipeline.library_log import LibraryLog
from data_pipeline.options import SEGMENTS, PretrainOptions
from data_pipeline.vocab import Vocabulary, load_vocabulary
from data_pipeline.whole_file import check_new, whole_file

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "a workdir, hf:DIR or google:PREFIX")
_STORE = flags.DEFINE_string("store", None, "folder that data_pipeline.build wrote, or gs://")
_SPLIT = flags.DEFINE_string("split", SPLITS[0], f"of the store: {' or '.join(SPLITS)}")
_SEQ_LEN = flags.DEFINE_integer(
    "seq_len",
    0,
    "tokens of the store's examples at most; 0: 128, or all that the model has",
)
_EXAMPLES = flags.DEFINE_integer("examples", 4096, "of the store at most")
_SEGMENTS = flags.DEFINE_string(
    "segments", None, f"what an example is made of, {', '.join(SEGMENTS)}; default: as the run, nsp"
)
_SENTENCES = flags.DEFINE_string("sentences", None, "file with a sentence a line, or - for stdin")
_OUTPUT = flags.DEFINE_string("output", None, "a new file, a JSON object a line")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "rows that the model sees at once")

USAGE = "python -m bert_jax.evaluate --checkpoint=ADDRESS [--store=STORE] [--sentences=FILE]"
_USUAL_SEQ_LEN = 128  # of the first phase of the paper's configs
_SHOWN_SENTENCES = 20
_SHOWN_CHARS = 60

Line = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Work:
    """What is scored, all of it known to fit."""

    weights: InitialWeights
    store: Asked | None
    sentences: tuple[list[str], list[Any]]  # texts and their token ids


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    command_line.refuse_arguments(arguments, USAGE)
    _check_flags()
    log.hold()
    screen = Screen(is_writer=True)
    address = str(_CHECKPOINT.value)
    settings = store_scores.settings_of(address)
    asked = _asked(settings, screen)
    with screen.spinning(f"reading {address}"):
        checkpoint = pretrained.load(address)
    masked_lm.check(checkpoint)
    vocabulary = checkpoint.vocabulary if asked is None else _vocabulary_of(asked)
    weights = with_vocabulary(checkpoint, vocabulary)
    positions = checkpoint.config.max_position_embeddings
    if asked is not None and not asked.seq_len:
        asked = dataclasses.replace(asked, seq_len=min(_USUAL_SEQ_LEN, positions))
    if asked is not None and asked.seq_len > positions:
        raise ValueError(
            f"--seq_len is {asked.seq_len}, but {address} has {positions} positions; give "
            f"--seq_len={positions} or less"
        )
    sentences, place = _sentences()
    ids = pseudo_likelihood.token_ids(vocabulary, sentences, place, positions) if sentences else []
    return functools.partial(_score, _Work(weights, asked, (sentences, ids)), screen)


def _check_flags() -> None:
    if not _CHECKPOINT.value:
        raise ValueError(f"--checkpoint is missing: a workdir, hf:DIR or google:PREFIX; {USAGE}")
    if _SPLIT.value not in SPLITS:
        raise ValueError(f"--split is {_SPLIT.value!r}; it must be {' or '.join(SPLITS)}")
    if _SEGMENTS.value not in (None, *SEGMENTS):
        raise ValueError(
            f"--segments is {_SEGMENTS.value!r}; it must be one of {', '.join(SEGMENTS)}"
        )
    for flag, least in ((_SEQ_LEN, 8), (_EXAMPLES, 1), (_BATCH_SIZE, 1)):
        if flag.present and flag.value < least:
            raise ValueError(f"--{flag.name} is {flag.value}; it must be {least} or more")
    of_store = [flag for flag in (_SPLIT, _SEQ_LEN, _EXAMPLES, _SEGMENTS) if flag.present]
    if of_store and _SENTENCES.value and not _STORE.value:
        raise ValueError(
            f"--{of_store[0].name} is of a store, and only sentences are scored here; give --store "
            "too, or leave it out"
        )
    if _OUTPUT.value:
        check_new(pathlib.Path(_OUTPUT.value), "--output")


def _asked(settings: Config | None, screen: Screen) -> Asked | None:
    """What of which store: that of --store, or the run's own where nothing else is asked for."""
    options = PretrainOptions() if settings is None else settings.data
    if _STORE.value:
        options = dataclasses.replace(options, store=_STORE.value)
    elif _SENTENCES.value:
        return None
    elif not options.store:
        raise ValueError(f"there is nothing to score: give --store or --sentences; {USAGE}")
    if _SEGMENTS.value:
        options = dataclasses.replace(options, segments=_SEGMENTS.value)
    options.check()
    with screen.copying(options.store) as advance:
        store = open_store(options, advance)
    return Asked(store, _SPLIT.value, options, _SEQ_LEN.value, _EXAMPLES.value)


def _vocabulary_of(asked: Asked) -> Vocabulary:
    lowercase = asked.store.manifest["vocabulary"]["lowercase"]
    return load_vocabulary(asked.store.vocab_path, lowercase, checks_case=False)


def _sentences() -> tuple[list[str], str]:
    """The lines of --sentences, and what they are called; none where there is no such flag."""
    if not _SENTENCES.value:
        return [], ""
    if _SENTENCES.value == "-":
        place, data = "stdin", sys.stdin.buffer.read()
    else:
        place, data = _SENTENCES.value, pathlib.Path(_SENTENCES.value).read_bytes()
    try:
        lines = data.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        row = data[: error.start].count(b"\n") + 1
        raise ValueError(f"row {row} of {place} is not UTF-8; convert the file") from error
    if lines == [""]:
        raise ValueError(f"{place} has no line; give a sentence a line")
    return [line.removesuffix("\r") for line in lines], place


def _score(work: _Work, screen: Screen) -> int:
    model = masked_lm.on_devices(work.weights.checkpoint)
    screen.say(f"weights: {work.weights.in_words()}")
    lines: list[Line] = []
    if work.store is not None:
        found = store_scores.scores(model, work.store, _BATCH_SIZE.value, screen)
        lines.append(_store_line(work.store, found))
        screen.table("store", _store_rows(work.store, found))
    texts, ids = work.sentences
    if texts:
        scores = pseudo_likelihood.scored(model, ids, _BATCH_SIZE.value, screen)
        lines += [_sentence_line(*one) for one in zip(texts, scores, strict=True)]
        _show_sentences(texts, scores, screen)
    if _OUTPUT.value:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with whole_file(pathlib.Path(_OUTPUT.value)) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
        screen.say(f"wrote {_OUTPUT.value}")
    return 0


def _store_line(asked: Asked, found: dict[str, float]) -> Line:
    return {
        "checkpoint": _CHECKPOINT.value,
        "store": str(asked.store.directory),
        "store_digest": asked.store.digest,
        "split": asked.split,
        "seq_len": asked.seq_len,
        **found,
    }


def _store_rows(asked: Asked, found: dict[str, float]) -> list[tuple[str, str]]:
    rows = [
        (
            "examples",
            f"{found['examples']:,} of {asked.seq_len}, {asked.split} split of "
            f"{asked.store.directory}",
        ),
        (
            "mlm",
            f"loss {found['mlm_loss']:.4f} nats (unigram {found['unigram_mlm_loss']:.4f}), "
            f"perplexity {found['mlm_perplexity']:,.2f}, accuracy {found['mlm_accuracy']:.2%}",
        ),
    ]
    if "nsp_accuracy" in found:
        nsp = f"accuracy {found['nsp_accuracy']:.2%} (majority "
        nsp += f"{found['majority_nsp_accuracy']:.2%}), loss {found['nsp_loss']:.4f} nats"
        rows.append(("nsp", nsp))
    return rows


def _sentence_line(text: str, score: Score) -> Line:
    return {
        "sentence": text,
        "pseudo_log_likelihood": score.log_likelihood,
        "pseudo_perplexity": score.perplexity,
        "tokens": score.tokens,
        "unknown_tokens": score.unknown,
    }


def _show_sentences(texts: Sequence[str], scores: Sequence[Score], screen: Screen) -> None:
    """All of them where they go nowhere else, else the first few; then all together."""
    shown = len(texts) if not _OUTPUT.value else min(len(texts), _SHOWN_SENTENCES)
    screen.say(f"{'log P':>10}  {'perplexity':>12}  {'tokens':>6}  sentence", "bold")
    for text, score in zip(texts[:shown], scores, strict=False):
        cut = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
        screen.say(_numbers(score) + cut)
    if shown < len(texts):
        screen.say(f"{'':32}  and {len(texts) - shown:,} more in {_OUTPUT.value}", "dim")
    every = pseudo_likelihood.of_all(scores)
    unknown = f", {every.unknown:,} tokens unknown" if every.unknown else ""
    screen.say(f"{_numbers(every)}all {len(texts):,}{unknown}", "bold")


def _numbers(score: Score) -> str:
    return f"{score.log_likelihood:>10,.2f}  {score.perplexity:>12,.2f}  {score.tokens:>6,}  "


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="nothing was written")


if __name__ == "__main__":
    main()
