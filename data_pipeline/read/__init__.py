"""Read text, Parquet, JSON lines and TFDS as documents, clean them, and split them into sentences.

In: --input and the settings of options.py and cleaning.py. Out: documents as lists of paragraphs.
Read sources.py first, then documents.py with the formats that it chooses from (lines.py,
parquet.py, records.py, tfds.py, wiki.py, gutenberg.py), cleaning.py and sentences.py.
"""
