"""Compute frozen vectors of rows: from a baseline, or from the last layers of a BERT.

Dimensions: B rows of a batch, S sequence, K arrays of a token, D width of each, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import numpy as np

from bert_jax.inference import batches
from bert_jax.inference.hidden_states import VECTORS, choose_layers, compute_vectors
from bert_jax.interop import load
from bert_jax.interop.pretrained import Pretrained, place_model
from bert_jax.lab.baselines import bilm, cove, skipgram, training
from bert_jax.lab.baselines.settings import BERT, BILM, COUNTS, COVE, ELMO, SKIPGRAM, TAGLM
from bert_jax.lab.baselines.training import digest_arrays, read_baseline
from bert_jax.model.bert import Heads
from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import parse_record
from data_pipeline.labeled.rows import EncodedRows, batch_by_length
from data_pipeline.store import open_store
from data_pipeline.vocab import Vocabulary

Size = Annotated[int, 1, 1 << 24]
_BATCH_SIZE = 32  # rows
_BERT_LAYERS = 4  # the last ones, concatenated: the best of table 7 of the paper


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Hold a frozen encoder, which turns rows into vectors of tokens."""

    vocabulary: Vocabulary
    arrays: int  # K
    width: int  # D; 0 for counts, which have no vectors of tokens
    digest: str  # the weights' digest: equal ones give equal vectors
    # Yields VECTORS float32[B,S,K,D], longest rows first.
    run: Callable[[EncodedRows], batches.Results]
    positions: int = 512  # most tokens of a row


def open_encoder(kind: str, addresses: Sequence[str]) -> Encoder:
    """Open the store, folders or checkpoint that a kind of vectors needs.

    Raises:
      Refused: the number of addresses is wrong, an address holds something else, or the
        vocabularies differ.
    """
    open_kind, names = KINDS[kind]
    if len(addresses) != len(names):
        raise Refused(f"--from is {','.join(addresses)!r}; {kind} takes {','.join(names)}")
    return open_kind(*addresses)


def _open_counts(address: str) -> Encoder:
    vocabulary = open_store(address).load_vocabulary()
    return Encoder(vocabulary, 0, 0, vocabulary.digest, run=lambda rows: iter(()))


def _open_skipgram(address: str) -> Encoder:
    table_VD, vocabulary = skipgram.read_table(address)
    run = _run_reader(lambda table, ids_BS, _: table[ids_BS][:, :, None], table_VD, vocabulary)
    return Encoder(vocabulary, 1, table_VD.shape[1], digest_arrays(table_VD), run)


def _open_bilm(address: str) -> Encoder:
    folder, settings, vocabulary = read_baseline(address, BILM)
    like = training.init_state(bilm.init_params(settings, vocabulary.size), settings)
    params, _ = training.read_state(folder, like)
    compute = functools.partial(bilm.compute_vectors, settings=settings)
    run = _run_reader(compute, params, vocabulary)
    arrays, width = 1 + settings.layers, 2 * settings.width
    return Encoder(vocabulary, arrays, width, digest_arrays(params), run)


def _open_taglm(tokens: str, address: str) -> Encoder:
    """Concatenate the skip-gram vector of a token and the biLM's last layer, as TagLM does.

    Source: Peters et al. 2017, section 3.4, where the first vector is trained with the tagger.
    """
    static, reader = _open_skipgram(tokens), _open_bilm(address)
    if static.vocabulary.digest != reader.vocabulary.digest:
        raise Refused(
            f"--from is {tokens},{address}, whose vocabularies differ; train both on one store"
        )

    def run(rows: EncodedRows) -> batches.Results:
        for (index_B, first), (_, last) in zip(static.run(rows), reader.run(rows), strict=True):
            vectors = np.concatenate([first[VECTORS], last[VECTORS][:, :, -1:]], axis=3)
            yield index_B, {VECTORS: vectors}

    width = static.width + reader.width
    digest = f"{static.digest} {reader.digest}"
    return dataclasses.replace(static, width=width, digest=digest, run=run)


def _open_cove(address: str) -> Encoder:
    folder, settings, vocabulary = read_baseline(address, COVE)
    path = folder / training.RECORD
    record = small_files.read_object(path, folder)
    width, vocab_size = (
        parse_record(record.get(name), Size, f"{path}: {name!r}")
        for name in ("static_width", "target_pieces")
    )
    static_WD = np.zeros((vocabulary.size, width), np.float32)
    like = training.init_state(cove.init_params(settings, static_WD, vocab_size), settings)
    params, _ = training.read_state(folder, like)
    run = _run_reader(cove.compute_vectors, params, vocabulary)
    digest = digest_arrays([params["static"], params["encoder"]])
    return Encoder(vocabulary, 1, width + 2 * settings.units, digest, run)


def _run_reader(
    compute: Callable[..., jax.Array], params: Any, vocabulary: Vocabulary
) -> Callable[[EncodedRows], batches.Results]:
    """Return Encoder.run of compute(params, ids_BS, lengths_B), which gives float32[B,S,K,D]."""
    compiled = jax.jit(compute)

    def run(rows: EncodedRows) -> batches.Results:
        for batch in batch_by_length(rows, _BATCH_SIZE, vocabulary.special_ids["pad"]):
            index_B = batch.index_B[batch.index_B >= 0]
            lengths_B = batch.fields["input_mask"].sum(axis=1)
            vectors = np.asarray(compiled(params, batch.fields["input_ids"], lengths_B))
            yield index_B, {VECTORS: vectors[: len(index_B)]}

    return run


def _open_bert(address: str) -> Encoder:
    """Open a BERT whose vectors are its last four layers, or all if it has fewer, joined."""
    checkpoint = load.load(address)
    count = min(_BERT_LAYERS, checkpoint.config.num_hidden_layers)
    layers = open_layers(checkpoint, f"-{count}:")

    def run(rows: EncodedRows) -> batches.Results:
        for index_B, outputs in layers.run(rows):
            vectors = outputs[VECTORS]
            yield index_B, {VECTORS: vectors.reshape(*vectors.shape[:2], 1, -1)}

    digest = digest_arrays(checkpoint.params)
    return dataclasses.replace(layers, arrays=1, width=count * layers.width, digest=digest, run=run)


def open_layers(checkpoint: Pretrained, layers: str) -> Encoder:
    """Place a BERT whose vectors are the named layers (see choose_layers); it has no digest."""
    config, model = checkpoint.config, place_model(checkpoint, Heads(mlm=False, nsp=False))
    chosen = choose_layers(layers, config.num_hidden_layers)
    compute = functools.partial(compute_vectors, layers=chosen, pool="", normalize=False)
    step = batches.compile_step(model.model, compute)
    return Encoder(
        checkpoint.vocabulary,
        arrays=len(chosen.numbers),
        width=config.hidden_size,
        digest="",
        run=lambda rows: batches.run_rows(step, model, rows, _BATCH_SIZE),
        positions=config.max_position_embeddings,
    )


# Kind -> the function that opens it, and the addresses it takes.
KINDS: dict[str, tuple[Callable[..., Encoder], tuple[str, ...]]] = {
    COUNTS: (_open_counts, ("STORE",)),
    SKIPGRAM: (_open_skipgram, ("SKIPGRAM",)),
    ELMO: (_open_bilm, ("BILM",)),
    TAGLM: (_open_taglm, ("SKIPGRAM", "BILM")),
    COVE: (_open_cove, ("COVE",)),
    BERT: (_open_bert, ("CHECKPOINT",)),
}
