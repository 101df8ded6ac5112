"""A stand-in for Google Cloud's TPU API on this machine, for a real gcloud to talk to.

It shows that gcloud takes the commands and what it makes of them. It knows nothing of quota, access
rights, images, firewalls or TPUs.
"""

import datetime
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_PATH = re.compile(
    r"/(?P<version>\w+)/(projects/[^/]+/locations/[^/]+/)?(?P<what>[^?]*)\??(?P<query>.*)"
)
_NAMES = {
    400: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_DONE = {"name": "projects/my-project/locations/us-central2-b/operations/1", "done": True}

ACTIVE = [("ACTIVE", "READY", 0)]


class TpuApi:
    """Queued resources, each with a TPU VM of some workers, active at once or living by a script.

    lives: for each queued resource in turn the states that it goes through, as (its state, the
    TPU VM's or None, questions for its state for which both last). A number as state is an error
    with which those questions are answered. The last state lasts; those who come after the last
    life are active at once.
    requests: what was asked of the TPU API, as (method, path from the zone on, body).
    existed_secs: how long TPU VMs existed, of those that are gone.
    on_ready, on_loss: called when there is a TPU VM that can be used, and when it is lost.
    """

    def __init__(self, workers: int, lives: Sequence[list[tuple]] = ()) -> None:
        self.workers = workers
        self.lives = list(lives)
        self.requests: list[tuple[str, str, dict]] = []
        self.names: dict[str, dict] = {}  # of a queued resource -> what was asked for
        self.metadata: dict = {}  # gcloud keeps its public ssh key there
        self.refusals: list[tuple[str, int, str]] = []  # method, status and message of what comes
        self.existed_secs = 0.0
        self.on_ready: Callable[[], None] = lambda: None
        self.on_loss: Callable[[], None] = lambda: None
        self._states: list[tuple] = []
        self._questions = 0
        self._born: float | None = None
        self._created = ""
        self.lock = threading.Lock()

    def count(self, method: str, kind: str) -> int:
        """How often this was asked of queuedResources or nodes."""
        return sum(m == method and path.startswith(kind) for m, path, _ in self.requests)

    def create(self, label: str) -> None:
        """Make the TPU VM without a script of ours, with this label launched_by."""
        body = {
            "tpu": {"nodeSpec": [{"nodeId": "my-tpu", "node": {"labels": {"launched_by": label}}}]}
        }
        path = "/v2/projects/p/locations/z/queuedResources?queuedResourceId=my-tpu"
        assert self.answer("POST", path, body)[0] == 200
        self.requests.clear()

    def become(self, states: list[tuple]) -> None:
        """Go on from now with these states, as when Google Cloud takes the TPU VM back."""
        with self.lock:
            self._states, self._questions = states, 0
            self._take_note()

    def answer(self, method: str, path: str, body: dict) -> tuple[int, dict]:
        found = _PATH.match(path)
        if found is None:
            return _error(404, f"no such path: {path}")
        if found["version"] != "v2":  # the Compute API, asked for the project's settings
            return 200, {"name": "my-project", "commonInstanceMetadata": {}}
        self.requests.append((method, found["what"], body))
        kind, _, name = found["what"].partition("/")
        if self.refusals and self.refusals[0][0] == method:
            _, status, words = self.refusals.pop(0)
            return _error(status, words)
        if kind == "operations":
            return 200, _DONE | {"response": self._node("my-tpu")}
        if kind == "queuedResources" and method == "POST":
            name = re.findall("queuedResourceId=([^&]+)", found["query"])[0]
            if name in self.names and self._states[0][0] != "404":
                return _error(409, f"{name} exists already")
            self.names[name] = body | {"createTime": _read_clock()}
            self._states, self._questions = (self.lives.pop(0) if self.lives else ACTIVE), 0
            self._take_note()
        elif name not in self.names:
            return _error(404, f"{name} was not found")
        if kind == "queuedResources" and method == "DELETE":
            if self._states[0][1] is not None and "force=true" not in found["query"].lower():
                return _error(400, f"{name} has a TPU VM; force is needed")
            del self.names[name]
            self._states = []
            self._take_note()
        if method == "PATCH":
            self.metadata = body["metadata"]
        if method != "GET":
            return 200, _DONE | {"response": {}}
        if kind == "queuedResources":
            return self._queued(name)
        if self._states[0][1] is None:
            return _error(404, f"{name} was not found")
        return 200, self._node(name)

    def _queued(self, name: str) -> tuple[int, dict]:
        """The state; each question brings the next one nearer."""
        if len(self._states) > 1 and self._questions >= self._states[0][2]:
            self._states, self._questions = self._states[1:], 0
            self._take_note()
        self._questions += 1
        state = self._states[0][0]
        if state.isdigit():
            return _error(int(state), "the backend had an error")
        return 200, {"name": name, "state": {"state": state}} | self.names[name]

    def _take_note(self) -> None:
        """Of whether there is a TPU VM that costs money, and that it is lost."""
        is_ready = bool(self._states) and self._states[0][1] == "READY"
        if is_ready and self._born is None:
            self._born = time.time()
            self._created = _read_clock()
            self.on_ready()
        if not is_ready and self._born is not None:
            self.existed_secs += time.time() - self._born
            self._born = None
            self.on_loss()

    def _node(self, name: str) -> dict:
        addresses = [f"203.0.113.{number}" for number in range(self.workers)]
        return {
            "name": f"projects/my-project/locations/us-central2-b/nodes/{name}",
            "apiVersion": "V2",
            "state": self._states[0][1] if self._states else "READY",
            "createTime": self._created,
            "metadata": self.metadata,
            "networkEndpoints": [
                {"ipAddress": address, "accessConfig": {"externalIp": address}}
                for address in addresses
            ],
        }


def _read_clock() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _error(status: int, message: str) -> tuple[int, dict]:
    return status, {"error": {"code": status, "message": message, "status": _NAMES.get(status, "")}}


@contextmanager
def serving(api: TpuApi) -> Iterator[str]:
    """Answer on a port of this machine; gives the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            with api.lock:
                status, answer = api.answer(self.command, self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = reply

        def log_message(self, *arguments: object) -> None:
            """Nothing: what was asked is in requests."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
