"""A BERT of anybody's, read from disk: its sizes, its arrays under our names, its vocabulary.

`load` takes the address of one: hf:DIR (Hugging Face: config.json, model.safetensors, vocab.txt or
tokenizer.json), google:PREFIX (Google's TF1 checkpoint, bert_config.json and vocab.txt beside it)
or orbax:DIR (the workdir of a run of bert_jax). Without such a word what lies there decides.
"""

import dataclasses

import numpy as np

from bert_jax.config import ModelConfig
from bert_jax.models.bert import Heads, Params
from data_pipeline.vocab import Vocabulary


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A checkpoint on the host."""

    address: str  # as it was given
    config: ModelConfig  # vocab_size is filled in
    params: Params  # nested dict of NumPy float32 arrays, named as models/bert.py does, unpadded
    vocabulary: Vocabulary

    @property
    def heads(self) -> Heads:
        """The pre-training heads that it has."""
        return Heads(mlm="mlm" in self.params, nsp="nsp" in self.params)

    @property
    def parameter_count(self) -> int:
        """Numbers in all its arrays."""
        return sum(np.size(leaf) for leaf in _leaves(self.params))


def _leaves(tree: Params) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for value in tree.values():
        found += _leaves(value) if isinstance(value, dict) else [value]
    return found
