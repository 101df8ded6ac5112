"""Make rows of pre-training batches as a pure function of their position in an endless stream.

Position p of the stream is index i of epoch e; epochs follow each other without a gap. Rows of text
have the examples of walk e mod dupe_factor in epoch e. Every epoch has a new order and, unless
options.new_masks_each_epoch is off, new masks and truncation. Of ready-made examples every epoch
has each one once, in a new order.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.sampling import pairs
from data_pipeline.sampling.batches import ExampleSource
from data_pipeline.sampling.masking import MaskRules, mask_rows, weigh_rare_tokens
from data_pipeline.sampling.rows import gather_text, make_rows, pack_rows
from data_pipeline.sampling.walk import MAX_SEQ_LEN
from data_pipeline.sampling.walks import WalkCache, WalkFacts, find_walk_facts
from data_pipeline.spec import hashing
from data_pipeline.spec.hashing import Purpose
from data_pipeline.spec.options import OPTIONS_OF_A_RUN, PretrainOptions
from data_pipeline.spec.schema import (
    MIN_EXAMPLE_TOKENS,
    RowShape,
    describe_stored_fields,
    row_shape,
)
from data_pipeline.store import EXAMPLES, Split, Store, open_array
from data_pipeline.store.reader import SPLIT_ROWS

MIN_SEQ_LEN = 5  # [CLS] a [SEP] b [SEP]: one token of text on each side
# Settings that a run may change for a store of examples, whose records fix the others. `segments`
# says what kind of examples they are.
_OPEN_OPTIONS = (*OPTIONS_OF_A_RUN, "random_seed", "segments")


@dataclasses.dataclass(frozen=True)
class VocabInfo:
    """Hold the properties of a vocabulary that the sampler needs."""

    size: int
    special_ids: dict[str, int]  # keys: pad, unk, cls, sep, mask
    token_counts_V: np.ndarray  # int64, of the training text; for masked_lm_smoothing
    is_continuation_V: np.ndarray | None = None  # bool: continues a word; for whole-word masks


@dataclasses.dataclass(frozen=True)
class SampledText:
    """Hold the chosen spans of text of B rows: M examples in row order."""

    spans: pairs.Spans  # M examples
    keys_M: np.ndarray  # uint64, for the masks
    examples_in_row_B: np.ndarray  # int64


@dataclasses.dataclass(frozen=True)
class PretrainSource(ExampleSource):
    """Stream the rows of one split at one sequence length. Made by open_source."""

    shape: RowShape
    options: PretrainOptions
    special_ids: Mapping[str, int]
    split: Split
    facts: WalkFacts
    walks: WalkCache
    mask_rules: MaskRules

    def rows_in_epoch(self, epoch: int) -> int:
        """Return the number of rows in an epoch, which has each example of its walk once."""
        return self.facts.rows[epoch % len(self.facts.rows)]

    @property
    def mean_rows_per_epoch(self) -> float:
        return sum(self.facts.rows) / len(self.facts.rows)

    @property
    def mean_examples_in_row(self) -> float:
        return sum(self.facts.examples) / sum(self.facts.rows)

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ends_K = np.cumsum(np.asarray(self.facts.rows, np.int64))
        round_N, rest_N = np.divmod(positions, ends_K[-1])
        walk_N = np.searchsorted(ends_K, rest_N, side="right")
        index_N = rest_N - (ends_K - self.facts.rows)[walk_N]
        return round_N * len(ends_K) + walk_N, index_N

    def make_rows_of_part(self, part: int, index_B: np.ndarray) -> dict[str, np.ndarray]:
        drawn, rules = self.draw(part, index_B), self.mask_rules
        spans, sizes = drawn.spans, (self.shape.seq_len, rules.vocab_size)
        text = gather_text(spans, self.split.token_ids, *sizes, self.special_ids)
        masks = mask_rows(text.ids_BS, text.is_text_BS, spans.length_B, drawn.keys_M, rules)
        if self.shape.examples == 1:
            return make_rows(text, masks, spans)
        in_row_B, pad_id = drawn.examples_in_row_B, self.special_ids["pad"]
        return pack_rows(text, masks, spans, in_row_B, self.shape, pad_id)

    def draw(self, epoch: int, index_B: np.ndarray) -> SampledText:
        """Choose the text of rows by their numbers within an epoch, int64[B]."""
        number = epoch % len(self.facts.rows)
        planned = self.walks.get(number)
        # In the second half of an epoch the next walk will be needed soon.
        if len(index_B) and 2 * int(index_B.max()) >= planned.rows:
            self.walks.build_ahead((number + 1) % len(self.facts.rows))
        seed, seq_len = self.options.random_seed, self.shape.seq_len
        epoch_key = hashing.derive_key(seed, Purpose.EPOCH, seq_len, epoch)
        order_key = hashing.derive_key(epoch_key, Purpose.EPOCH_ORDER)
        if not self.options.new_masks_each_epoch:
            epoch_key = hashing.derive_key(seed, Purpose.WALK_MASKS, seq_len, number)
        examples_BN = planned.find_examples(hashing.permute(order_key, index_B, planned.rows))
        is_used_BN = examples_BN >= 0
        spans = pairs.resolve_spans(self.split, planned.walk, examples_BN[is_used_BN], epoch_key)
        return SampledText(
            spans=spans,
            keys_M=hashing.hash64(
                hashing.derive_key(epoch_key, Purpose.MASKS), spans.first_sentence_B
            ),
            examples_in_row_B=np.count_nonzero(is_used_BN, axis=1),
        )


@dataclasses.dataclass(frozen=True)
class StoredExamples(ExampleSource):
    """Stream the examples of one split at one sequence length. Made by open_stored_examples."""

    shape: RowShape
    options: PretrainOptions
    special_ids: dict[str, int]
    arrays: dict[str, np.ndarray]  # keys: spec.schema.TFRECORD_FIELDS; [N, ...]
    split_rows: np.ndarray  # int64, numbers of the split's rows among the N
    vocab_size: int

    @property
    def mean_rows_per_epoch(self) -> float:
        return float(len(self.split_rows))

    @property
    def mean_examples_in_row(self) -> float:
        return 1.0  # the format has no packed rows

    def rows_in_epoch(self, epoch: int) -> int:
        return len(self.split_rows)  # every epoch has each example once

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(np.asarray(positions, np.int64), len(self.split_rows))

    def make_rows_of_part(self, part: int, index_B: np.ndarray) -> dict[str, np.ndarray]:
        key = hashing.derive_key(
            self.options.random_seed, Purpose.STORED_ORDER, self.shape.seq_len, part
        )
        row_B = self.split_rows[hashing.permute(key, index_B, len(self.split_rows))]
        batch = {
            name: self.arrays[name][row_B].astype(field.dtype)
            for name, field in self.shape.fields.items()
            if name in self.arrays
        }
        has_pairs = self.options.has_next_sentences
        batch["next_sentence_weights"] = np.full(len(row_B), has_pairs, np.float32)
        if not has_pairs and batch["segment_ids"].any():
            raise Refused(
                f"config.data.segments is {self.options.segments!r}, and ready-made examples of "
                "the store have two segments; leave it at 'nsp' ('sop' where label 1 means "
                "swapped), import examples without pairs, or train from a store of text"
            )
        for name in ("input_ids", "masked_lm_ids"):
            if batch[name].max() >= self.vocab_size:
                raise Refused(
                    f"{name} has the id {batch[name].max()}, beyond the {self.vocab_size} pieces "
                    "of the store's vocabulary; the store is damaged: copy it again, or import the "
                    "records again"
                )
        return batch


def open_examples(
    store: Store, split: Split, options: PretrainOptions, seq_len: int, max_predictions_per_seq: int
) -> ExampleSource:
    """Open the stream of rows of a store's split, from its text or its ready-made examples.

    The first opening of a text store counts its walks, and writes the counts to a sidecar file.

    Raises:
      Refused: a setting is wrong, or the store has no examples for these settings.
    """
    if store.kind == EXAMPLES:
        return open_stored_examples(store, split.name, options, seq_len, max_predictions_per_seq)
    is_continuation_V = None
    if options.masking != "token":
        vocabulary = store.load_vocabulary()
        if not vocabulary.marks_words:
            raise Refused(
                f"config.data.masking is {options.masking!r}, and the pieces of {vocabulary.path} "
                "do not show where a word begins; set it to token"
            )
        is_continuation_V = vocabulary.is_continuation
    counts_V = store.train.token_counts  # also for held-out text: masks follow the same rule
    pieces = VocabInfo(store.vocab_size, store.special_ids, counts_V, is_continuation_V)
    return open_source(split, pieces, options, seq_len, max_predictions_per_seq, store)


def open_source(
    split: Split,
    pieces: VocabInfo,
    options: PretrainOptions,
    seq_len: int,
    max_predictions_per_seq: int,
    store: Store | None = None,
) -> PretrainSource:
    """Open the stream of rows of a split; `store` keeps the counts of its walks.

    Raises:
      Refused: a setting is wrong, or the corpus has no examples for these settings.
    """
    options.check()
    _check_lengths(seq_len, max_predictions_per_seq, options.packed_examples)
    _check_split(split, options)
    weights_V, smoothing = None, options.masked_lm_smoothing
    if smoothing:
        weights_V = weigh_rare_tokens(pieces.token_counts_V, smoothing, pieces.special_ids)
    mask_rules = MaskRules(
        masked_lm_prob=options.masked_lm_prob,
        max_predictions_per_seq=max_predictions_per_seq,
        vocab_size=pieces.size,
        mask_id=pieces.special_ids["mask"],
        mask_token_share=options.mask_token_share,
        random_token_share=options.random_token_share,
        masking=options.masking,
        longest_ngram=options.longest_ngram,
        is_continuation_V=pieces.is_continuation_V,
        exact=options.exact,
        weights_V=weights_V,
    )
    facts = find_walk_facts(split, options, seq_len, store)
    return PretrainSource(
        shape=row_shape(options, seq_len, max_predictions_per_seq),
        options=options,
        special_ids=pieces.special_ids,
        split=split,
        facts=facts,
        walks=WalkCache(split, options, seq_len, facts),
        mask_rules=mask_rules,
    )


def _check_lengths(seq_len: int, max_predictions_per_seq: int, packed_examples: int) -> None:
    if not MIN_SEQ_LEN <= seq_len <= MAX_SEQ_LEN:
        raise Refused(
            f"seq_len is {seq_len}; [CLS] A [SEP] B [SEP] needs {MIN_SEQ_LEN} or more, "
            f"and {MAX_SEQ_LEN} is the most (BERT: 128 and 512)"
        )
    if not 1 <= max_predictions_per_seq <= seq_len:
        raise Refused(
            f"max_predictions_per_seq is {max_predictions_per_seq}; it must be from 1 to seq_len, "
            f"which is {seq_len} (about 0.15 * seq_len, here {max(1, round(0.15 * seq_len))})"
        )
    if packed_examples > seq_len // MIN_EXAMPLE_TOKENS:
        raise Refused(
            f"packed_examples is {packed_examples}; a row of {seq_len} tokens has room for "
            f"{seq_len // MIN_EXAMPLE_TOKENS} at most: pack fewer, or 1 for none"
        )


def _check_split(split: Split, options: PretrainOptions) -> None:
    if split.tokens < 1 or split.documents < (2 if options.segments == "nsp" else 1):
        raise Refused(
            f"split {split.name} has too little text (documents: {split.documents}, tokens: "
            f"{split.tokens}); it needs a document, and next-sentence prediction 2, as its random "
            "second segments come from another one: build the store from 4 or more documents that "
            "differ (--documents says where one ends), or train without pairs: "
            "--config.objective=mlm --config.data.segments=doc_sentences"
        )
    if split.sentences >= 2**32:
        raise Refused(
            f"split {split.name} has {split.sentences} sentences; walks number up to {2**32 - 1}: "
            "build several stores"
        )


def open_stored_examples(
    store: Store,
    split_name: str,
    options: PretrainOptions,
    seq_len: int,
    max_predictions_per_seq: int,
) -> StoredExamples:
    """Open the stream of a split of a store that holds ready-made examples.

    Raises:
      Refused: the store has no examples of this seq_len or number of slots, a setting differs
        from the fixed one of the examples, or an array is missing or damaged.
    """
    options.check()
    _check_fixed(store, options)
    slots = {
        n: length["max_predictions_per_seq"] for n, length in store.manifest["examples"].items()
    }
    if slots.get(str(seq_len)) != max_predictions_per_seq:
        kinds = " and ".join(f"{n} tokens with {most} predictions" for n, most in slots.items())
        raise Refused(
            f"seq_len is {seq_len} and max_predictions_per_seq is {max_predictions_per_seq}, but "
            f"{store.directory} holds ready-made examples of {kinds}: set --seq_len and "
            "--max_predictions_per_seq, or config.phases, to such a pair, or import others"
        )
    length = store.manifest["examples"][str(seq_len)]
    shape = RowShape(seq_len, max_predictions_per_seq, 1)
    examples = sum(length[split] for split in SPLIT_ROWS)

    def open_file(name: str, dtype: str, dims: tuple[int, ...]) -> np.ndarray:
        return open_array(store.directory, f"{EXAMPLES}/{seq_len}/{name}.npy", dtype, dims)

    split_rows = open_file(SPLIT_ROWS[split_name], "int64", (length[split_name],))
    wrong = split_rows[(split_rows < 0) | (split_rows >= examples)]
    if len(wrong):
        raise Refused(
            f"{store.directory}/{EXAMPLES}/{seq_len}/{SPLIT_ROWS[split_name]}.npy has the row "
            f"{wrong[0]} of {examples} examples; copy the store again"
        )
    return StoredExamples(
        arrays={
            name: open_file(name, str(dtype), (examples, *dims))
            for name, (dims, dtype) in describe_stored_fields(shape, store.vocab_size).items()
        },
        split_rows=split_rows,
        shape=shape,
        options=options,
        vocab_size=store.vocab_size,
        special_ids=store.special_ids,
    )


def _check_fixed(store: Store, options: PretrainOptions) -> None:
    for field in dataclasses.fields(PretrainOptions):
        value = getattr(options, field.name)
        if field.name not in _OPEN_OPTIONS and value != field.default:
            raise Refused(
                f"config.data.{field.name} is {value!r}, but {store.directory} holds ready-made "
                f"examples, whose segments and masks are fixed: leave it at {field.default!r}, "
                "or train from a store of text"
            )
