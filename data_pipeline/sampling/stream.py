"""Make rows of pre-training batches as a pure function of their position in an endless stream.

Position p of the stream is index i of epoch e; epochs follow each other without a gap. Epoch e uses
the examples of walk e mod dupe_factor. Every epoch has a new order and, unless
options.new_masks_each_epoch is off, new masks and truncation.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.sampling import pairs
from data_pipeline.sampling.batches import ExampleSource
from data_pipeline.sampling.masking import MaskRules, mask_rows, weigh_rare_tokens
from data_pipeline.sampling.ready_made import open_stored_examples
from data_pipeline.sampling.rows import gather_text, make_rows, pack_rows
from data_pipeline.sampling.walk import MAX_SEQ_LEN
from data_pipeline.sampling.walks import WalkCache, WalkFacts, find_walk_facts
from data_pipeline.spec import hashing
from data_pipeline.spec.hashing import Purpose
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import MIN_EXAMPLE_TOKENS, RowShape, row_shape
from data_pipeline.store import EXAMPLES, Split, Store

MIN_SEQ_LEN = 5  # [CLS] a [SEP] b [SEP]: one token of text on each side


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
