"""Kill a build before each of its operations on --output; test_build_killed.py runs this."""

import contextlib
import os
import pathlib
import shutil
import signal
import sys

from data_pipeline.build import main
from data_pipeline.io.atomic import WORKING
from data_pipeline.store import open_store
from data_pipeline.store.reader import hash_file

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def run(argv: list[str], output: pathlib.Path, killed_at: int | None = None) -> int:
    """Run a build in a process of its own; return its exit code, -9 if it was killed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    operations = 0

    def kill(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal operations
        if event == "open" and not set(str(arguments[1])) & set("wa+"):
            return
        if event in OPERATIONS and str(arguments[0]).startswith(str(output)):
            operations += 1
            if operations == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        os._exit(main(argv))


def digest(output: pathlib.Path) -> str | None:
    """Verify all arrays of a store and return its digest; None if the folder is no store."""
    try:
        store = open_store(output)
    except ValueError as error:
        assert "is not a store" in str(error), error
        return None
    for name, described in store.manifest["arrays"].items():
        assert hash_file(output / name) == described["sha256"], name
    return store.digest


def kill_everywhere(argv: list[str], output: pathlib.Path, older: pathlib.Path | None) -> int:
    """Kill before operation 1, 2, ..., each time rerun; return the number of operations."""
    old = digest(older) if older else None
    assert run(argv, output) == 0
    new = digest(output)
    assert new is not None and new != old
    killed_at = 0
    while True:
        shutil.rmtree(output)
        if older:
            shutil.copytree(older, output)
        killed_at += 1
        code = run(argv, output, killed_at)
        found = digest(output)
        if code == 0:
            assert found == new
            return killed_at - 1
        assert code == -signal.SIGKILL
        assert found in (None, old, new)
        last = run(argv, output)
        assert last == 0 or (
            last == 2 and not older
        )  # the store was complete, so the rerun refused
        assert digest(output) == new
        assert set(os.listdir(output)) <= {*os.listdir(older or output), WORKING}


if __name__ == "__main__":
    ours, output_path, *flags = sys.argv[1:]
    print(kill_everywhere(flags, pathlib.Path(output_path), pathlib.Path(ours) if ours else None))
