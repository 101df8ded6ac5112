"""List all planted edits."""

from tests.mutants.edits_bert_jax import BERT_JAX
from tests.mutants.edits_data_pipeline import DATA_PIPELINE

MUTANTS = (*BERT_JAX, *DATA_PIPELINE)
