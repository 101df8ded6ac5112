"""Cut the documents of a store into rows, which an ExampleStream then batches."""

import numpy as np

from data_pipeline.labelled.rows import EncodedRows, make_plain_rows
from data_pipeline.store import Split


def cut_documents(split: Split, longest: int) -> EncodedRows:
    """Cut each document into rows of `longest` tokens; the last row of a document may be shorter.

    Rows have no [CLS] and no [SEP].
    """
    bounds_D = np.asarray(split.sentence_offsets)[split.document_offsets]
    rows_D = -(-np.diff(bounds_D) // longest)
    first_D = np.cumsum(rows_D) - rows_D  # number of a document's first row
    document_R = np.repeat(np.arange(len(rows_D)), rows_D)
    starts_R = bounds_D[document_R] + longest * (np.arange(len(document_R)) - first_D[document_R])
    ids = np.asarray(split.token_ids, np.int32)
    return make_plain_rows(ids, np.append(starts_R, split.tokens))


def frame_rows(rows: EncodedRows, first_id: int, last_id: int) -> EncodedRows:
    """Put the token first_id before each row, and last_id after it."""
    offsets = rows.offsets + 2 * np.arange(len(rows.offsets))
    is_text = np.ones(offsets[-1], bool)
    is_text[offsets[:-1]] = is_text[offsets[1:] - 1] = False
    ids = np.full(offsets[-1], last_id, np.int32)
    ids[offsets[:-1]] = first_id
    ids[is_text] = rows.token_ids
    return make_plain_rows(ids, offsets)
