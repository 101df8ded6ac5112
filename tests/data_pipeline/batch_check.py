"""Check that a batch has the fields, dtypes and shapes of the schema."""

from collections.abc import Mapping

import numpy as np

from data_pipeline.spec.schema import RowShape


def check_pretrain_batch(batch: Mapping[str, np.ndarray], shape: RowShape) -> None:
    """Assert that a batch has every field of the schema, and nothing else."""
    assert batch.keys() == shape.fields.keys()
    for name, (dims, dtype) in shape.arrays(len(batch["input_ids"])).items():
        assert (batch[name].shape, batch[name].dtype) == (dims, np.dtype(dtype)), name
