"""The battery: what can break a run, and what must hold then. Its cases name their row by number.

    @pytest.mark.fault(5, "an empty folder named as a later step")

on a test anywhere under tests/ makes it a case of row 5; the words say how the fault is caused.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """A kind of fault."""

    fault: str
    must_hold: str


ROWS = {
    1: Row(
        "a process is killed at a random moment, many times",
        "the same weights and lines, bit for bit, as a run never killed; at most the steps since "
        "the last save are done again",
    ),
    2: Row(
        "a process is killed inside a save",
        "the newest checkpoint is the one before or the new one, whole; what was half written goes",
    ),
    3: Row(
        "another number of processes or devices goes on",
        "the same examples in the same order, losses equal but for the order of sums",
    ),
    4: Row(
        "a file of a checkpoint is damaged, cut off or gone",
        "found at restore and named; the newest checkpoint that verifies is taken, never a fresh "
        "start",
    ),
    5: Row(
        "something that is no whole checkpoint lies among them",
        "never taken for the newest one",
    ),
    6: Row(
        "the disk is full or read-only",
        "one line with the path and the space, a non-zero exit code; older checkpoints stay whole",
    ),
    7: Row(
        "the process ends or fails just after a save began",
        "that save is finished first",
    ),
    8: Row(
        "one process is asked to stop, at any stage of the run",
        "all stop at the same step, saved, in time",
    ),
    9: Row(
        "a host dies",
        "the others end by themselves soon, with a code that says: start again",
    ),
    10: Row(
        "a host is stuck but alive",
        "all processes write where they are and exit with code 86 within the limit",
    ),
    11: Row(
        "a host never starts, or is told another number of processes",
        "an error within the time limit that says who is missing",
    ),
    12: Row(
        "the workdir is not the same folder on every host",
        "refused before the first step",
    ),
    13: Row(
        "a loss or gradient is not finite, or leaps",
        "the step is left out on all devices alike and recorded; too many in a row stop the run; "
        "no checkpoint holds a number that is not finite",
    ),
    14: Row(
        "a run goes on at any step, on any number of hosts",
        "the same batches, found without reading those before",
    ),
    15: Row(
        "a run goes on with other data, another seed, batch or model",
        "refused, naming each setting that differs",
    ),
    16: Row(
        "the bucket refuses, is late, is gone, or holds half a checkpoint",
        "a clear error in bounded time; half a checkpoint is never taken for a whole one",
    ),
    17: Row(
        "a gcloud command in a script or a page is wrong",
        "found without a network",
    ),
    18: Row(
        "a slice is refused, fails, or is taken away",
        "the right requests, exit codes and cleaning up; no secret in any log",
    ),
    19: Row(
        "records are damaged, cut off, uneven, empty or missing",
        "one line that names the file and the place; nothing hangs",
    ),
    20: Row(
        "a setting holds a secret, a path that leads outside, or no number",
        "refused, and the secret is in no file that is written",
    ),
    21: Row(
        "what a run needs is missing: checkpoints removed, emptied or half renamed, records cut",
        "a run that shows progress anywhere never starts again from step 0; nothing is changed, "
        "and the sentence says how to resume",
    ),
    22: Row(
        "what a checkpoint depends on is changed: its vocabulary, the store it trains on",
        "refused wherever it is read or exported; a changed store stops the run",
    ),
    23: Row(
        "a small file is empty, cut, random, nested, huge, of a wrong type, a pipe or a link",
        "one sentence and exit code 2, in bounded time and memory; never a traceback, never code 1",
    ),
    24: Row(
        "a worker, a file name or cluster.env holds shell syntax, letters for numbers, escapes",
        "matched by a pattern before use, shown escaped, never executed",
    ),
    25: Row(
        "a length or a count in a file lies",
        "checked before anything of that size is allocated",
    ),
    26: Row(
        "junk arrives at a port that is open",
        "dropped and counted; the processes that belong to the run still start",
    ),
}
