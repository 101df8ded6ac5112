"""A stand-in for Google Cloud on this machine, for a real gcloud to talk to: TPU API, ssh and scp.

It shows that gcloud takes the commands and what it makes of them. It knows nothing of quota, access
rights, images, firewalls or TPUs.
"""

import http.server
import json
import pathlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.launch.scripts import write_command

_PATH = re.compile(
    r"/(?P<version>\w+)/(projects/[^/]+/locations/[^/]+/)?(?P<what>[^?]*)\??(?P<query>.*)"
)
_DONE = {"name": "projects/my-project/locations/us-central2-b/operations/1", "done": True}
_SSH = """\
address=${destination#*@}
home=$WORKERS/worker-${address##*.}
mkdir -p "$home"
cd "$home"
export HOME=$home HOSTNAME=${home##*/} PATH=$WORKER_PATH
"""


class TpuApi:
    """Queued resources that are active at once, each with a TPU VM of some workers.

    requests: what was asked of the TPU API, as (method, path from the zone on, body).
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.requests: list[tuple[str, str, dict]] = []
        self.names: dict[str, dict] = {}  # of a queued resource -> what was asked for
        self.metadata: dict = {}  # gcloud keeps its public ssh key there

    def answer(self, method: str, path: str, body: dict) -> tuple[int, dict]:
        found = _PATH.match(path)
        if found is None:
            return 404, {"error": {"code": 404, "message": f"no such path: {path}"}}
        if found["version"] != "v2":  # the Compute API, asked for the project's settings
            return 200, {"name": "my-project", "commonInstanceMetadata": {}}
        self.requests.append((method, found["what"], body))
        kind, _, name = found["what"].partition("/")
        if kind == "operations":
            return 200, _DONE | {"response": self._node("my-tpu")}
        if kind == "queuedResources" and method == "POST":
            self.names[re.findall("queuedResourceId=([^&]+)", found["query"])[0]] = body
        elif name not in self.names:
            return 404, {"error": {"code": 404, "message": f"{name} was not found"}}
        if kind == "queuedResources" and method == "DELETE":
            del self.names[name]
        if method == "PATCH":
            self.metadata = body["metadata"]
        if method != "GET":
            return 200, _DONE | {"response": {}}
        if kind == "queuedResources":
            return 200, {"name": name, "state": {"state": "ACTIVE"}} | self.names[name]
        return 200, self._node(name)

    def _node(self, name: str) -> dict:
        addresses = [f"203.0.113.{number}" for number in range(self.workers)]
        return {
            "name": f"projects/my-project/locations/us-central2-b/nodes/{name}",
            "apiVersion": "V2",
            "state": "READY",
            "metadata": self.metadata,
            "networkEndpoints": [
                {"ipAddress": address, "accessConfig": {"externalIp": address}}
                for address in addresses
            ],
        }


@contextmanager
def serving(api: TpuApi) -> Iterator[str]:
    """Answer on a port of this machine; gives the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
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


def write_ssh(folder: pathlib.Path) -> None:
    """Commands ssh, scp and ssh-keygen: a worker is a folder of WORKERS, named by its address.

    WORKER_PATH is the PATH that a command has there.
    """
    write_command(
        folder / "ssh",
        "while (($#)) && [[ $1 != *@* ]]; do shift; done",
        "destination=$1 && shift",
        "[[ $1 != -- ]] || shift",
        _SSH,
        'exec bash -c "$*"',
    )
    write_command(
        folder / "scp",
        "source=${*: -2:1} destination=${*: -1}",
        "name=${destination#*:} destination=${destination%%:*}",
        _SSH,
        'cp "$source" "$name"',
    )
    write_command(
        folder / "ssh-keygen",
        "while (($#)) && [[ $1 != -f ]]; do shift; done",
        "(($#)) || exit 0",
        'echo private >"$2"',
        'echo "ssh-rsa AAAA me@here" >"$2.pub"',
    )
