"""Whether a run can keep its files in a place: written, read back and deleted before the start."""

import contextlib
import pathlib
import uuid

from bert_jax import storage_errors
from bert_jax.bucket import Bucket


def check_folder(folder: pathlib.Path) -> None:
    """Make a folder, and write, read and delete a file there.

    Raises:
      OSError: one sentence: the folder, what was refused, the way out.
    """
    probe = folder / f".probe-{uuid.uuid4().hex}"
    what = "making the folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        what = "writing a file as a test"
        probe.write_bytes(probe.name.encode())
        what = "reading what was just written"
        is_same = probe.read_bytes() == probe.name.encode()
        what = "deleting a file"
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
        said = storage_errors.explained(error, str(folder), what)
        raise error if said is None else said from error
    if not is_same:
        raise OSError(f"{folder}: a file that was written reads otherwise; use another disk")


def check_bucket(bucket: Bucket) -> None:
    """Write, read and delete an object, and look at the bucket, as a run will have to.

    Raises:
      OSError: one sentence: the address, what was refused, the way out.
    """
    name = f".probe-{uuid.uuid4().hex}"
    bucket.write(name, name.encode())
    if bucket.read(name) != name.encode():
        raise OSError(f"{bucket.address}: an object that was written reads otherwise")
    bucket.delete(name)
    bucket.look_at_bucket()
