"""The settings of the data pipeline: how examples are drawn from a store."""

import dataclasses

SEGMENTS = ("nsp", "sop", "full_sentences", "doc_sentences")
MASKING = ("token", "whole_word", "ngram")
MOST_PACKED_EXAMPLES = 64
LONGEST_NGRAM = 16
_MOST = {  # far beyond what helps; more fills the memory, or never comes to an end
    "dupe_factor": 10_000,
    "group_sequences": 1 << 20,
    "prefetch_batches": 1 << 16,
}
# Where rows come from and how fast; all other options say what stands in them.
OPTIONS_OF_A_RUN = ("store", "data_cache", "group_sequences", "prefetch_batches")


@dataclasses.dataclass(frozen=True)
class PretrainOptions:
    """How segments and masks are drawn from a store. Shown in a training config as `config.data`.

    Sequence length, batch size and predictions a sequence belong to a training phase and come from
    there. Defaults are those of create_pretraining_data.py@eedf5716ce; names are its flags' names
    where it has them.

    `segments` says what a sequence is made of:
      nsp             [CLS] A [SEP] B [SEP]; B follows A, or comes from elsewhere (BERT)
      sop             the same; B follows A, or the two are swapped (ALBERT)
      full_sentences  [CLS] sentences [SEP] as they follow each other, also from one document
                      into the next, with a [SEP] between documents (RoBERTa)
      doc_sentences   the same, never past the end of a document (RoBERTa)

    `exact` is Google's rules for nsp to the letter; masks and truncation, too, are drawn once for
    each of the dupe_factor passes there, which is new_masks_each_epoch=False here. Without `exact`
    these defects are mended: a random B never comes from the same document; a short target length
    is drawn for each chunk, not once for a document; a chunk takes a second sentence where there is
    one; so many of the other pairs follow each other that random ones are half of all, as far as
    the corpus allows; whole words never join across [SEP].
    """

    store: str = ""  # folder that `python -m data_pipeline.build` wrote; may be gs://bucket/store
    data_cache: str = ""  # local folder for copies of stores on gs://, one a host
    random_seed: int = 12345  # segments, order and masks are functions of it
    segments: str = "nsp"
    masking: str = (
        "token"  # what is masked as one: a token, a whole word, or 1 to longest_ngram words
    )
    longest_ngram: int = 3  # words in a span; n of them are drawn with chance in proportion to 1/n
    masked_lm_prob: float = 0.15  # share of the tokens, [CLS] and [SEP] counted, that is predicted
    mask_token_share: float = 0.8  # of the predicted tokens, shown as [MASK]
    random_token_share: float = 0.1  # of the predicted tokens, shown as any id; the rest stays
    new_masks_each_epoch: bool = True  # False: as many kinds of masks as dupe_factor, in rotation
    short_seq_prob: float = 0.1  # share of sequences that aim at a random shorter length
    dupe_factor: int = 10  # K: how many different passes over the corpus are in rotation
    exact: bool = False  # True: Google's rules to the letter, their defects included
    packed_examples: int = 1  # most examples in a row of a batch; 1: each has a row of its own
    group_sequences: int = 1024  # sequences made by one call into NumPy; a matter of speed alone
    prefetch_batches: int = 4  # batches kept ready on the host

    @property
    def has_next_sentences(self) -> bool:
        """Whether sequences have a second segment and a label for it."""
        return self.segments in ("nsp", "sop")

    def check(self) -> None:
        """Raise if a value is outside what the rules can work with.

        Raises:
          ValueError: names the config key, its value and what is allowed.
        """
        _check_choice("segments", self.segments, SEGMENTS)
        _check_choice("masking", self.masking, MASKING)
        if not 0.0 < self.masked_lm_prob < 1.0:
            raise ValueError(
                f"config.data.masked_lm_prob is {self.masked_lm_prob}; it must lie between 0 and 1 "
                "(BERT: 0.15)"
            )
        for name in ("short_seq_prob", "mask_token_share", "random_token_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(
                    f"config.data.{name} is {getattr(self, name)}; it must lie from 0 to 1 "
                    f"(BERT: {getattr(PretrainOptions, name)})"
                )
        if self.mask_token_share + self.random_token_share > 1.0 + 1e-9:
            raise ValueError(
                f"config.data.mask_token_share and random_token_share are {self.mask_token_share} "
                f"and {self.random_token_share}; together they must be at most 1 (BERT: 0.8 and "
                "0.1, the rest stays as it is)"
            )
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(
                    f"config.data.{name} is {getattr(self, name)}; it must be from 1 to {most}"
                )
        self._check_ngrams()
        if not 1 <= self.packed_examples <= MOST_PACKED_EXAMPLES:
            raise ValueError(
                f"config.data.packed_examples is {self.packed_examples}; it must lie from 1 (no "
                f"packing) to {MOST_PACKED_EXAMPLES}; 8 leaves hardly any padding"
            )
        if not 0 <= self.random_seed < 2**63:
            raise ValueError(
                f"config.data.random_seed is {self.random_seed}; it must lie from 0 to 2**63 - 1"
            )
        self._check_exact()

    def check_flags(self) -> None:
        """Do what `check` does where each setting is a flag.

        Raises:
          ValueError: names the flag, its value and what is allowed.
        """
        try:
            self.check()
        except ValueError as error:
            raise ValueError(str(error).replace("config.data.", "--")) from error

    def _check_ngrams(self) -> None:
        if not 1 <= self.longest_ngram <= LONGEST_NGRAM:
            raise ValueError(
                f"config.data.longest_ngram is {self.longest_ngram}; it must be from 1 to "
                f"{LONGEST_NGRAM} (ALBERT: 3)"
            )
        if self.masking != "ngram" and self.longest_ngram != PretrainOptions.longest_ngram:
            raise ValueError(
                f"config.data.longest_ngram is {self.longest_ngram} and config.data.masking is "
                f"{self.masking!r}, which has no runs of words; set masking to ngram, or leave "
                "longest_ngram out"
            )

    def _check_exact(self) -> None:
        if self.exact and self.segments != "nsp":
            raise ValueError(
                f"config.data.exact is True and config.data.segments is {self.segments!r}; exact "
                "means Google BERT's rules, which know nsp alone: leave one of them out"
            )
        if self.exact and self.masking == "ngram":
            raise ValueError(
                "config.data.exact is True and config.data.masking is 'ngram'; Google BERT's rules "
                "know 'token' and 'whole_word': leave one of them out"
            )


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"config.data.{name} is {value!r}; it must be one of {', '.join(allowed)}")
