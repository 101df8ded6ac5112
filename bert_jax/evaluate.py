"""Score a checkpoint on a store, on the likelihood of sentences, or on a search by its vectors.

A store is scored by masked words and next sentences (causal models: next tokens); sentences by
their pseudo-log-likelihood; a search by nDCG@10, recall@100 and MRR@10 next to BM25's.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused
from data_pipeline.spec.options import SEGMENTS
from data_pipeline.store import HELDOUT, TRAIN

_MIN_SEQ_LEN, _USUAL_SEQ_LEN = 8, 128  # 128: of the first phase of the paper's configs
_USUAL_QRELS = "test"


@dataclasses.dataclass(frozen=True)
class EvaluateFlags:
    """Declare the flags."""

    checkpoint: str = flag(
        "",
        "workdir of a run, hf:DIR (Hugging Face's files) or google:PREFIX (Google's)",
        metavar="CK",
        is_required=True,
    )
    output: str = flag("", "new file for the numbers, as JSON lines", metavar="FILE")
    batch_size: int = flag(64, "rows per batch", minimum=1)
    int8: bool = cli.int8_flag()
    store: str = flag(
        "",
        "store with the checkpoint's vocabulary, a folder that data_pipeline.build wrote, or "
        "gs://; default: the run's own",
        "a store",
        metavar="STORE",
    )
    split: str = flag(
        "",
        f"split of the store, {HELDOUT} (if not set) or {TRAIN}; with --retrieval the name of a "
        f"file in qrels/, {_USUAL_QRELS} if not set",
        "a store",
    )
    seq_len: int | None = flag(
        None,
        f"longest example in tokens; if not set {_USUAL_SEQ_LEN}, or the model's positions if "
        "fewer",
        "a store",
        minimum=_MIN_SEQ_LEN,
    )
    examples: int = flag(4096, "most examples to score", "a store", minimum=1)
    segments: str | None = flag(
        None,
        "what an example is made of; if not set, as in the run; for other checkpoints nsp, or sop "
        "for an ALBERT",
        "a store",
        choices=SEGMENTS,
    )
    sentences: str = flag(
        "",
        "file with one sentence per line, plain or compressed, or - for stdin",
        "sentences",
        metavar="FILE",
    )
    retrieval: str = flag(
        "",
        "folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/test.tsv), searched by exact "
        "products of pooled vectors and by BM25",
        "retrieval",
        metavar="DIR",
    )
    pool: str = flag(
        "mean",
        "one vector per text: [CLS]'s, or the mean of all",
        "retrieval",
        choices=("cls", "mean"),
    )
    normalize: bool = flag(
        True, "divide each vector by its length: cosines, not dot products", "retrieval"
    )
    max_seq_length: int = flag(
        0,
        "truncate texts to N tokens, [CLS] and [SEP] included; 0: to the model's positions",
        "retrieval",
    )

    def __post_init__(self) -> None:
        if self.retrieval and (self.store or self.sentences):
            raise Refused("--retrieval excludes --store and --sentences: score them separately")
        has_store = not self.retrieval and (bool(self.store) or not self.sentences)
        for names, kind, is_scored in (
            (("seq_len", "examples", "segments"), "a store", has_store),
            (("pool", "normalize", "max_seq_length"), "retrieval", bool(self.retrieval)),
            (("split",), "a store or retrieval", has_store or bool(self.retrieval)),
        ):
            for name in names:
                if not is_scored and getattr(self, name) != getattr(EvaluateFlags, name):
                    raise Refused(f"--{name} is for {kind}, which is not scored here; leave it out")
        if has_store and self.split not in ("", HELDOUT, TRAIN):
            raise Refused(f"--split is {self.split!r}; for a store it must be {HELDOUT} or {TRAIN}")


COMMAND = Command(
    "bert_jax.evaluate",
    __doc__,
    EvaluateFlags,
    "python -m bert_jax.evaluate --checkpoint=runs/base --sentences=sentences.txt",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

import numpy as np

from bert_jax.config import data_in_evaluations
from bert_jax.inference import (
    batches,
    hidden_states,
    pseudo_likelihood,
    retrieval,
    sentence_modules,
    store_scores,
)
from bert_jax.inference.hidden_states import Extraction
from bert_jax.inference.pseudo_likelihood import Score
from bert_jax.inference.retrieval import Collection
from bert_jax.inference.store_scores import ScoredRows
from bert_jax.interop import load, transformers_class
from bert_jax.interop.pretrained import (
    Pretrained,
    check_masked_lm,
    place_masked_lm,
    place_model,
    refuse_causal,
)
from bert_jax.interop.warm_start import InitialWeights, fit_vocabulary
from bert_jax.logging.console import Screen, list_lines
from bert_jax.model.bert import Heads
from bert_jax.runtime.run_record import PretrainingRun
from bert_jax.trainer.feed import join_digests, open_store
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import check_new_file, new_file
from data_pipeline.labeled.lines import STDIN, LineCounts, check_lines, group_rows, open_lines
from data_pipeline.spec.options import PretrainOptions

_SHOWN_SENTENCES = 20
_GROUP_TOKENS = 1 << 17  # tokens whose vectors are searched at once
_SHOWN_CHARS = 60


def _main(log: LibraryLog, flags: EvaluateFlags) -> int:
    if flags.retrieval:
        return _search(log, flags)
    with cli.preparing():
        if flags.sentences:
            check_lines(flags.sentences, "--sentences")
        if flags.output:
            check_new_file(pathlib.Path(flags.output))
        log.hold()
        screen = Screen(is_writer=True)
        run = load.read_run(flags.checkpoint)
        with screen.spinning(f"reading {flags.checkpoint}"):
            checkpoint = load.load_masked_lm(flags.checkpoint)
        selection = _select(flags, run, checkpoint, screen)
        check_masked_lm(checkpoint)
        if flags.sentences:
            refuse_causal(
                checkpoint, "and --sentences masks one word after the other: give --store"
            )
        vocabulary, positions = checkpoint.vocabulary, checkpoint.config.max_position_embeddings
        if selection is not None:
            vocabulary = selection.store.load_vocabulary()
        # A head that it lacks is not scored.
        weights = dataclasses.replace(fit_vocabulary(checkpoint, vocabulary), parts=())
        sentences, place = _read_sentences(flags.sentences)
        ids = pseudo_likelihood.encode_sentences(vocabulary, sentences, place, positions)
    return _score(flags, weights, selection, sentences, ids, screen)


def _select(
    flags: EvaluateFlags, run: PretrainingRun | None, checkpoint: Pretrained, screen: Screen
) -> ScoredRows | None:
    """Resolve the store and split to score: --store, else the one the run trained on."""
    options = PretrainOptions() if run is None else data_in_evaluations(run.config)
    if flags.store:
        options = dataclasses.replace(options, store=flags.store, store_weights="")
    elif flags.sentences:
        return None
    elif not options.store:
        raise Refused("there is nothing to score: give --store, --sentences or --retrieval")
    segments = flags.segments or options.segments
    if not flags.segments and (run is None or run.converted_from):
        segments = transformers_class.find_pairs(checkpoint)
    options = dataclasses.replace(options, segments=segments)
    options.check()
    positions = checkpoint.config.max_position_embeddings
    seq_len = flags.seq_len or min(_USUAL_SEQ_LEN, positions)
    if seq_len > positions:
        raise Refused(
            f"--seq_len is {seq_len}, but {flags.checkpoint} has {positions} positions; give "
            f"--seq_len={positions} or less"
        )
    store = open_store(options, screen)
    if run is not None and not flags.store and join_digests([store]) != run.store_digest:
        raise Refused(
            f"{options.store} is not the store that the run of {flags.checkpoint} was trained on, "
            "so what it holds out may be text of the training; give the store to score as --store"
        )
    return ScoredRows(store, flags.split or HELDOUT, options, seq_len, flags.examples)


def _read_sentences(file: str) -> tuple[list[str], str]:
    """Return the lines of --sentences and the name of their file; none without the flag."""
    if not file:
        return [], ""
    place = "stdin" if file == STDIN else file
    sentences = [line.rstrip("\r\n") for line in open_lines(file)]
    if not sentences:
        raise Refused(f"{place} has no line; give one sentence per line")
    return sentences, place


def _score(
    flags: EvaluateFlags,
    weights: InitialWeights,
    selection: ScoredRows | None,
    sentences: list[str],
    sentence_ids: list[Any],
    screen: Screen,
) -> int:
    model = place_masked_lm(weights.checkpoint, is_int8=flags.int8)
    screen.print(f"weights: {weights.describe()}")
    lines: list[dict[str, Any]] = []
    if selection is not None:
        means = store_scores.score_store(model, selection, flags.batch_size, screen)
        facts: dict[str, Any] = {"store": str(selection.store.directory)}
        facts |= {"store_digest": selection.store.digest, "split": selection.split}
        facts |= {"int8": True} if flags.int8 else {}
        lines.append(
            {"checkpoint": flags.checkpoint, **facts, "seq_len": selection.seq_len, **means}
        )
        screen.table("store", _make_store_rows(selection, means))
    if sentences:
        scores = pseudo_likelihood.score_sentences(model, sentence_ids, flags.batch_size, screen)
        for sentence, score in zip(sentences, scores, strict=True):
            numbers = {
                "pseudo_log_likelihood": score.log_likelihood,
                "pseudo_perplexity": score.perplexity,
                "tokens": score.tokens,
                "unknown_tokens": score.unknown,
            }
            lines.append({"sentence": sentence, **numbers})
        _show_sentences(sentences, scores, flags.output, screen)
    _write(flags.output, lines, screen)
    return 0


def _write(output: str, lines: Sequence[dict[str, Any]], screen: Screen) -> None:
    if output:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with new_file(pathlib.Path(output)) as unfinished:
            # A name with a byte that is not UTF-8 gets an escape of JSON.
            unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
        screen.print(f"wrote {output}")


def _search(log: LibraryLog, flags: EvaluateFlags) -> int:
    """Score --retrieval: rank its documents by BM25, then by the checkpoint's vectors."""
    split = flags.split or _USUAL_QRELS
    screen = Screen(is_writer=True)
    with cli.preparing():
        if flags.output:
            check_new_file(pathlib.Path(flags.output))
        retrieval.import_bm25s()
        with screen.spinning(f"reading {flags.retrieval}"):
            collection = retrieval.read_collection(pathlib.Path(flags.retrieval), split)
        log.hold()
        with screen.spinning(f"reading {flags.checkpoint}"):
            checkpoint = load.load(flags.checkpoint)
        if flags.pool == hidden_states.CLS:
            refuse_causal(checkpoint, "so its [CLS] sees no other token: give --pool=mean")
        length = batches.choose_length(
            flags.max_seq_length, checkpoint.config.max_position_embeddings
        )
        layers = hidden_states.choose_layers("-1", checkpoint.config.num_hidden_layers)
        extraction = hidden_states.Extraction(
            layers, flags.pool, flags.normalize, length, 0, flags.batch_size
        )
        note = sentence_modules.describe_differences(flags.checkpoint, extraction)
    documents, queries = collection.documents, collection.queries
    with screen.spinning(f"BM25 counts the words of {len(documents):,} documents") as show:
        by_words = retrieval.rank_by_words(
            documents, queries, lambda done: show(f"BM25: {done:,} of {len(queries):,} queries")
        )
    counts = LineCounts()
    by_vectors = _rank_by_vectors(checkpoint, collection, extraction, counts, screen, flags.int8)
    scores = {
        flags.checkpoint: retrieval.measure(by_vectors, collection.grades),
        "BM25": retrieval.measure(by_words, collection.grades),
    }
    facts: dict[str, Any] = {"retrieval": flags.retrieval, "split": split}
    facts |= {"queries": len(queries), "documents": len(documents)}
    facts |= {"missing_documents": collection.missing} if collection.missing else {}
    _show_search(facts, scores, extraction, counts, note, screen)
    lines = [{"system": name} | facts | each for name, each in scores.items()]
    if flags.int8:  # BM25 has no kernels
        lines[0] |= {"int8": True}
    _write(flags.output, lines, screen)
    return 0


