"""Checkpoints of the hub, from a stand-in that serves a folder over HTTP on this machine."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse

import pytest

from bert_jax import hub, pretrained
from tests.bert_jax import small_checkpoints
from tests.faults.runs import ROOT

SHA = "1" * 40
FETCH = """
import sys
from bert_jax import hub
for where in sys.argv[1:]:
    try:
        print("folder", hub.fetch(where))
    except (ValueError, OSError) as error:
        print(type(error).__name__, error)
"""

pytest.importorskip("huggingface_hub")


class StandIn(http.server.BaseHTTPRequestHandler):
    """Two calls of the hub's API: what a model has, and one of its files."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = urllib.parse.unquote(self.path.partition("?")[0])
        self.server.asked.append(f"{self.command} {path}")
        if "/gated" in path:
            self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif "/small/revision/v9" in path:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif path in ("/api/models/org/small", f"/api/models/org/small/revision/{SHA}"):
            files = sorted(self.server.folder.iterdir())
            siblings = [{"rfilename": one.name, "size": one.stat().st_size} for one in files]
            info = {"id": "org/small", "sha": SHA, "siblings": siblings}
            self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        elif path.startswith((f"/org/small/resolve/{SHA}/", "/org/small/resolve/main/")):
            data = (self.server.folder / path.rpartition("/")[2]).read_bytes()
            etag = hashlib.sha256(data).hexdigest()
            self.answer(200, data, {"X-Repo-Commit": SHA, "ETag": f'"{etag}"'})
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status, data, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def server(tmp_path):
    held = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    held.asked = []
    held.folder = small_checkpoints.write(tmp_path / "published", small_checkpoints.tensors())
    (held.folder / "README.md").write_text("a card")
    (held.folder / "pytorch_model.bin").write_bytes(b"a pickle")
    threading.Thread(target=held.serve_forever, daemon=True).start()
    yield held
    held.shutdown()
    held.server_close()


def fetch(server, home, *names, **changed):
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", FETCH, *names],
        cwd=ROOT,
        env=os.environ | settings | changed,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_model_is_downloaded_read_and_taken_from_the_cache_offline(server, tmp_path):
    home = tmp_path / "home"
    announced, folder = fetch(server, home, "org/small")
    assert announced.startswith(f"hf:org/small at {SHA[:12]} of the Hugging Face hub: 3 files, ")
    place = folder.removeprefix("folder ")
    ours = pretrained.load(f"hf:{server.folder}")
    theirs = pretrained.load(f"hf:{place}")
    assert theirs.config == ours.config and theirs.vocabulary.pieces() == ours.vocabulary.pieces()
    assert not [one for one in server.asked if "README" in one or "pytorch" in one]
    downloads = len([one for one in server.asked if one.startswith("GET /org/")])
    fetch(server, home, "org/small")
    assert len([one for one in server.asked if one.startswith("GET /org/")]) == downloads
    assert fetch(server, home, "org/small", HF_HUB_OFFLINE="1") == [folder]
    nobody = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert fetch(server, home, "org/small", **nobody) == [folder]


def test_what_the_hub_does_not_give_is_a_sentence(server, tmp_path):
    names = ["org/none", "org/gated", "org/small@v9"]
    unknown, gated, revision = fetch(server, tmp_path / "home", *names)
    assert unknown.startswith("ValueError the checkpoint 'hf:org/none' is not a folder")
    assert "no such model, or not for this account" in unknown
    assert gated.startswith("ValueError hf:org/gated is for accounts") and "HF_TOKEN" in gated
    assert revision == "ValueError org/small has no revision 'v9' on the Hugging Face hub"
    (said,) = fetch(server, tmp_path / "home", "org/small", HF_HUB_OFFLINE="1")
    assert said.startswith("OSError hf:org/small is neither a folder of this machine nor in the")
    for name in ("model.safetensors", "config.json"):
        (server.folder / name).unlink()
        (said,) = fetch(server, tmp_path / "home", "org/small")
        assert said.startswith("ValueError hf:org/small on the Hugging Face hub") and name in said


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"'hf:org/name' is not a folder .* pip install hugg"):
        pretrained.load("hf:org/name")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("bert-base-uncased", True),
        ("google-bert/bert-base-uncased", True),
        ("org/name@v1.0", True),
        ("org/name@refs/pr/1", True),
        ("/absolute/path", False),
        ("./there", False),
        ("a/b/c", False),
        ("../up", False),
        ("org/name@", False),
        ("a b", False),
        ("", False),
    ],
)
def test_what_can_be_a_name(where, expected):
    assert hub.is_name(where) is expected
