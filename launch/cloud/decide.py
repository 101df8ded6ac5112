"""Decide what the supervisor of a run does next: a pure function of its state and the answers.

`decide(state, answers)` returns the next state and the actions; it asks nothing, waits for nothing
and reads no clock. watch.py asks and acts; queued, compute_engine and gke translate what services
say.
"""

import dataclasses

from .run import Answer
from .text import MAX_TEXT

# Codes of data_pipeline/cli/main.py after which the same command would end the same way.
FINAL_CODES = (2, 3)
# Looks in a row before the supervisor acts: on a missing slice that it did not delete, on workers
# that do not answer, on training that runs on some workers only.
MAX_MISSING, MAX_UNREACHED, MAX_PARTIAL = 3, 5, 2
MAX_OUTAGE_SECS, MAX_PAUSE_SECS, REPEAT_SECS = 43200, 600, 600
# An answer may be this much older than the request before it.
STALE_SECS = 900

# Kinds of a slice's state, whatever its service calls them; UNKNOWN where it gave no answer. QUEUED
# costs nothing and may last, STARTING has machines and should end, LOST does not come back.
UNKNOWN, ABSENT, QUEUED, STARTING = "UNKNOWN", "ABSENT", "QUEUED", "STARTING"
READY, LOST, DELETING = "READY", "LOST", "DELETING"


@dataclasses.dataclass(frozen=True)
class Rules:
    """Hold the flags of a supervised run; starts_itself: its machines (re)start training."""

    workdir: str
    label: str = "bert_jax"
    poll_secs: float = 60
    hung_secs: float = 4000
    max_tries: int = 5
    starts_itself: bool = False
    is_examined: bool = False
    is_deleted_at_end: bool = False
    usd_per_hour: float | None = None
    max_usd: float | None = None


@dataclasses.dataclass(frozen=True)
class SliceSeen:
    """Hold the state of the slice as the service reports it; `created` identifies the slice.

    workdir: the workdir that its machines train into, cut to MAX_TEXT characters; '' if not known.
    created, started: seconds since 1970, of the slice and of its machines; 0 if not known.
    """

    kind: str
    words: str = ""
    label: str = ""
    created: float = 0
    has_machines: bool = False
    workers: int = 0
    workdir: str = ""
    started: float = 0

    @property
    def exists(self) -> bool:
        """Return whether the service described a slice."""
        return self.kind not in (UNKNOWN, ABSENT)


@dataclasses.dataclass(frozen=True)
class Worker:
    """Hold a worker's status: running, busy (with another run), ended, never or not (set up).

    starts, time: how often training was started, and when that was written, from a record in a
    bucket.
    """

    name: str
    status: str
    silent_secs: float = 0
    code: int = 0
    starts: int = 0
    time: float = 0


@dataclasses.dataclass(frozen=True)
class Answers:
    """Hold the answers of one look, or the outcome of each action after it.

    error: why the slice is UNKNOWN, or what kept workers from answering. checkpoint: newest
    complete step, -1 where there is none, None where nobody knows.
    """

    now: float
    slice: SliceSeen = SliceSeen(UNKNOWN)
    error: str = ""
    is_permanent: bool = False
    workers: tuple[Worker, ...] = ()
    junk: tuple[str, ...] = ()
    checkpoint: int | None = None
    outcomes: tuple[tuple[str, Answer], ...] = ()


@dataclasses.dataclass(frozen=True)
class Action:
    """Name an action: one of REPORTED, stop, stacks, last_words, event, wait or end.

    Actions run in order and stop at the first of REPORTED that fails; `decide` gets the outcomes of
    REPORTED actions before the next look.
    """

    kind: str
    words: str = ""
    secs: float = 0
    code: int = 0


REPORTED = ("create", "delete", "set_up", "examine", "start")


# Fields of State that outlive a run: the next supervisor counts its own tries and outages.
KEPT = ("created", "seen", "is_there", "billed_since", "spent_secs")
# Fields that each new slice resets.
OF_SLICE = (
    *("is_ready", "is_set_up", "was_tried", "has_trained", "not_ready_since"),
    *("partial", "unreached", "starts"),
)


