"""Keep a run going until it ends: look, decide, act, with the state on disk and two locks."""

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import pathlib
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TextIO

from . import decide
from .decide import KEPT, REPORTED, Action, Answers, Rules, State
from .job import Job
from .run import Answer, Ask, Command, ask_all, make
from .text import dig, escape, read_json, read_time, refuse

RENEW_SECS, MAX_LOCK_AGE_SECS = 600, 3600


def read_state(path: pathlib.Path, rules: Rules) -> State:
    """Return the state that an earlier supervisor left, without the cost of another run."""
    if not path.exists():
        return State(rules)
    values = read_json(path.read_text(errors="replace"))
    kinds = {f.name: str(f.type) for f in dataclasses.fields(State)[1:]} | {"workdir": "str"}
    if not isinstance(values, dict) or set(values) != set(kinds):
        refuse(f"{path} holds another state than this supervisor writes; remove it")
    for name, value in values.items():
        is_right = type(value).__name__ in kinds[name] and value != math.inf and value == value
        is_right |= type(value) is int and "float" in kinds[name]
        if not (is_right or (value is None and "None" in kinds[name])):
            words = f"{name}={value!r}"[:100]
            refuse(f"{path} holds {words}, which the supervisor did not write; remove it")
    if values.pop("workdir") != rules.workdir:
        values = {name: values[name] for name in (*KEPT, "condemned")} | {"spent_secs": 0}
    state = State(rules, **values)
    # A slice that is gone by now may have been deleted on purpose, and counts of looks in a row are
    # out of date. A supervisor sends its own commit before any start.
    state.forget("is_expected", "is_set_up", "not_ready_since", "missing", "partial", "unreached")
    state.forget("outage_secs", "failed")
    return state


