"""Simulate a week of Google Cloud and of a training run, from the published states.

Slices wait for capacity, are preempted, repaired, refused and deleted; training saves, fails, hangs
and ends. What services say of it has the form of the Cloud TPU API, Compute Engine or JobSet; it
may be missing, ten minutes old, said twice, or hostile, until the hour from which all is granted.
"""

import bisect
import datetime
import functools
import json
import random
import re
import time
from collections.abc import Callable
from types import SimpleNamespace

from launch.cloud.run import Answer, Command

HOUR, WEEK = 3600.0, 168 * 3600.0
BEGIN = 1_790_000_000.0  # of the week, seconds since 1970
SAVE_SECS, STALE_SECS, MAX_DELETION_SECS = 0.5 * HOUR, 600.0, 1800.0
LOOK_SECS = 1800.0
WORKERS = 2
HOSTILE = (
    *("", "null", "[]", "{}", 7, None, [[[[]]]], {"state": {"state": "$(reboot)"}}, {"state": []}),
    *({"createTime": "9" * 5000}, {"metadata": {"creationTimestamp": 1e400}}, {"targetSize": -1}),
    *("worker w-0 running 1 \x1b[2J 3\n" * 5, "worker " + "9" * 10_000),
    {"status": {"restarts": 10**30}},
)
# What is asked of a project, a bucket and a cluster that have all that a run needs.
GOOD = {
    "auth list": "me",
    "config get": "",
    "projects describe": "my-project",
    "services list": "tpu.googleapis.com\ncompute.googleapis.com\ncontainer.googleapis.com",
    "managed create --help": "--target-size-policy-mode",
    "get crd": "onJobFailureMessagePatterns",
    "current-context": "my-cluster",
    "images describe": "{}",
    "buckets describe": '{"location": "US-CENTRAL2"}',
    "storage ls": "gs://b/s/manifest.json",
}
# What a command has -> the request or the question that it is.
REQUESTS = {
    **dict.fromkeys(("resources create", "managed create my", "kubectl create"), "create"),
    **dict.fromkeys(("resources delete", "managed delete", "kubectl delete"), "delete"),
    **{"bert_jax-setup.sh": "set_up", "train.sh .venv": "start", "--stop": "stop"},
}
QUESTIONS = {
    **dict.fromkeys(("resources describe", "managed describe", "get jobset"), "slice"),
    **dict.fromkeys(("tpu-vm describe", "list-instances", "get jobs "), "node"),
    **{"--status": "workers", "/records/*": "workers", "/commit_success.txt": "saved"},
}
KINDS, ASKED = REQUESTS | QUESTIONS, frozenset(QUESTIONS.values())
# The name of a slice, in the words of a command or in the manifest that it reads.
NAME = re.compile(r'(?: |"name": ")(my-tpu[\w-]*)')