@dataclasses.dataclass
class State:
    """Hold the supervisor's memory between looks; saved as JSON, without the rules."""

    rules: Rules
    # The newest checkpoint now, and when the last try began; tries since then.
    checkpoint: int = -1
    best: int = -1
    tries: int = 0
    # Billed seconds of deleted slices, and the time since which the current slice is billed.
    spent_secs: float = 0
    billed_since: float | None = None
    # is_expected: a slice was requested. is_there: the last look found one. created, condemned:
    # creation times of the slice in use and of the one to delete. requested: time of the last
    # request. seen: time of the last look that found a slice. missing: looks since then.
    is_expected: bool = False
    is_there: bool = False
    created: float = 0
    condemned: float = 0
    requested: float = 0
    seen: float = 0
    missing: int = 0
    # Reset with each new slice.
    is_ready: bool = False
    is_set_up: bool = False
    was_tried: bool = False
    has_trained: bool = False
    not_ready_since: float | None = None
    partial: int = 0
    unreached: int = 0
    unreached_since: float = 0
    starts: int = 0
    # An outage of Google Cloud: its seconds, and the last look that failed; what was said while
    # waiting.
    outage_secs: float = 0
    failed: float = 0
    waiting: str = ""
    waiting_since: float = 0
    # Exit code and message, once the slice is gone.
    end_code: int | None = None
    end_words: str = ""

    def count_usd(self, now: float) -> float | None:
        """Return what the slices have cost, or None without a price."""
        if self.rules.usd_per_hour is None:
            return None
        secs = max(now - self.billed_since, 0) if self.billed_since is not None else 0
        return (self.spent_secs + secs) / 3600 * self.rules.usd_per_hour

    def forget(self, *names: str) -> None:
        """Reset fields to their defaults."""
        for name in names:
            setattr(self, name, getattr(State, name))


def decide(state: State, answers: Answers) -> tuple[State, list[Action]]:
    """Return the state after these answers, and the actions; `state` is not changed."""
    turn = _Turn(dataclasses.replace(state), answers)
    for name, value in vars(state).items():
        is_time = name in ("requested", "seen", "failed") or name.endswith("_since")
        if is_time and (value or 0) > answers.now:
            # The clock was set back: else a limit would last as much longer.
            setattr(turn.state, name, answers.now)
    if answers.outcomes:
        turn.take_outcomes()
    else:
        turn.look()
    turn.wait()
    return turn.state, turn.actions