def _show_search(
    facts: dict[str, Any],
    scores: dict[str, dict[str, float]],
    extraction: Extraction,
    counts: LineCounts,
    note: str,
    screen: Screen,
) -> None:
    measure = "cosines" if extraction.normalize else "dot products"
    pool = "mean of all tokens" if extraction.pool == hidden_states.MEAN else "[CLS]"
    vectors = f"{pool}, {measure}, {counts.cut:,} texts cut to {extraction.max_seq_length} tokens"
    numbers = f"{facts['documents']:,} documents, {facts['queries']:,} queries of {facts['split']}"
    if missing := facts.get("missing_documents"):
        numbers += f", {missing:,} of the graded documents missing"
    rows = [("collection", numbers), ("vectors", vectors)]
    for name, means in zip(("", "BM25"), scores.values(), strict=True):
        words = (
            f"{key.replace('ndcg', 'nDCG').replace('mrr', 'MRR')} {value:.4f}"
            for key, value in means.items()
        )
        rows.append((name, ", ".join(words)))
    rows += [("note", note)] * bool(note)
    screen.table(f"retrieval, {facts['retrieval']}", rows)


def _rank_by_vectors(
    checkpoint: Pretrained,
    collection: Collection,
    extraction: Extraction,
    counts: LineCounts,
    screen: Screen,
    is_int8: bool,
) -> list[np.ndarray]:
    """Rank the documents by the products of their vectors with the queries'."""
    model = place_model(checkpoint, Heads(mlm=False, nsp=False), is_int8=is_int8)
    step = hidden_states.compile_vectors(model, extraction)

    def compute(texts: Sequence[str], unit: str) -> Iterator[np.ndarray]:
        groups = group_rows(
            texts,
            checkpoint.vocabulary,
            extraction.max_seq_length,
            _GROUP_TOKENS,
            counts,
            has_pairs=False,
        )
        with screen.spinning(f"{unit}: compiling") as show:

            def advance(done: int) -> None:
                show(f"{done:,} of {len(texts):,} {unit} have their vectors")

            for group in hidden_states.compute_groups(step, model, groups, extraction, advance):
                yield group.vectors

    queries_QD = np.concatenate(list(compute(collection.queries, "queries")))
    return retrieval.rank_by_vectors(queries_QD, compute(collection.documents, "documents"))


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


def _show_sentences(
    texts: Sequence[str], scores: Sequence[Score], output: str, screen: Screen
) -> None:
    """Print the sentences, only the first few with --output, and their total."""
    count = len(texts) if not output else min(len(texts), _SHOWN_SENTENCES)
    screen.print(f"{'log P':>10}  {'perplexity':>12}  {'tokens':>6}  sentence", "bold")
    for text, score in zip(texts[:count], scores, strict=False):
        cut = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
        screen.print(_format_numbers(score) + cut)
    if count < len(texts):
        screen.print(f"{'':32}  and {len(texts) - count:,} more in {output}", "dim")
    total = pseudo_likelihood.add_scores(scores)
    unknown = f", {total.unknown:,} tokens unknown" if total.unknown else ""
    screen.print(f"{_format_numbers(total)}all {len(texts):,}{unknown}", "bold")


def _format_numbers(score: Score) -> str:
    return f"{score.log_likelihood:>10,.2f}  {score.perplexity:>12,.2f}  {score.tokens:>6,}  "


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was written", argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
