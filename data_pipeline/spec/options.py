"""Declare the settings by which training examples are drawn from a store."""

import dataclasses
import math
import os
import pathlib

from data_pipeline.io import Refused
from data_pipeline.spec.fields import check_fields, setting

SEGMENTS = ("nsp", "sop", "full_sentences", "doc_sentences")
MASKING = ("token", "whole_word", "ngram")
# Settings that Google BERT's exact rules allow only with these values.
_EXACT = {"segments": ("nsp",), "masking": ("token", "whole_word"), "masked_lm_smoothing": (0.0,)}
MAX_PACKED_EXAMPLES = 64
MAX_NGRAM = 16
# Settings of the source and the speed of rows; all others decide what the rows hold.
OPTIONS_OF_A_RUN = (
    *("store", "store_weights", "store_temperature"),
    *("data_cache", "group_sequences", "prefetch_batches"),
)


_SUM_TOLERANCE = 1e-6  # store_weights are decimal fractions


def parse_store_weights(text: str, stores: int, key: str) -> tuple[float, ...]:
    """Parse the shares of several stores: "0.7,0.3"; `key` names the setting in errors.

    Raises:
      Refused: there are fewer than two stores, or not one share per store; a share is not a number
        from 0 to 1; the shares do not sum to 1.
    """
    if stores < 2:
        raise Refused(
            f"{key} is {text!r}, but config.data.store names {stores or 'no'} store and "
            "shares need several: leave it empty, or give the stores with commas between them"
        )
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = ()
    if not weights or not all(0.0 <= weight <= 1.0 for weight in weights):
        raise Refused(f"{key} is {text!r}; it must be numbers from 0 to 1, such as 0.7,0.3")
    if len(weights) != stores:
        raise Refused(
            f"{key} is {text!r}, {len(weights)} shares for the {stores} stores of "
            "config.data.store; give each one, in their order"
        )
    total = math.fsum(weights)
    if abs(total - 1.0) > _SUM_TOLERANCE:
        scaled = ",".join(f"{weight / total:.8g}" for weight in weights) if total else ""
        advice = f"divided by their sum they are {scaled}" if total else "one must be above 0"
        raise Refused(f"{key} is {text!r}, which sums to {total:g}; it must be 1: {advice}")
    return weights


