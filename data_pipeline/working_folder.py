"""The folder inside --output where a build works: at any moment --output is a whole store or none.

A build that was killed leaves this folder, which marks the output as one that may be built again.
"""

import contextlib
import pathlib
import shutil
import signal
import threading
from collections.abc import Iterator

from data_pipeline.store import HELDOUT, MANIFEST, TRAIN, is_store
from data_pipeline.tokenizer_json import TOKENIZER_JSON
from data_pipeline.vocab import FILE_NAMES

BUILDING = "building"


def check_output(output: pathlib.Path, overwrite: bool) -> None:
    """Refuse an output folder that holds something else, before any work is done.

    Raises:
      ValueError: it is a file, a finished store that may not be replaced, or somebody's folder.
    """
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output is {output}, which is a file; give a folder")
    if not output.exists() or not any(output.iterdir()):
        return
    if is_store(output):
        if not overwrite:
            raise ValueError(
                f"--output is {output}, which holds a finished store; give another folder, "
                "or replace it with --overwrite=true"
            )
    elif not (output / BUILDING).is_dir():
        raise ValueError(
            f"--output is {output}, a folder with files that are not a store; give a new or an "
            "empty folder"
        )


@contextlib.contextmanager
def working_folder(output: pathlib.Path) -> Iterator[pathlib.Path]:
    """An empty folder inside `output`, which passed check_output; gone after an error."""
    was_there = output.exists()
    building = output / BUILDING
    try:
        building.mkdir(parents=True, exist_ok=True)
        _empty(building)
        yield building
    except BaseException:
        if building.is_dir():
            _empty(building)
            # It stays where a build was killed while it moved its files: it marks them as ours.
            if is_store(output) or len(list(output.iterdir())) == 1:
                building.rmdir()
        if not was_there and output.is_dir() and not any(output.iterdir()):
            output.rmdir()
        raise


def move_into_place(building: pathlib.Path, output: pathlib.Path) -> None:
    """Replace what an older store left by the store in `building`, which has a manifest.

    The old manifest goes first and the new one comes last, so that in between there is no store.
    """
    with _without_ctrl_c():
        (output / MANIFEST).unlink(missing_ok=True)
        for name in (TRAIN, HELDOUT):
            shutil.rmtree(output / name, ignore_errors=True)
        for name in (*FILE_NAMES.values(), TOKENIZER_JSON):
            (output / name).unlink(missing_ok=True)
        for path in building.iterdir():
            if path.name != MANIFEST:
                path.rename(output / path.name)
        (building / MANIFEST).rename(output / MANIFEST)
        building.rmdir()


def _empty(folder: pathlib.Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Ctrl-C does nothing in the block, a few renames at the end of a build."""
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