@functools.lru_cache
def rfc3339(time: float) -> str:
    return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Cloud:
    """Hold what exists at `now`. On each road but queued, machines start training themselves."""

    def __init__(self, seed: int, road: str) -> None:
        self.random = random.Random(seed)
        self.road = road
        draw = self.random.random
        self.now = BEGIN
        self.grants_from = BEGIN + self.random.uniform(0, WEEK)
        self.length = self.random.uniform(60, 160) * HOUR
        self.final_code = self.random.choice((2, 3)) if draw() < 0.1 else 0
        self.final_at = self.random.uniform(0, self.length)
        self.trouble = draw() * 0.3  # share of answers and requests that go wrong
        self.fails_every = self.random.uniform(5, 40) * HOUR
        self.lives_for = self.random.uniform(3, 60) * HOUR
        self.events: list[tuple[float, int, object]] = []
        self.count = 0
        # The slice: whether one of another name was made while it existed, its name and its
        # node's, its states, when machines began to cost.
        self.exists, self.label, self.has_two = False, "bert_jax", False
        self.name = self.node_name = ""
        self.state, self.node, self.created, self.life = "", "", 0.0, 0
        self.machines_since, self.machine_secs = None, 0.0
        # Training: saved work, since when it runs, how each worker stands.
        self.saved, self.run, self.running_since = 0.0, 0, None
        self.statuses, self.silent_since = ["never started"] * WORKERS, 0.0
        self.is_set_up, self.starts = False, 0
        self.ended: int | None = None  # with a code after which no start helps
        self.history: list[tuple[float, object]] = []
        self.said: dict | str = {}
        self.was_honest = True
        self.lock, self.lock_generation, self.lock_time = "", 0, 0.0
        self.at(self.grants_from - BEGIN, self.grant)

    # Time.

    def at(self, secs: float, what) -> None:
        self.count += 1
        bisect.insort(self.events, (self.now + secs, self.count, what))

    def harm_at(self, secs: float, what) -> None:
        """Schedule `what` after `secs`, unless everything is granted by then."""
        self.at(secs, lambda: None if self.is_granting else what())

    def sleep(self, secs: float) -> None:
        """Sleep up to the next event."""
        event = self.events[0][0] if self.events else float("inf")
        end = min(max(event, self.now + 1), self.now + secs)
        while self.events and self.events[0][0] <= end:
            self.now, _, what = self.events.pop(0)
            what()
            self.history.append((self.now, self.say()))
        self.now = end

    @property
    def is_granting(self) -> bool:
        return self.now >= self.grants_from

    def goes_wrong(self, times: float = 1.0) -> bool:
        return not self.is_granting and self.random.random() < self.trouble * times

    def ask(self, command: Command) -> Answer:
        """Answer as gcloud and kubectl do."""
        line = " ".join(command.words)
        name = "".join(NAME.findall(f"{line} {command.given or ''}")[:1])
        if "/lock" in line:
            return self.answer_lock(command)
        if "value(description)" in line:  # what a group is made of has its label
            return Answer(0, f"launched_by={self.label}\n")
        for words, what in KINDS.items():
            if words not in line:
                continue
            is_known = name in ("", self.name if what in ("delete", "slice") else self.node_name)
            if what in ASKED:
                return self.answer_question(what, command.words[0], is_known)
            if what == "create":
                node_name = line.partition("--node-id=")[2].partition(" ")[0]
                error = self.create(name, node_name or name)
            else:
                error = getattr(self, what)() if is_known else "NOT_FOUND"
            return Answer(bool(error), "", error)
        return Answer(0, next((out for words, out in GOOD.items() if words in line), ""))

    def answer_question(self, what: str, tool: str, is_known: bool) -> Answer:
        """Answer from what this look is told, which its first question draws."""
        if what == "slice":
            self.said = self.answer()
        if isinstance(self.said, str):
            return Answer(1, "", self.said)
        said = self.said.get(what) if is_known else None
        if said is None:
            absent = Answer(1, "", "NOT_FOUND: matched no objects")
            return Answer(0) if tool == "kubectl" else absent
        return Answer(0, said if isinstance(said, str) else json.dumps(said))

    def answer_lock(self, command: Command) -> Answer:
        verb = command.words[2]
        if verb == "objects":
            found = {"generation": str(self.lock_generation)}
            found["update_time"] = rfc3339(self.lock_time)
            absent = Answer(1, "", "gs://b/lock not found: 404.")
            return Answer(0, json.dumps(found)) if self.lock_generation else absent
        if verb == "cp":
            if f"--if-generation-match={self.lock_generation}" not in command.words:
                return Answer(1, "", "HTTPError 412")
            self.lock, self.lock_time = command.given, self.now
            self.lock_generation += 1
        if verb == "rm":
            self.lock_generation = 0
        return Answer(0, self.lock)

    def clock(self, sleep: Callable[[float], None]) -> SimpleNamespace:
        """Return a stand-in for the module `time`, on this cloud's clock."""
        names = {"strftime": time.strftime, "gmtime": time.gmtime, "sleep": sleep}
        return SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now, **names)

    # Requests: each returns the error, '' where there is none.

    def create(self, name: str, node_name: str) -> str:
        if self.goes_wrong():
            return "HTTPError 503: UNAVAILABLE: busy"
        if self.exists and name == self.name:
            return f"ALREADY_EXISTS: {name} already exists"
        self.has_two |= self.exists
        self.exists, self.name, self.node_name = True, name, node_name
        self.life += 1
        self.state, self.node, self.created = "CREATING", "", self.now
        self.is_set_up = False
        self.starts *= self.road != "gke"  # a JobSet counts its own; BUCKET has them all
        self.statuses = ["never started"] * WORKERS
        self.at(20, self.in_life(lambda: self.become("WAITING_FOR_RESOURCES")))
        patience = 60 if self.is_granting else self.random.expovariate(1 / (2 * HOUR))
        if self.goes_wrong(0.5):
            self.at(patience + 60, self.in_life(lambda: self.become("FAILED")))
        else:
            self.at(patience + 60, self.in_life(self.provision))
        return "no answer within 180 s" if self.goes_wrong(0.5) else ""

    def delete(self) -> str:
        if self.goes_wrong():
            return "HTTPError 503: UNAVAILABLE: busy"
        if not self.exists:
            return "NOT_FOUND"
        if self.state != "DELETING":
            self.stop_training("gone")
            self.life += 1
            self.state = "DELETING"
            secs = 60 if self.is_granting and self.random.random() < 0.5 else MAX_DELETION_SECS
            self.at(self.random.uniform(30, secs), self.in_life(self.vanish))
        return "no answer within 180 s" if self.goes_wrong(0.5) else ""

    def set_up(self) -> str:
        if self.node != "READY" or self.goes_wrong():
            return "ssh: connect to host: Connection timed out"
        self.is_set_up = True
        return ""

    def start(self) -> str:
        if self.node != "READY" or not self.is_set_up or self.goes_wrong():
            return "ssh: connect to host: Connection timed out"
        if any(status == "running" for status in self.statuses):
            return "training runs here already"
        self.begin_training()
        return ""

    def stop(self) -> str:
        if self.node == "READY" and not self.goes_wrong():
            self.stop_training("ended 143")
        return ""

    # The life of a slice.

    def in_life(self, what):
        life = self.life
        return lambda: what() if self.life == life else None

    def become(self, state: str, node: str = "") -> None:
        self.state, self.node = state, node
        has_machines = node not in ("", "PREEMPTED", "TERMINATED")
        if self.road == "gke":  # what its nodes cost before and after is not the JobSet's
            has_machines = node == "READY"
        if has_machines and self.machines_since is None:
            self.machines_since = self.now
        if not has_machines:
            self.stop_billing()

    def stop_billing(self) -> None:
        if self.machines_since is not None:
            self.machine_secs += self.now - self.machines_since
            self.machines_since = None

    def count_hours(self) -> float:
        """Count the billed hours so far."""
        since = self.now if self.machines_since is None else self.machines_since
        return (self.machine_secs + self.now - since) / 3600

    def provision(self) -> None:
        self.become("PROVISIONING", "CREATING")
        self.at(300, self.in_life(self.is_ready))

    def is_ready(self) -> None:
        self.become("ACTIVE", "READY")
        if self.road != "queued":
            self.at(300, self.in_life(self.begin_training))
        if not self.is_granting:
            how = self.random.choice((self.preempt, self.preempt, self.repair))
            self.harm_at(self.random.expovariate(1 / self.lives_for), self.in_life(how))

    def grant(self) -> None:
        if self.exists and self.state in ("CREATING", "WAITING_FOR_RESOURCES"):
            self.at(60, self.in_life(self.provision))

    def preempt(self) -> None:
        self.stop_training("gone")
        self.become("SUSPENDING", "PREEMPTED")
        self.at(120, self.in_life(lambda: self.become("SUSPENDED")))

    def repair(self) -> None:
        self.stop_training("ended 137")
        self.become("ACTIVE", "REPAIRING")
        self.at(self.random.uniform(300, 5400), self.in_life(self.is_ready))

    def vanish(self) -> None:
        self.stop_billing()
        self.exists = False
        self.state = self.node = ""

    # Training.

    def begin_training(self) -> None:
        self.run += 1
        self.starts += 1
        if self.ended is not None:  # from its last checkpoint it ends at once
            self.statuses = [f"ended {self.ended}"] * WORKERS
            return
        self.statuses, self.running_since, self.silent_since = ["running"] * WORKERS, self.now, 0.0
        self.at(SAVE_SECS, self.in_run(self.save))
        end = self.length - self.saved
        if self.final_code and self.final_at >= self.saved:
            self.at(self.final_at - self.saved, self.in_run(self.fail_for_good))
        self.at(end, self.in_run(self.succeed))
        if not self.is_granting:
            how = self.random.choice((self.fail, self.hang))
            self.harm_at(self.random.expovariate(1 / self.fails_every), self.in_run(how))

    def in_run(self, what):
        run = self.run
        return lambda: what() if self.run == run and self.running_since is not None else None

    def save(self) -> None:
        self.saved = min(self.saved + SAVE_SECS, self.length)
        self.at(SAVE_SECS, self.in_run(self.save))

    def stop_training(self, status: str) -> None:
        if self.running_since is not None:
            self.run, self.running_since = self.run + 1, None
        self.statuses = [status] * WORKERS

    def succeed(self) -> None:
        self.stop_training("ended 0")
        self.saved, self.ended = self.length, 0

    def fail_for_good(self) -> None:
        self.stop_training("ended 134")
        self.statuses[0] = f"ended {self.final_code}"
        self.ended = self.final_code

    def fail(self) -> None:
        self.end_run(self.random.choice((134, 86, 1, 137)))

    def hang(self) -> None:
        self.run += 1  # nothing is saved any more
        self.silent_since = self.now
        if self.road == "gke":  # its own watchdog ends it
            self.at(3600, self.in_run(lambda: self.end_run(86)))

    def end_run(self, code: int) -> None:
        self.stop_training(f"ended {code}")
        if self.road != "queued":
            self.at(60, self.in_life(self.begin_training))

    # What is said.

    def say(self) -> dict:
        """Return the true answers now: JSON bodies as Python values, workers' lines as text."""
        said = getattr(self, f"say_{self.road}")() if self.exists else {"slice": None}
        step = f"gs://b/a/checkpoints/{int(self.saved)}/commit_success.txt"
        return said | {"saved": step if self.saved else None}

    def say_workers(self, tail: str = "") -> str:
        silent = int(self.now - self.silent_since) if self.silent_since else 5
        step = int(self.saved) or "-"
        lines = {"running": f"running 12 {silent} {step}", "gone": "not set up"}
        return "".join(
            f"worker w-{number} {lines.get(status) or status}"
            f"{f' {step}' * status.startswith('ended')}{tail}\n"
            for number, status in enumerate(self.statuses)
        )

    def say_queued(self) -> dict:
        spec = {"nodeSpec": [{"nodeId": "my-tpu", "node": {"labels": {"launched_by": self.label}}}]}
        state = {"state": self.state}
        queued = {"state": state, "createTime": rfc3339(self.created), "tpu": spec}
        node = {"state": self.node, "networkEndpoints": [{}] * WORKERS} if self.node else None
        return {"slice": queued, "node": node, "workers": self.say_workers()}

    def say_compute_engine(self) -> dict:
        group = {"description": f"launched_by={self.label}", "targetSize": 2}
        group["creationTimestamp"] = rfc3339(self.created)
        status, action = {
            "READY": ("RUNNING", "NONE"),
            "CREATING": ("STAGING", "CREATING"),
            "PREEMPTED": ("STOPPING", "NONE"),
            "REPAIRING": ("REPAIRING", "RECREATING"),
            "": ("", "CREATING"),
        }[self.node]
        if self.state in ("SUSPENDED", "FAILED"):
            status, action = "TERMINATED", "NONE"
        if self.state == "DELETING":
            action = "DELETING"
        machines = [{"instanceStatus": status, "currentAction": action}] * WORKERS
        tail = f" starts {self.starts} time {int(self.now)}"
        records = self.say_workers(tail) if self.starts else ""
        return {"slice": group, "node": machines, "workers": records}

    def say_gke(self) -> dict:
        metadata = {"creationTimestamp": rfc3339(self.created)}
        metadata["labels"] = {"launched_by": self.label}
        if self.state == "DELETING":
            metadata["deletionTimestamp"] = rfc3339(self.now)
        ready = [{"ready": int(self.node == "READY")}]
        status = {"restarts": max(self.starts - 1, 0), "replicatedJobsStatus": ready}
        if self.statuses[1] == "ended 0":
            status["terminalState"] = "Completed"
        jobs = None
        if self.ended or self.state in ("FAILED", "SUSPENDED"):
            reason = "FailJobSetFailurePolicyAction" if self.ended else "ReachedMaxRestarts"
            conditions = [{"type": "Failed", "reason": reason}]
            status |= {"terminalState": "Failed", "conditions": conditions}
            words = f"Container train for pod a/b failed with exit code {self.ended} matching"
            job = {"status": {"conditions": [{"type": "Failed", "message": words}]}}
            jobs = {"items": [job]}
        return {"slice": {"metadata": metadata, "status": status}, "node": jobs}

    def answer(self) -> dict | str:
        """Return the answers that a look gets, true, old or false; a text is an error."""
        self.history.append((self.now, self.say()))
        self.was_honest = not self.goes_wrong(2)
        if self.was_honest:
            return self.history[-1][1]
        how = self.random.choice(("missing", "stale", "doubled", "hostile", "unreached"))
        if how == "missing":
            return "HTTPError 503: UNAVAILABLE: the backend had an error"
        if how == "hostile":
            said = dict(self.history[-1][1])
            said[self.random.choice(("slice", "node", "workers"))] = self.random.choice(HOSTILE)
            return said
        if how == "unreached":
            return self.history[-1][1] | {"workers": ""}
        back = self.random.uniform(0, STALE_SECS) if how == "stale" else 0
        times = [time for time, _ in self.history[-50:]]
        place = max(bisect.bisect_right(times, self.now - back) - 1 - (how == "doubled"), 0)
        if times[place] < self.now - STALE_SECS - 1:  # nothing is older than ten minutes
            return self.history[-1][1]
        return self.history[-50:][place][1]