@dataclasses.dataclass(frozen=True)
class PretrainOptions:
    """Choose how segments and masks are drawn from a store; `config.data` of a training config.

    Sequence length, batch size and predictions per sequence belong to a training phase. Defaults
    and names are taken from create_pretraining_data.py@eedf5716ce where it has the same flag.

    `segments` is what a sequence is made of:
      nsp             [CLS] A [SEP] B [SEP]; B follows A, or comes from elsewhere (BERT)
      sop             the same; B follows A, or the two are swapped (ALBERT)
      full_sentences  [CLS] consecutive sentences [SEP], continuing into the next document, with
                      a [SEP] between documents (RoBERTa)
      doc_sentences   the same, never past the end of a document (RoBERTa)

    `exact` follows Google's rules for nsp to the letter; add new_masks_each_epoch=False to draw
    masks and truncation once per pass of dupe_factor, as Google does. Without `exact` these
    defects are corrected: a random B never comes from the same document; a short target length is
    drawn per chunk, not per document; a chunk takes a second sentence if there is one; half of all
    pairs have a random B, as far as the corpus allows; whole words never join across [SEP].
    """

    store: str = setting(
        "",
        "folder that `python -m data_pipeline.build` wrote; may be gs://bucket/store; several, "
        "separated by commas, are mixed",
    )
    data_cache: str = setting("", "local folder on each host for copies of stores on gs://")
    random_seed: int = setting(
        12345, "seed of segments, order and masks", minimum=0, maximum=2**63 - 1
    )
    segments: str = setting("nsp", "what a sequence is made of", choices=SEGMENTS)
    masking: str = setting(
        "token",
        "unit of masking: a token, a whole word, or 1 to longest_ngram words",
        choices=MASKING,
    )
    longest_ngram: int = setting(
        3,
        "most words in a span; a length of n words has probability proportional to 1/n",
        minimum=1,
        maximum=MAX_NGRAM,
        source="ALBERT: 3",
    )
    masked_lm_prob: float = setting(
        0.15,
        "share of the tokens, including [CLS] and [SEP], to predict",
        above=0,
        below=1,
        source="BERT: 0.15",
    )
    mask_token_share: float = setting(
        0.8,
        "share of the predicted tokens replaced by [MASK]",
        minimum=0,
        maximum=1,
        source="BERT: 0.8",
    )
    random_token_share: float = setting(
        0.1,
        "share of the predicted tokens replaced by a random id; the rest stay",
        minimum=0,
        maximum=1,
        source="BERT: 0.1",
    )
    new_masks_each_epoch: bool = setting(
        True, "new masks of a text in each epoch; false: dupe_factor different masks, in rotation"
    )
    short_seq_prob: float = setting(
        0.1,
        "share of the sequences with a random shorter target length",
        minimum=0,
        maximum=1,
        source="BERT: 0.1",
    )
    dupe_factor: int = setting(
        10, "number of different passes over the corpus, in rotation", minimum=1, maximum=10_000
    )
    exact: bool = setting(False, "follow Google's rules to the letter, including their defects")
    packed_examples: int = setting(
        1,
        "most examples packed into a row; 1 gives each its own row, 8 leaves hardly any padding",
        minimum=1,
        maximum=MAX_PACKED_EXAMPLES,
    )
    # The next two bounds are far above useful values; larger values would fill the memory.
    group_sequences: int = setting(
        1024, "sequences made per NumPy call; affects only speed", minimum=1, maximum=1 << 20
    )
    prefetch_batches: int = setting(4, "batches kept ready on the host", minimum=1, maximum=1 << 16)
    store_weights: str = setting(
        "",
        "share of the rows from each of several stores, such as 0.7,0.3; empty takes shares by "
        "their tokens",
    )
    store_temperature: float = setting(
        1.0,
        "without store_weights, shares are proportional to tokens to this power; below 1 favors "
        "small stores",
        above=0,
        maximum=10,
        source="mmBERT: 0.7, 0.5 and 0.3 in three phases",
    )
    masked_lm_smoothing: float = setting(
        0.0,
        "tokens are chosen in proportion to count**-masked_lm_smoothing, so that rare ones are "
        "predicted more often; 0 treats all alike",
        minimum=0,
        maximum=1,
        source="DistilBERT's train.py: 0.7",
    )

    @property
    def stores(self) -> tuple[str, ...]:
        """Return the folders that `store` names; () if it is empty."""
        if os.path.isdir(self.store):  # its name may have a comma
            return (self.store,)
        return tuple(name.strip() for name in self.store.split(",")) if self.store else ()

    @property
    def store_names(self) -> tuple[str, ...]:
        """Return short names of `stores`: the last part of their paths that differs in all."""
        paths = [pathlib.PurePath(address).parts[::-1] for address in self.stores]
        for names in zip(*paths, strict=False):
            if len(set(names)) == len(names):
                return names
        return self.stores

    @property
    def has_next_sentences(self) -> bool:
        """Return whether sequences have a second segment and a label for it."""
        return self.segments in ("nsp", "sop")

    def check(self) -> None:
        """Raise Refused if a value is out of its range, or two settings contradict."""
        check_fields(self, "config.data")
        self._check_stores()
        if self.mask_token_share + self.random_token_share > 1.0 + 1e-9:
            raise Refused(
                f"config.data.mask_token_share and random_token_share are {self.mask_token_share} "
                f"and {self.random_token_share}; together they must be at most 1 (BERT: 0.8 and "
                "0.1, the rest stays as it is)"
            )
        if self.masking != "ngram" and self.longest_ngram != PretrainOptions.longest_ngram:
            raise Refused(
                f"config.data.longest_ngram is {self.longest_ngram} and config.data.masking is "
                f"{self.masking!r}, which has no runs of words; set masking to ngram, or leave "
                "longest_ngram out"
            )
        for name, known in _EXACT.items():
            if self.exact and getattr(self, name) not in known:
                raise Refused(
                    f"config.data.exact is True and config.data.{name} is {getattr(self, name)!r}; "
                    "exact means Google BERT's rules, which know "
                    f"{' and '.join(map(repr, known))} alone: leave one of them out"
                )
        if self.masked_lm_smoothing and self.masking != "token":
            raise Refused(
                f"config.data.masked_lm_smoothing is {self.masked_lm_smoothing} and "
                f"config.data.masking is {self.masking!r}; counts of tokens weigh single tokens: "
                "leave one of them out"
            )

    def _check_stores(self) -> None:
        stores = self.stores
        if len(stores) > 1 and not all(stores):
            raise Refused(
                f"config.data.store is {self.store!r}, with nothing before or after a comma; give "
                "a folder, or several with a comma between each two"
            )
        if twice := next((name for name in stores if stores.count(name) > 1), ""):
            raise Refused(
                f"config.data.store names {twice} twice; name it once, with a larger share in "
                "config.data.store_weights"
            )
        if self.store_weights and self.store_temperature != PretrainOptions.store_temperature:
            raise Refused(
                f"config.data.store_weights is {self.store_weights!r} and store_temperature is "
                f"{self.store_temperature}, which is for shares by tokens: leave one of them out"
            )
        if self.store_weights and stores:
            parse_store_weights(self.store_weights, len(stores), "config.data.store_weights")

    def check_flags(self) -> None:
        """Check like `check`, but name settings as flags of a command."""
        try:
            self.check()
        except ValueError as error:
            raise Refused(str(error).replace("config.data.", "--")) from error
