"""The settings of the data pipeline: how a store is built and how examples are drawn from it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class PretrainOptions:
    """How pairs and masks are drawn from a store. Shown in a training config as `config.data`.

    Sequence length, batch size and predictions a sequence belong to a training phase and come from
    there. Defaults are those of create_pretraining_data.py@eedf5716ce; names are its flags' names.

    `exact` brings back two defects of Google's code: a short target length is drawn once and holds
    for all chunks of a document, and the random next sentence may come from the same document. In
    both modes a chunk of one sentence has nothing left for B, so B is random and always labelled
    so, as Google does.
    """

    store: str = ""  # directory that `python -m data_pipeline.build` wrote
    random_seed: int = 12345  # pairs, order and masks are functions of it
    masked_lm_prob: float = 0.15  # share of the tokens, [CLS] and [SEP] counted, that is predicted
    short_seq_prob: float = 0.1  # share of pairs that aim at a random shorter length
    dupe_factor: int = 10  # K: how many different passes of pairs over the corpus are in rotation
    exact: bool = False  # True: Google's rules to the letter, the two defects above included
    group_sequences: int = 1024  # sequences made by one call into NumPy; a matter of speed alone
    prefetch_batches: int = 4  # batches kept ready on the host

    def check(self) -> None:
        """Raise if a value is outside what the rules can work with.

        Raises:
          ValueError: names the config key, its value and what is allowed.
        """
        if not 0.0 < self.masked_lm_prob < 1.0:
            raise ValueError(
                f"config.data.masked_lm_prob is {self.masked_lm_prob}; it must lie between 0 and 1 "
                "(BERT: 0.15)"
            )
        if not 0.0 <= self.short_seq_prob <= 1.0:
            raise ValueError(
                f"config.data.short_seq_prob is {self.short_seq_prob}; it must lie from 0 to 1 "
                "(BERT: 0.1)"
            )
        for name in ("dupe_factor", "group_sequences", "prefetch_batches"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"config.data.{name} is {getattr(self, name)}; it must be 1 or more"
                )
        if not 0 <= self.random_seed < 2**63:
            raise ValueError(
                f"config.data.random_seed is {self.random_seed}; it must lie from 0 to 2**63 - 1"
            )
