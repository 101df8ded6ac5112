"""Score a checkpoint: python -m bert_jax.evaluate --checkpoint=ADDRESS --store=STORE

    --store=STORE          masked words and next sentences, or of a causal model next tokens, on a
                           store of the same vocabulary; that of the run, where the checkpoint is
                           one and --sentences is not given
    --sentences=FILE       the pseudo-log-likelihood of each line of FILE, a pipe, or - for stdin
    --output=FILE          the numbers as JSON lines as well, in a new file

A checkpoint is the workdir of a run, hf:DIR of Hugging Face's files or google:PREFIX of Google's.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused
from data_pipeline.spec.options import SEGMENTS
from data_pipeline.store import HELDOUT, TRAIN

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "a workdir, hf:DIR or google:PREFIX")
_STORE = flags.DEFINE_string("store", None, "folder that data_pipeline.build wrote, or gs://")
_SPLIT = flags.DEFINE_enum("split", HELDOUT, (HELDOUT, TRAIN), "of the store")
_SEQ_LEN = flags.DEFINE_integer(
    "seq_len", 0, "tokens of the store's examples at most; 0: 128, or all that the model has"
)
_EXAMPLES = flags.DEFINE_integer("examples", 4096, "of the store at most", lower_bound=1)
_SEGMENTS = flags.DEFINE_enum(
    "segments", None, SEGMENTS, "what an example is made of; default: as the run; nsp, ALBERT's sop"
)
_SENTENCES = flags.DEFINE_string(
    "sentences", None, "file with a sentence a line, plain or compressed, or - for stdin"
)
_OUTPUT = flags.DEFINE_string("output", None, "a new file, a JSON object a line")
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 64, "rows that the model sees at once", lower_bound=1
)

USAGE = "python -m bert_jax.evaluate --checkpoint=ADDRESS [--store=STORE] [--sentences=FILE]"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.config import data_in_evaluations
from bert_jax.inference import pseudo_likelihood, store_scores
from bert_jax.inference.pseudo_likelihood import Score
from bert_jax.inference.store_scores import ScoredRows
from bert_jax.interop import huggingface, load
from bert_jax.interop.pretrained import check_masked_lm, place_masked_lm, refuse_causal
from bert_jax.interop.warm_start import InitialWeights, fit_vocabulary
from bert_jax.logging.console import Screen, list_lines
from bert_jax.runtime.run_record import PretrainingRun
from bert_jax.trainer.feed import open_store
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import check_new_file, new_file
from data_pipeline.labelled.lines import STDIN, check_lines, open_lines
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.vocab import load_recorded

_MIN_SEQ_LEN, _USUAL_SEQ_LEN = 8, 128  # 128: of the first phase of the paper's configs
_SHOWN_SENTENCES = 20
_SHOWN_CHARS = 60


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        cli.refuse_arguments(arguments, USAGE)
        _check_flags()
        log.hold()
        screen = Screen(is_writer=True)
        address = str(_CHECKPOINT.value)
        run = load.read_run(address)
        selection = _select(run, screen)
        with screen.spinning(f"reading {address}"):
            checkpoint = load.load_masked_lm(address)
        check_masked_lm(checkpoint)
        if _SENTENCES.value:
            refuse_causal(
                checkpoint, "and --sentences masks one word after the other: give --store"
            )
        vocabulary, positions = checkpoint.vocabulary, checkpoint.config.max_position_embeddings
        if selection is not None:
            if not _SEGMENTS.value and (run is None or run.converted_from):
                pairs = huggingface.find_pairs(checkpoint)
                options = dataclasses.replace(selection.options, segments=pairs)
                selection = dataclasses.replace(selection, options=options)
            store = selection.store
            vocabulary = load_recorded(store.vocab_path, store.manifest["vocabulary"])
            seq_len = selection.seq_len or min(_USUAL_SEQ_LEN, positions)
            selection = dataclasses.replace(selection, seq_len=seq_len)
            if seq_len > positions:
                raise Refused(
                    f"--seq_len is {seq_len}, but {address} has {positions} positions; give "
                    f"--seq_len={positions} or less"
                )
        weights = fit_vocabulary(checkpoint, vocabulary)
        # A head that it lacks is not scored.
        weights = dataclasses.replace(weights, parts={})
        sentences, place = _read_sentences()
        ids = pseudo_likelihood.encode_sentences(vocabulary, sentences, place, positions)
    return _score(weights, selection, sentences, ids, screen)


def _check_flags() -> None:
    if not _CHECKPOINT.value:
        raise Refused(f"--checkpoint is missing: a workdir, hf:DIR or google:PREFIX; {USAGE}")
    if _SEQ_LEN.present and _SEQ_LEN.value < _MIN_SEQ_LEN:
        raise Refused(f"--seq_len is {_SEQ_LEN.value}; it must be {_MIN_SEQ_LEN} or more")
    store_flags = [flag for flag in (_SPLIT, _SEQ_LEN, _EXAMPLES, _SEGMENTS) if flag.present]
    if store_flags and _SENTENCES.value and not _STORE.value:
        raise Refused(
            f"--{store_flags[0].name} is of a store, and only sentences are scored here; give "
            "--store too, or leave it out"
        )
    if _SENTENCES.value:
        check_lines(_SENTENCES.value, "--sentences")
    if _OUTPUT.value:
        check_new_file(pathlib.Path(_OUTPUT.value), "--output")


def _select(run: PretrainingRun | None, screen: Screen) -> ScoredRows | None:
    """Resolve the store and split to score: --store, else the one the run trained on."""
    options = PretrainOptions() if run is None else data_in_evaluations(run.config)
    if _STORE.value:
        options = dataclasses.replace(options, store=_STORE.value)
    elif _SENTENCES.value:
        return None
    elif not options.store:
        raise Refused(f"there is nothing to score: give --store or --sentences; {USAGE}")
    if _SEGMENTS.value:
        options = dataclasses.replace(options, segments=_SEGMENTS.value)
    options.check()
    with screen.copying(options.store) as advance:
        store = open_store(options, advance)
    return ScoredRows(store, _SPLIT.value, options, _SEQ_LEN.value, _EXAMPLES.value)


def _read_sentences() -> tuple[list[str], str]:
    """Return the lines of --sentences and the name of their file; none without the flag."""
    if not _SENTENCES.value:
        return [], ""
    place = "stdin" if _SENTENCES.value == STDIN else _SENTENCES.value
    sentences = [line.rstrip("\r\n") for line in open_lines(_SENTENCES.value)]
    if not sentences:
        raise Refused(f"{place} has no line; give a sentence a line")
    return sentences, place


def _score(
    weights: InitialWeights,
    selection: ScoredRows | None,
    sentences: list[str],
    sentence_ids: list[Any],
    screen: Screen,
) -> int:
    model = place_masked_lm(weights.checkpoint)
    screen.print(f"weights: {weights.describe()}")
    lines: list[dict[str, Any]] = []
    if selection is not None:
        means = store_scores.score_store(model, selection, _BATCH_SIZE.value, screen)
        facts: dict[str, Any] = {"store": str(selection.store.directory)}
        facts |= {"store_digest": selection.store.digest, "split": selection.split}
        lines.append(
            {"checkpoint": _CHECKPOINT.value, **facts, "seq_len": selection.seq_len, **means}
        )
        screen.table("store", _make_store_rows(selection, means))
    if sentences:
        scores = pseudo_likelihood.score_sentences(model, sentence_ids, _BATCH_SIZE.value, screen)
        for sentence, score in zip(sentences, scores, strict=True):
            numbers = {
                "pseudo_log_likelihood": score.log_likelihood,
                "pseudo_perplexity": score.perplexity,
                "tokens": score.tokens,
                "unknown_tokens": score.unknown,
            }
            lines.append({"sentence": sentence, **numbers})
        _show_sentences(sentences, scores, screen)
    if _OUTPUT.value:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with new_file(pathlib.Path(_OUTPUT.value)) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
        screen.print(f"wrote {_OUTPUT.value}")
    return 0


def _make_store_rows(selection: ScoredRows, means: dict[str, float]) -> list[tuple[str, str]]:
    examples = f"{means['examples']:,} of {selection.seq_len}, {selection.split} split of"
    rows = [("examples", f"{examples} {selection.store.directory}")]
    for name in ("mlm", "causal", "permutation"):
        if f"{name}_loss" in means:
            lines = [f"{word} {value:.4f}" for word, value in list_lines(means, name).items()]
            words = f"loss {means[f'{name}_loss']:.4f} nats ({', '.join(lines)}), "
            words += f"perplexity {means[f'{name}_perplexity']:,.2f}, "
            rows.append((name, f"{words}accuracy {means[f'{name}_accuracy']:.2%}"))
    if "nsp_accuracy" in means:
        nsp = f"accuracy {means['nsp_accuracy']:.2%} (majority "
        nsp += f"{means['majority_nsp_accuracy']:.2%}), loss {means['nsp_loss']:.4f} nats"
        rows.append(("nsp", nsp))
    return rows


def _show_sentences(texts: Sequence[str], scores: Sequence[Score], screen: Screen) -> None:
    """Print the sentences, only the first few with --output, and their total."""
    count = len(texts) if not _OUTPUT.value else min(len(texts), _SHOWN_SENTENCES)
    screen.print(f"{'log P':>10}  {'perplexity':>12}  {'tokens':>6}  sentence", "bold")
    for text, score in zip(texts[:count], scores, strict=False):
        cut = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
        screen.print(_format_numbers(score) + cut)
    if count < len(texts):
        screen.print(f"{'':32}  and {len(texts) - count:,} more in {_OUTPUT.value}", "dim")
    total = pseudo_likelihood.add_scores(scores)
    unknown = f", {total.unknown:,} tokens unknown" if total.unknown else ""
    screen.print(f"{_format_numbers(total)}all {len(texts):,}{unknown}", "bold")


def _format_numbers(score: Score) -> str:
    return f"{score.log_likelihood:>10,.2f}  {score.perplexity:>12,.2f}  {score.tokens:>6,}  "


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "nothing was written", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
