"""Keep tokenized corpora on disk: memory-mapped arrays of two splits and one manifest.

Read in this order: reader (the format; how a store is opened and verified), writer (arrays,
manifest), cache and upload (from and to a bucket), tfrecord (Google's files), findings (faults of a
store), ngrams (counts of neighbors).
"""

from data_pipeline.store.reader import (
    ARRAY_FOLDERS,
    EXAMPLES,
    FORMAT,
    FORMAT_VERSION,
    HELDOUT,
    MANIFEST,
    PARTS,
    REFERENCES,
    TEXT,
    TRAIN,
    WALKS,
    Split,
    Store,
    check_is_local,
    is_store,
    open_array,
    open_store,
    parse_manifest,
    read_manifest,
)
