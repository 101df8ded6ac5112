"""Hold the settings of baselines and of the BiLSTM that reads frozen vectors: their flags."""

import dataclasses
from typing import Any

from data_pipeline.spec.fields import setting

SKIPGRAM, BILM, COVE = "skipgram", "bilm", "cove"  # kinds of baselines, and their vectors
COUNTS, ELMO, TAGLM, BERT = "counts", "elmo", "taglm", "bert"  # kinds of frozen vectors alone


@dataclasses.dataclass(frozen=True)
class SkipGram:
    """Hold how vectors are trained; the defaults are word2vec's."""

    width: int = setting(100, "dimensions of a vector", minimum=1)
    window: int = setting(5, "largest distance between the tokens of a pair", minimum=1)
    negatives: int = setting(5, "negative samples per pair", minimum=1)
    subsample: float = setting(
        1e-3,
        "share of the text above which occurrences of a token are dropped at random",
        above=0,
    )
    learning_rate: float = setting(0.025, "initial learning rate, decayed linearly", above=0)
    epochs: float = setting(5.0, "passes over the training text", above=0)
    seed: int = setting(
        0, "seed of the initial vectors and of all random draws", minimum=0, maximum=2**32 - 1
    )


@dataclasses.dataclass(frozen=True)
class BiLM:
    """Hold the size of a biLM and how it is trained."""

    width: int = setting(64, "width of the embeddings and of each direction's output", minimum=1)
    units: int = setting(256, "LSTM cells of a layer in each direction", minimum=1)
    layers: int = setting(2, "layers of each direction", minimum=1)
    clip: float = setting(3.0, "clipping bound of cells and projections", above=0)
    dropout: float = setting(
        0.1,
        "share of the embeddings and of each layer's outputs that is dropped",
        minimum=0,
        below=1,
    )
    seq_len: int = setting(128, "longest row in tokens, with [CLS] and [SEP]", minimum=3)
    batch_size: int = setting(32, "rows of a step", minimum=1)
    steps: int = setting(1000, "steps of Adam", minimum=1)
    learning_rate: float = setting(4e-3, "initial learning rate, decayed linearly to 0", above=0)
    seed: int = setting(0, "seed of weights, rows and dropout", minimum=0, maximum=2**32 - 1)


@dataclasses.dataclass(frozen=True)
class CoVe:
    """Hold the size of CoVe's encoder and decoder and how they learn to translate."""

    units: int = setting(
        300,
        "LSTM cells of a layer, in each direction of the encoder and in the decoder",
        minimum=1,
        source="McCann et al. 2017, section 3",
    )
    dropout: float = setting(
        0.2,
        "share of the inputs and outputs of all LSTM layers that is dropped",
        minimum=0,
        below=1,
        source="McCann et al. 2017, section 3",
    )
    seq_len: int = setting(
        128,
        "longest text in tokens, with [CLS] and [SEP]; pairs with a longer text are left out",
        minimum=3,
    )
    batch_size: int = setting(32, "pairs per step", minimum=1)
    steps: int = setting(1000, "steps of Adam", minimum=1)
    learning_rate: float = setting(2e-3, "initial learning rate, decayed linearly to 0", above=0)
    seed: int = setting(0, "seed of weights, pairs and dropout", minimum=0, maximum=2**32 - 1)


# Kind -> its settings.
BASELINES: dict[str, type[Any]] = {SKIPGRAM: SkipGram, BILM: BiLM, COVE: CoVe}


@dataclasses.dataclass(frozen=True)
class Tagger:
    """Set the BiLSTM that learns tags; the paper gives only its layers and width."""

    units: int = setting(768, "LSTM units in each direction", minimum=1)
    epochs: int = setting(10, "passes over the training files", minimum=1)
    learning_rate: float = setting(
        1e-3, "initial learning rate of Adam, decayed linearly to 0", above=0
    )


@dataclasses.dataclass(frozen=True)
class Training(Tagger):
    """Set how the BiLSTM is trained."""

    batch_size: int = setting(32, "rows of a step", minimum=1)
    seed: int = setting(0, "seed of the BiLSTM and of the row order", minimum=0, maximum=2**32 - 1)
