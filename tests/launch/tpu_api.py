"""Stand in for Google Cloud's TPU API on this machine, for a real gcloud to call.

It shows that gcloud takes the commands and what it makes of them. It knows nothing of quota, access
rights, images, firewalls or TPUs.
"""

import http.server
import json
import pathlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.launch.simulated_cloud import rfc3339

_PATH = re.compile(
    r"/(?P<version>\w+)/(projects/[^/]+/locations/[^/]+/)?(?P<what>[^?]*)\??(?P<query>.*)"
)
_NAMES = {400: "FAILED_PRECONDITION", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
_NAMES |= {409: "ALREADY_EXISTS"}
_PROJECT = "projects/my-project/locations/us-central2-b"
TOKEN = "ya29.of-nobody"
_DONE = {"name": f"{_PROJECT}/operations/1", "done": True}


class TpuApi:
    """Serve queued resources, each active at once with a TPU VM of some workers.

    requests: what was asked of the TPU API, as (method, path from the zone on, body).
    on_loss: called when a TPU VM is lost.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.requests: list[tuple[str, str, dict]] = []
        self.names: dict[str, dict] = {}  # name of a queued resource -> its request
        self.metadata: dict = {}  # gcloud keeps its public ssh key there
        self.refusals: list[tuple[str, int, str]] = []  # method, status, message of the next ones
        self.state, self.node = "ACTIVE", "READY"
        self.on_loss: Callable[[], None] = lambda: None

    def preempt(self) -> None:
        """Take the TPU VM back, as Google Cloud does."""
        self.state, self.node = "SUSPENDED", ""
        self.on_loss()

    def answer(self, method: str, path: str, body: dict) -> tuple[int, dict]:
        """Answer a request by a status and a body."""
        found = _PATH.match(path)
        assert found is not None
        if found["version"] != "v2":  # the Compute API, asked for the project's settings
            return 200, {"name": "my-project", "commonInstanceMetadata": {}}
        self.requests.append((method, found["what"], body))
        kind, _, name = found["what"].partition("/")
        if self.refusals and self.refusals[0][0] == method:
            return _error(*self.refusals.pop(0)[1:])
        if kind == "operations":
            return 200, _DONE | {"response": self._describe_node("my-tpu")}
        if kind == "queuedResources" and method == "POST":
            name = re.findall("queuedResourceId=([^&]+)", found["query"])[0]
            if name in self.names:
                return _error(409, f"{name} exists already")
            self.names[name] = body | {"createTime": rfc3339(time.time())}
            self.state, self.node = "ACTIVE", "READY"
        elif name not in self.names or (kind == "nodes" and not self.node):
            return _error(404, f"{name} was not found")
        elif kind == "queuedResources" and method == "DELETE":
            if self.node and "force=true" not in found["query"].lower():
                return _error(400, f"{name} has a TPU VM; force is needed")
            del self.names[name]
            self.on_loss()
        elif method == "PATCH":
            self.metadata = body["metadata"]
        if method != "GET":
            return 200, _DONE | {"response": {}}
        if kind == "nodes":
            return 200, self._describe_node(name)
        return 200, {"name": name, "state": {"state": self.state}} | self.names[name]

    def _describe_node(self, name: str) -> dict:
        addresses = [f"203.0.113.{number}" for number in range(self.workers)]
        ends = [{"ipAddress": a, "accessConfig": {"externalIp": a}} for a in addresses]
        return {
            "name": f"{_PROJECT}/nodes/{name}",
            "apiVersion": "V2",
            "state": self.node,
            "createTime": self.names.get(name, {}).get("createTime"),
            "metadata": self.metadata,
            "networkEndpoints": ends,
        }


def _error(status: int, message: str) -> tuple[int, dict]:
    return status, {"error": {"code": status, "message": message, "status": _NAMES[status]}}


def log_in(folder: pathlib.Path, **addresses: str) -> dict[str, str]:
    """Return the variables of a gcloud that has a token in `folder` and calls these addresses."""
    (folder / "token").write_text(f"{TOKEN}\n")
    return {
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(folder / "token"),
    } | {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": at for api, at in addresses.items()}


@contextmanager
def serving(answer: Callable[[str, str, dict], tuple[int, dict]]) -> Iterator[str]:
    """Serve answers to (method, path, body) on a port of this machine; yield the address."""
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            with lock:
                status, said = answer(self.command, self.path, body)
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = reply

        def log_message(self, *arguments: object) -> None:
            """Print nothing: `requests` has every request."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
