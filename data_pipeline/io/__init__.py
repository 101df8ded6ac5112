"""Read and write files, local or in buckets: bounded reads, atomic writes, readable errors.

In: paths and addresses. Out: bytes, parsed JSON, files that are complete or absent, OSErrors that
say what failed and how to fix it. Read address.py, refused.py and errors.py first, then atomic.py
and small_files.py, on which jsonl.py, files.py, bucket.py, compression.py and
record_frames.py build; file_kinds.py tells what a file is by its first bytes.
"""
