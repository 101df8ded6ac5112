"""Serve a bucket on this machine: gcp-storage-emulator in a thread, with planted faults.

It adds to the emulator the generation of each object, and conditions on it in reads and writes, as
Google has them: TensorStore and the lock of a workdir rely on both.
"""

import contextlib
import dataclasses
import functools
import io
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http import server

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

NAME = "bert-runs"


@dataclasses.dataclass
class Fault:
    """Describe the answer to requests with one of these methods and a path with this pattern."""

    methods: tuple[str, ...]
    path: str = ""
    status: int = 503
    message: str = "Service Unavailable"
    times: float = float("inf")
    delay_secs: float = 0.0


def denied(permission: str, *methods: str, path: str = "") -> Fault:
    """Return the fault of a missing permission, in Google's words."""
    account = "trainer@project.iam.gserviceaccount.com"
    message = (
        f"{account} does not have {permission} access to the Google Cloud Storage object. "
        f"Permission '{permission}' denied on resource (or it may not exist)."
    )
    return Fault(methods, path, 403, message)


class _Handler(RequestHandler):
    def __init__(self, bucket: "FakeBucket", *rest: object) -> None:
        self.bucket = bucket
        super().__init__(bucket.storage, *rest)

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that has gone
            super().handle_one_request()

    def _answered(self, method: str) -> bool:
        """Answer by a fault or a failed write condition, if any; return whether it did."""
        self.bucket.requests.append((method, urllib.parse.unquote(self.path)))
        for fault in self.bucket.faults:
            known = method in fault.methods and re.search(fault.path, self.bucket.requests[-1][1])
            if not known or fault.times < 1:
                continue
            fault.times -= 1
            time.sleep(fault.delay_secs)
            if fault.status:
                self._answer(fault.status, fault.message)
                return True
        return self._condition_fails(method)

    def _condition_fails(self, method: str) -> bool:
        """Refuse a request for another generation of its object; return whether it did."""
        query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
        if "ifGenerationMatch" in query and method != "GET":
            if query["ifGenerationMatch"] != [self._generation(query)]:
                self._answer(412, "At least one of the pre-conditions you specified did not hold.")
                return True
        elif "ifGenerationNotMatch" in query and query["ifGenerationNotMatch"] == [
            self._generation(query)
        ]:
            self._answer(304, "")
            return True
        return False

    def _generation(self, query: dict[str, list[str]]) -> str:
        """Return the generation of the object that a request names, "0" without one."""
        name = query.get("name") or re.findall("/o/([^?]+)", self.path)
        if not name:  # gcsfs names it in the body
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.rfile = io.BytesIO(body)
            name = re.findall(r'"name": ?"([^"]+)"', body[:2000].decode("latin1"))
        try:
            found = self.bucket.storage.get_file_obj(NAME, urllib.parse.unquote(name[0]))
        except NotFound:
            return "0"
        return str(found["generation"])

    def end_headers(self) -> None:
        """Add the generation of the object, which TensorStore reads, to the headers."""
        if self.command == "GET" and "alt=media" in self.path:
            self.send_header("X-Goog-Generation", self._generation({}))
        super().end_headers()

    def _answer(self, status: int, message: str) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({"error": {"code": status, "message": message}}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _end_part(self) -> None:
        r"""End the last part of an upload with \r\n, where gcsfs writes \n.

        The emulator's parser would take a \r at the end of a file for a part of that line's end.
        """
        end = b"\n--==0==--"
        kind, length = self.headers.get("Content-Type", ""), self.headers.get("Content-Length")
        if kind.startswith("multipart/related") and length:
            body = self.rfile.read(int(length))
            if body.endswith(end):
                body = body.removesuffix(end) + b"\r" + end
            self.headers.replace_header("Content-Length", str(len(body)))
            self.rfile = io.BytesIO(body)

    def _answer_or_pass(method: str):
        def answer(self) -> None:
            self._end_part()
            if not self._answered(method):
                getattr(RequestHandler, f"do_{method}")(self)

        return answer

    do_GET, do_POST, do_PUT, do_DELETE = map(_answer_or_pass, ("GET", "POST", "PUT", "DELETE"))


class FakeBucket:
    """Run the server; `faults` may be changed at any time."""

    def __init__(self) -> None:
        self.storage = Storage(use_memory_fs=True)
        buckets.create_bucket(NAME, self.storage)
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.server = server.HTTPServer(("127.0.0.1", 0), functools.partial(_Handler, self))
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """Return variables that lead gcsfs, Google's client and TensorStore here without login."""
        url = f"http://127.0.0.1:{self.server.server_port}"
        return {
            "STORAGE_EMULATOR_HOST": url,
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # would ask Google for the kind of bucket
            "GOOGLE_CLOUD_PROJECT": "project",
            "NO_GCE_CHECK": "true",
        }

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder of the bucket."""
        found, _ = self.storage.get_file_list(NAME, prefix=f"{folder}/" if folder else None)
        return [one["name"] for one in found]

    def text(self, name: str) -> str:
        """Return the text of an object, "" without one."""
        try:
            return bytes(self.storage.get_file(NAME, name)).decode()
        except NotFound:
            return ""

    def delete(self, name: str) -> None:
        self.storage.delete_file(NAME, name)


@contextlib.contextmanager
def fake_bucket() -> Iterator[FakeBucket]:
    """Yield a bucket called NAME."""
    bucket = FakeBucket()
    try:
        yield bucket
    finally:
        bucket.server.shutdown()
        bucket.server.server_close()
