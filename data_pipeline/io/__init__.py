"""Read and write files, local or in buckets: bounded reads, atomic writes, readable errors.

In: paths and addresses. Out: bytes, parsed JSON, files that are complete or absent, OSErrors that
say what failed and how to fix it, and Refused, the error of every request that cannot be fulfilled.
Read address.py and errors.py first, then atomic.py and small_files.py, on which jsonl.py, files.py,
bucket.py, compression.py and record_frames.py build; file_kinds.py tells what a file is by its
first bytes.
"""


class Refused(ValueError):
    """Report what the user must change: the command ends with exit code 2 and this sentence.

    The message says what is wrong, the value, what is allowed and the way out. A plain ValueError
    is a bug of ours: it shows its traceback, and the exit code is 1.
    """
