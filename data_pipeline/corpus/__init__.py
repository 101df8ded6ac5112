"""Turn sources into a store: from flags and texts to the arrays of two splits.

Read in this order: options (the flags), encode (texts to encoded chunks, in local processes; beam
does the same on a cluster), spool (chunks on disk), selection (the documents to keep, and their
split; dedup and near_duplicates find copies), lost_characters. data_pipeline/build.py joins them.
"""