def write_state(path: pathlib.Path, state: State) -> None:
    """Write the state as a whole, or not at all."""
    values = vars(state) | {"workdir": state.rules.workdir}
    new = path.with_suffix(".new")
    with new.open("w") as file:
        json.dump({name: value for name, value in values.items() if name != "rules"}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def lock_here(folder: pathlib.Path) -> Any:
    """Lock the folder until this process ends; refuse if another supervisor has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a+")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        refuse(f"process {file.read(20).strip()} already supervises this slice, see {folder}")
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


class BucketLock:
    """Hold an object of the bucket against supervisors on other machines.

    The object names host, folder and the folder's own id. Its owner renews it; after an hour
    without renewal another supervisor may take it over. Without an address nothing is locked.
    """

    def __init__(self, address: str, owner: str, ask: Ask, clock: Callable[[], float]) -> None:
        self.address, self.owner, self.ask, self.clock = address, owner, ask, clock
        self.renewed = 0.0

    def take(self) -> str:
        """Take or renew the lock; return who else has it, '' where it is ours."""
        if not self.address or 0 <= self.clock() - self.renewed < RENEW_SECS:
            return ""
        generation = "0"
        said = self.ask(make("gcloud storage objects describe --format=json", self.address))
        if said.code == 0:
            body = read_json(said.out)
            generation, renewed = dig(body, "generation"), read_time(dig(body, "update_time")) or 0
            said = self.ask(make("gcloud storage cat", self.address))
            content, age = said.out.strip(), self.clock() - renewed
            if said.code == 0 and content != self.owner and age < MAX_LOCK_AGE_SECS:
                self.renewed = 0.0  # another owner's lock is not removed
                return f"{content[:200]}, {age / 60:.0f} min ago"
        if said.code and not said.is_absent:
            return ""
        words = (self.address, f"--if-generation-match={generation}")
        said = self.ask(make("gcloud storage cp -", *words, given=f"{self.owner}\n"))
        if said.code == 0:
            self.renewed = self.clock()
        elif not self.renewed:
            # Another one was quicker, or the bucket refuses: two supervisors are worse than none.
            return f"nobody that is known, but it could not be written ({said.words})"
        return ""

    def release(self) -> None:
        """Remove the lock where it is ours."""
        if self.renewed:
            self.ask(make("gcloud storage rm", self.address))


def find_checkpoint(workdir: str, ask: Ask) -> int | None:
    """Return the newest complete step in a bucket, -1 where there is none, None where nobody knows.

    An unfinished checkpoint lacks commit_success.txt, Orbax's mark.
    """
    if not workdir.startswith("gs://"):
        return None
    said = ask(make("gcloud storage ls", f"{workdir}/checkpoints/*/commit_success.txt"))
    if said.code:
        return -1 if "matched no objects" in said.err else None
    steps = re.findall(r"/(\d{1,15})/commit_success\.txt$", said.out, re.MULTILINE | re.ASCII)
    return max(map(int, steps), default=-1)


def list_own_commands(job: Job) -> list[Command]:
    """Return what a supervisor asks of the bucket: for its lock, and for checkpoints."""
    asked: list[Command] = []

    def ask(command: Command) -> Answer:
        asked.append(command)
        return Answer(0, '{"generation": "0"}')

    lock = BucketLock(job.cluster.lock, "HOST:FOLDER", ask, time.time)
    lock.take()
    lock.release()
    find_checkpoint(job.workdir, ask)
    return asked


def show(line: str, file: TextIO) -> None:
    """Print a line; drop it if the reader is gone, as supervision goes on."""
    try:
        print(line, file=file, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


class Supervisor:
    """Run the loop around `decide`."""

    def __init__(
        self, road: ModuleType, job: Job, rules: Rules, folder: pathlib.Path, ask: Ask
    ) -> None:
        self.road, self.job, self.folder, self.ask = road, job, folder, ask
        key = folder / "id"  # containers may share the names of host and folder
        try:
            self.lock = lock_here(folder)
            self.state = read_state(folder / "state.json", rules)
            if not key.exists():
                key.write_text(secrets.token_hex(8))
            owner = f"{socket.gethostname()}:{folder} {key.read_text()}"
        except OSError as error:
            refuse(f"no state can be kept in {folder} ({error}); give another --state_dir")
        self.bucket_lock = BucketLock(job.cluster.lock, owner, ask, time.time)

    def run(self) -> int:
        """Supervise until the end; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores hang-ups
                signal.signal(number, signal.default_int_handler)
        try:
            while (code := self.turn()) is None:
                pass
        except KeyboardInterrupt:  # the running command has ended, and the state is on disk
            self.say("stopped by a signal; training continues, and the same command resumes")
            code = 130
        except OSError as error:  # no action is taken that the next supervisor could not know of
            words = f"the state cannot be kept in {self.folder} ({error}); training continues"
            self.say(f"{words}: make room, and the same command resumes")
            code = 1
        finally:
            self.say_cost()
        self.bucket_lock.release()
        return code

    def turn(self) -> int | None:
        """Look, decide and act once; return the exit code at the end."""
        if owner := self.bucket_lock.take():
            words = f"another supervisor has {self.bucket_lock.address}: {owner}; end it first"
            self.say(f"{words}, or wait for an hour if its machine is gone")
            return 2
        answers = self.road.look(self.job, self.ask, time.time())
        checkpoint = find_checkpoint(self.job.workdir, self.ask)
        if checkpoint is not None:
            answers = dataclasses.replace(answers, checkpoint=checkpoint)
        while True:
            self.state, actions = decide.decide(self.state, answers)
            write_state(self.folder / "state.json", self.state)
            outcomes, code = self.act(actions)
            if code is not None or not outcomes:
                return code
            answers = Answers(time.time(), outcomes=tuple(outcomes))

    def act(self, actions: Sequence[Action]) -> tuple[list[tuple[str, Answer]], int | None]:
        """Run the actions; return their outcomes, and the exit code at the end."""
        outcomes: list[tuple[str, Answer]] = []
        for action in actions:
            if action.kind == "event":
                self.say(action.words)
            elif action.kind == "wait":
                time.sleep(action.secs)
            elif action.kind == "end":
                if not self.state.is_there:
                    ask_all(self.road.plan("clean", self.job), self.ask)
                return [], action.code
            else:
                said = ask_all(self.road.plan(action.kind, self.job), self.ask)
                if action.kind in ("stacks", "last_words", "set_up", "examine") or said.code:
                    at = f"-{time.time():.0f}" * (action.kind == "stacks")
                    path = self.folder / f"{action.kind}{at}.txt"
                    path.write_text(said.out + said.err, errors="surrogateescape")
                    words = said.out if action.kind == "last_words" else f"its output: {path}"
                    for line in words.split("\n"):
                        show(escape(line), sys.stdout)
                if action.kind in REPORTED:
                    outcomes.append((action.kind, said))
                    if said.code:
                        break
        return outcomes, None

    def say(self, words: str) -> None:
        """Print an event, with the time and the dollars, and add it to events.log."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time()))
        spent = self.show_usd(self.state.count_usd(time.time()))
        line = escape(f"{at} {self.job.cluster.name}: {words}; spent: {spent}")
        show(line, sys.stdout)
        with contextlib.suppress(OSError), (self.folder / "events.log").open("a") as file:
            file.write(f"{line}\n")  # write_state reports a full disk

    def show_usd(self, usd: float | None) -> str:
        """Return dollars in words; on Spot they are an upper bound."""
        is_less = self.job.cluster.get("PROVISIONING") != "standard"
        return "price unknown" if usd is None else f"{'at most ' * is_less}${usd:.2f}"

    def say_cost(self) -> None:
        """Say that a slice still costs money, however the supervision ends."""
        if self.state.is_there:
            hourly = self.show_usd(self.state.rules.usd_per_hour)
            delete = self.job.cluster.next_command("delete")
            words = f"{self.job.cluster.name} may still cost money ({hourly} per hour), until:"
            show(f"{words} {delete}", sys.stderr)