class _Turn:
    """Collect the actions of one decision."""

    def __init__(self, state: State, answers: Answers) -> None:
        self.state, self.answers = state, answers
        self.rules, self.now = state.rules, answers.now
        self.actions: list[Action] = []
        self.pause = 0.0  # after a failed request

    def take_outcomes(self) -> None:
        state = self.state
        for kind, said in self.answers.outcomes:
            words = f"{kind} failed: {said.words}"
            if said.code and kind in ("create", "delete"):
                # "Already exists" may be our own slice after a lost answer: the next look shows it.
                state.is_there &= kind == "delete" or not said.is_permanent
                self.fail(words, said.is_permanent)
            elif said.code:
                state.is_set_up &= kind == "start"
                self.event(words)
            elif kind == "create":
                self.event("requested the slice")
                state.is_expected = True
            elif kind == "set_up":
                state.is_set_up = True
            elif kind == "start":
                state.has_trained = True
                tries = f"try {state.tries} of {self.rules.max_tries}"
                self.event(f"started training, newest checkpoint {self.step}, {tries}")

    # A look at the slice.

    def look(self) -> None:
        state, answers, seen = self.state, self.answers, self.answers.slice
        for line in answers.junk:
            self.event(line)
        if answers.checkpoint is not None:
            is_newer = answers.checkpoint > state.checkpoint
            state.checkpoint = answers.checkpoint
            if is_newer and state.unreached:
                self.event(f"training continues nonetheless: checkpoint {self.step} is newer")
                state.unreached = 0
        self.check_budget()
        # An answer about a deleted slice is stale at first; if it stays, the newer one was false.
        is_old = seen.exists and seen.created < state.created
        is_old |= state.is_expected and seen.created == state.condemned != 0
        is_old &= self.now - max(state.seen, state.requested) < STALE_SECS
        if seen.kind == UNKNOWN:
            self.fail(f"the state of the slice is unknown: {answers.error}", answers.is_permanent)
        elif not is_old:
            self.look_at_slice(seen)
            return
        if self.state.end_code is not None and state.created:
            self.act("delete")

    def look_at_slice(self, seen: SliceSeen) -> None:
        state, rules = self.state, self.rules
        if seen.kind == ABSENT:
            self.bill(seen)
            self.find_none()
            return
        if seen.label != rules.label:
            state.is_there = False  # our slice is gone
            words = f"the slice has the label launched_by='{seen.label}', not '{rules.label}'"
            words += ", and is left alone; set LABEL, or change TPU_NAME"
            self.end(2, words)
            return
        is_going = seen.kind == DELETING or seen.created == state.condemned
        if seen.workdir not in ("", rules.workdir[:MAX_TEXT]) and not is_going:
            state.is_there = True
            words = f"the slice trains into {seen.workdir}, not {rules.workdir}; let that run end"
            self.end(2, f"{words} and delete the slice with launch/delete.sh, or change TPU_NAME")
            return
        self.bill(seen)
        if seen.created != state.created:
            state.forget(*OF_SLICE)
            state.created = seen.created
        state.seen, state.missing, state.is_there = self.now, 0, True
        state.is_expected = seen.created != state.condemned
        self.check_budget()
        if seen.kind == DELETING:
            self.say_waiting(seen.words)
        elif state.end_code is not None:
            self.delete()
        elif not state.is_expected:
            self.lose("its deletion was requested, and it still exists")
        elif seen.kind == QUEUED and not state.is_ready:
            self.say_waiting(seen.words)
        elif seen.kind == LOST or (seen.kind == QUEUED and not rules.starts_itself):
            self.lose(seen.words)
        elif seen.kind in (STARTING, QUEUED):  # a slice that Google repairs may wait for machines
            state.not_ready_since = state.not_ready_since or self.now
            secs = self.now - state.not_ready_since
            if secs >= rules.hung_secs:
                self.lose(f"{seen.words} for {secs:.0f} s")
            else:
                self.say_waiting(seen.words)
        else:
            state.is_ready, state.not_ready_since = True, None
            if len(self.answers.workers) < seen.workers:
                self.miss_workers(seen.workers)
            else:
                state.unreached = 0
                self.look_at_workers()

    def find_none(self) -> None:
        state = self.state
        if state.end_code is not None:
            state.missing += 1
            # A slice that no look finds may still cost money: delete it, and look once more.
            if state.missing == 1 and state.created:
                self.delete()
            else:
                state.is_there = False
                self.end(state.end_code, f"the slice is deleted; {state.end_words}")
            return
        state.is_there = False
        if state.is_expected and self.now - state.requested < STALE_SECS:
            self.say_waiting("requested, and not to be seen yet")
        elif not state.is_expected or state.created == state.condemned:
            if self.may_try():
                state.is_expected, state.requested = False, self.now
                state.is_there = True  # a signal or an outage may hide the answer
                self.act("create")
        else:
            state.missing += 1
            self.say_waiting(f"not found, look {state.missing} of {MAX_MISSING}")
            if state.missing == MAX_MISSING:
                words = "gave up: the slice is gone, and this supervisor did not delete it; run"
                self.end(1, f"{words} the same command to create it again")

    def lose(self, why: str) -> None:
        """Delete the slice; once a look finds none, another is requested."""
        state = self.state
        if state.condemned != state.created:
            # A slice that never got to training counts as a try.
            state.tries += not state.was_tried
            self.event(f"the slice is lost ({why}); deleting and recreating it")
        else:
            self.say_waiting(why)
        self.delete()

    def delete(self) -> None:
        state = self.state
        state.condemned, state.is_expected, state.is_ready = state.created, False, False
        self.act("delete")

    # A look at the workers of a slice that is ready.

    def miss_workers(self, count: int) -> None:
        """Count looks that miss workers, up to a newer checkpoint, which shows that they train."""
        state, workers = self.state, self.answers.workers
        state.unreached += 1
        if state.unreached == 1:
            state.unreached_since = self.now
        self.say_waiting(f"{len(workers)} of {count} workers answer", self.answers.error)
        is_over = state.unreached >= MAX_UNREACHED
        # Unless a worker says that training ended, it may go on: ssh may fail from here alone.
        may_train = state.has_trained and all(w.status == "running" for w in workers)
        # Machines that start themselves install packages before they can answer.
        if may_train or self.rules.starts_itself:
            is_over = self.now - state.unreached_since >= self.rules.hung_secs
        if is_over and not (self.rules.starts_itself or state.requested or state.has_trained):
            words = "gave up: not all workers answer this machine, and another may have started"
            self.end(1, f"{words} training there; the slice is left alone")
        elif is_over:
            self.lose("its workers cannot be reached")

    def look_at_workers(self) -> None:
        state, rules, workers = self.state, self.rules, self.answers.workers
        running = [worker for worker in workers if worker.status == "running"]
        codes = [worker.code for worker in workers if worker.status == "ended"]
        final = next((code for code in codes if code in FINAL_CODES), None)
        failed = [code for code in codes if code not in (0, *FINAL_CODES)]
        busy = next((worker for worker in workers if worker.status == "busy"), None)
        silent_secs = min((worker.silent_secs for worker in running), default=0.0)
        starts = max((worker.starts for worker in workers), default=0)
        where = f"training runs on {len(running)} of {len(workers)} workers"
        state.was_tried |= rules.starts_itself
        state.has_trained |= rules.starts_itself or bool(running)
        if busy is not None:
            words = f"another run than {rules.workdir} trains on worker {busy.name}; let it end"
            self.end(2, f"{words}, or stop it: launch/train.sh --stop")
        elif not state.has_trained:
            # Exit codes of runs before this supervisor do not predict the next start.
            self.start()
        elif final is not None:
            self.act("last_words")
            self.act("stop")
            words = f"exit code {final} on a worker; a restart would end the same way"
            self.end_run(final, words)
        elif codes.count(0) == len(workers):
            self.end_run(0, "training has finished")
        elif rules.starts_itself and starts > state.starts:
            if self.may_try():
                state.starts, state.tries = starts, state.tries + 1
                self.event(f"training starts, newest checkpoint {self.step}, try {state.tries}")
        elif not rules.starts_itself and (failed or not running):
            if failed:
                words = f"training failed with exit codes {failed}"
                self.event(f"{words}, newest checkpoint {self.step}")
            self.start(is_stopped_first=bool(failed))
        elif silent_secs >= rules.hung_secs and rules.starts_itself:
            self.lose(f"no output for {silent_secs:.0f} s")
        elif silent_secs >= rules.hung_secs:
            self.act("stacks")
            self.event(f"no output for {silent_secs:.0f} s")
            self.start(is_stopped_first=True)
        elif len(running) + len(codes) < len(workers) and not rules.starts_itself:
            state.partial += 1
            self.event(where)
            if state.partial >= MAX_PARTIAL:
                self.start(is_stopped_first=True)
        else:
            state.partial = 0
            self.say_waiting(where, f"newest checkpoint {self.step}")

    def start(self, is_stopped_first: bool = False) -> None:
        state = self.state
        state.partial = 0
        if self.may_try():
            state.tries, state.was_tried = state.tries + 1, True
            if is_stopped_first:
                self.act("stop")
            if not state.is_set_up:
                self.act("set_up")
                self.actions += [Action("examine")] * self.rules.is_examined
            self.act("start")

    def may_try(self) -> bool:
        """Return whether a try is left, else end the run; a new checkpoint resets the count."""
        state = self.state
        if state.checkpoint != state.best:
            state.best, state.tries = state.checkpoint, 0
        if state.tries < self.rules.max_tries:
            return True
        words = f"gave up: {state.tries} tries in a row reached no newer checkpoint than"
        self.end_run(1, f"{words} {self.step}")
        return False

    # Money and ends.

    def bill(self, seen: SliceSeen) -> None:
        """Bill from the last look without machines, or from their start: never too little."""
        state, is_new = self.state, seen.created != self.state.created
        if state.billed_since is not None and (is_new or not seen.has_machines):
            state.spent_secs += max(self.now - state.billed_since, 0)
            state.billed_since = None
        if state.billed_since is None and seen.has_machines:
            state.billed_since = max(state.seen, seen.created, seen.started)

    def check_budget(self) -> None:
        state, limit, spent = self.state, self.rules.max_usd, self.state.count_usd(self.now)
        if state.end_code is None and limit is not None and spent is not None and spent >= limit:
            state.end_code, state.end_words = 1, f"gave up: --max_usd={limit:g} is spent"
            self.event("the money is spent; training is told to save, and the slice is deleted")
            if state.is_ready:
                self.act("stop")

    def end_run(self, code: int, words: str) -> None:
        """End the run; delete the slice first if is_deleted_at_end.

        After a failure the slice's disks may be the only trace, unless the workdir is in a bucket.
        """
        state = self.state
        has_trace = code == 0 or self.rules.workdir.startswith("gs://")
        if self.answers.slice.exists and has_trace and self.rules.is_deleted_at_end:
            self.event(f"{words}; the slice is deleted")
            state.end_code, state.end_words = code, words
            self.delete()
        else:
            self.end(code, words)

    def fail(self, words: str, is_permanent: bool) -> None:
        """Pause after a failed request; end if a retry cannot help or the outage is too long.

        Once a slice has cost money, a missing login or permission is retried too: the slice must
        not be left alone, and a metadata server that is down gives the same answer.
        """
        state = self.state
        if state.failed:  # more than an hour between looks: this machine slept
            state.outage_secs += min(self.now - state.failed, 3600)
        state.failed, outage = self.now, state.outage_secs
        # As long as the outage so far, so that each pause is about twice the one before.
        self.pause = min(outage + 2 * self.rules.poll_secs, MAX_PAUSE_SECS)
        is_hopeless = is_permanent and not (state.spent_secs or state.billed_since)
        if is_hopeless or outage >= MAX_OUTAGE_SECS:
            since = "" if is_hopeless else f", for {outage / 3600:.0f} h now"
            self.end(state.end_code or 1, f"gave up: {words}{since}")
        else:
            self.event(f"{words}; retrying in {self.pause:.0f} s")

    def end(self, code: int, words: str) -> None:
        self.event(words)
        self.state = State(self.rules, **{name: getattr(self.state, name) for name in KEPT})
        self.act("end", words, code=code)

    @property
    def step(self) -> str:
        return str(self.state.checkpoint) if self.state.checkpoint >= 0 else "-"

    # Actions and events.

    def act(self, kind: str, words: str = "", code: int = 0) -> None:
        self.actions.append(Action(kind, words, code=code))

    def event(self, words: str) -> None:
        self.act("event", words)
        self.state.waiting = ""

    def say_waiting(self, words: str, more: str = "") -> None:
        """Report the wait if it is a new one, and again every REPEAT_SECS."""
        state = self.state
        if words != state.waiting or self.now - state.waiting_since >= REPEAT_SECS:
            self.event(f"{words}, {more}" if more else words)
            state.waiting, state.waiting_since = words, self.now

    def wait(self) -> None:
        """Add a wait, unless an action is reported back or ends the run."""
        if any(action.kind in (*REPORTED, "end") for action in self.actions):
            return
        if not self.pause:
            self.state.forget("outage_secs", "failed")
        self.actions.append(Action("wait", secs=self.pause or self.rules.poll_secs))
