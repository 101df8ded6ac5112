"""Time builds of replicated text: python -m benchmarks.build_speed --help.

Each copy of the text differs from the others: from the second on some words are misspelled, at the
rate at which real text brings new ones (4% of words over 4 letters in the last of 26 real files).
Memory is what Linux counts as anonymous pages of the build and all its processes, sampled.
"""

import argparse
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from benchmarks.results import HELP, Measured, open_row, write_row
from data_pipeline.io.files import find_files
from data_pipeline.read.lines import read_lines

NEW_WORDS = 0.04
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def main() -> None:
    """Print a line for each size of the text and each number of processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.build_speed")
    parser.add_argument("--input", required=True, help="text to replicate, as of the build")
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--megabytes", default="60,300")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--build_flags", default="--documents=gutenberg", help="further ones")
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    given = parser.parse_args()
    row, measured = open_row(given.record), []
    for megabytes in map(int, given.megabytes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            stored_bytes = replicate(given.input, megabytes * 10**6, text)
            for workers in given.workers.split(","):
                store = pathlib.Path(folder) / "store"
                flags = [f"--input={text}/*", f"--output={store}", f"--vocab={given.vocab}"]
                flags += [f"--workers={workers}", *given.build_flags.split()]
                text_size = f"{stored_bytes / 1e6:.0f} MB, --workers={workers}:"
                measured.append(f"{text_size} {measure(flags, stored_bytes)}")
                print(measured[-1])
                shutil.rmtree(store)
    write_row(row, describe(measured))


def describe(measured: list[str]) -> Measured:
    """Describe the builds; the headline has the rates of those with one worker."""
    rates = [
        f"{rate.partition(',')[0]} from {size}"
        for size, rate in (line.split(", --workers=1: ") for line in measured if "=1: " in line)
    ]
    return Measured(
        what="build of a store from English, file to store, vocabulary given",
        figure="; ".join(measured),
        runs="1 each",
        headline=f"Build of a store with one worker: {', '.join(rates)} of English.",
    )


def replicate(pattern: str, wanted_bytes: int, folder: pathlib.Path) -> int:
    """Write copies of the text until it has wanted_bytes; return its size."""
    folder.mkdir()
    files = {
        file.address: list(read_lines(file.address, lambda stored_bytes: None))
        for part in pattern.split(",")
        for file in find_files(part)
    }
    rng = random.Random(7)
    size_bytes, copy = 0, 0
    while True:
        for address, lines in files.items():
            text = "\n".join(lines if copy == 0 else [misspell(line, rng) for line in lines])
            path = folder / f"{copy:03d}_{pathlib.Path(address).name.partition('.')[0]}"
            path.write_text(text, encoding="utf-8")
            size_bytes += path.stat().st_size
            if size_bytes >= wanted_bytes:
                return size_bytes
        copy += 1


def misspell(line: str, rng: random.Random) -> str:
    """Misspell some words of a line; the marks of WikiExtractor and Gutenberg stay."""
    if line.startswith(("<doc", "</doc", "***")):
        return line
    words = line.split(" ")
    for i, word in enumerate(words):
        if len(word) > 4 and rng.random() < NEW_WORDS:
            position = rng.randrange(1, len(word) - 2)
            words[i] = word[:position] + "".join(rng.choices(LETTERS, k=2)) + word[position + 1 :]
    return " ".join(words)


def measure(flags: list[str], stored_bytes: int) -> str:
    """Run a build; return its rate by wall and by CPU time, its memory, and the load before."""
    load, *_ = os.getloadavg()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_secs = time.perf_counter()
    build = subprocess.Popen(
        [sys.executable, "-m", "data_pipeline.build", *flags], stdout=subprocess.DEVNULL
    )
    peak_kb = [0]
    watcher = threading.Thread(target=watch, args=(build, peak_kb))
    watcher.start()
    if build.wait():
        raise SystemExit(build.returncode)
    seconds = time.perf_counter() - started_secs
    watcher.join()
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_secs = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    megabytes = stored_bytes / 1e6
    return (
        f"{megabytes / seconds:.2f} MB/s, {megabytes / cpu_secs:.2f} MB per CPU second, "
        f"{seconds:.1f} s, {peak_kb[0] / 1000:.0f} MB of memory, load before {load:.1f}"
    )


def watch(build: subprocess.Popen[bytes], peak_kb: list[int]) -> None:
    """Sample the memory of a build and its children; keep the peak in peak_kb[0]."""
    while build.poll() is None:
        peak_kb[0] = max(peak_kb[0], sum(map(read_anonymous_kb, list_processes(build.pid))))
        time.sleep(0.05)


def list_processes(pid: int) -> list[int]:
    """List a process and all its descendants."""
    pids = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += [
                one for child in task.read_text().split() for one in list_processes(int(child))
            ]
        except OSError:  # it has ended
            continue
    return pids


def read_anonymous_kb(pid: int) -> int:
    """Read the anonymous memory of a process, in kB."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in status.split("\n") if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
