"""Checkpoints of the hub, from a stand-in that serves a folder over HTTP on this machine."""

import base64
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse

import pytest

from bert_jax.inference import sentence_modules
from bert_jax.interop import hub, load
from data_pipeline.io import Refused
from tests.bert_jax import small_checkpoints
from tests.faults.runs import ROOT

SHA = "1" * 40
pytest.importorskip("huggingface_hub")


class StandIn(http.server.BaseHTTPRequestHandler):
    """The calls of the hub's API for what a model has, one of its files, and an upload.

    Every file is taken within the commit; the hub itself has large ones sent to other storage.
    """

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = urllib.parse.unquote(self.path.partition("?")[0])
        self.server.asked.append(f"{self.command} {path}")
        if path == "/api/whoami-v2":
            if self.headers.get("Authorization") != "Bearer hf_secret":
                return self.answer(401, b"", {})
            account = {"type": "user", "name": "me", "orgs": [{"name": "org"}]}
            self.answer_json(account)
        elif path == "/api/models/me/mine/tree/main":
            file = {"type": "file", "oid": SHA, "size": 1}
            self.answer_json([file | {"path": name} for name in self.server.files])
        elif path == "/api/models/org/open":
            self.answer_json({"id": "org/open", "sha": SHA, "private": False, "siblings": []})
        elif "/gated" in path:
            self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif "/small/revision/v9" in path:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif path in ("/api/models/org/small", f"/api/models/org/small/revision/{SHA}"):
            folder = self.server.folder
            files = sorted(file for file in folder.rglob("*") if file.is_file())
            siblings = [
                {"rfilename": str(file.relative_to(folder)), "size": file.stat().st_size}
                for file in files
            ]
            siblings.append({"rfilename": "other/spiece.model", "size": 3})
            self.answer_json({"id": "org/small", "sha": SHA, "siblings": siblings})
        elif path.startswith("/api/models/") and self.server.info is not None:
            self.answer(200, self.server.info, {"Content-Type": "application/json"})
        elif path.startswith(f"/org/circle/resolve/{SHA}/"):
            self.answer(307, b"", {"Location": self.path})
        elif path.startswith(f"/org/other/resolve/{SHA}/"):
            self.answer(200, b"mine", {"X-Repo-Commit": SHA, "ETag": "abc"} | self.server.headers)
        elif path.startswith((f"/org/small/resolve/{SHA}/", "/org/small/resolve/main/")):
            data = (self.server.folder / path.split("/", 5)[5]).read_bytes()
            etag = hashlib.sha256(data).hexdigest()
            self.answer(200, data, {"X-Repo-Commit": SHA, "ETag": f'"{etag}"'})
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def do_POST(self):
        path = urllib.parse.unquote(self.path.partition("?")[0])
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(f"POST {path}")
        place = f"http://127.0.0.1:{self.server.server_port}/me/mine"
        if path == "/api/repos/create":
            self.server.created.append(json.loads(data))
            self.answer_json({"url": place, "id": "me/mine"})
        elif path == "/api/validate-yaml":
            self.answer_json({"errors": [], "warnings": []})
        elif path == "/api/models/me/mine/preupload/main" and not self.server.is_full:
            names = [file["path"] for file in json.loads(data)["files"]]
            modes = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
            self.answer_json({"files": modes})
        elif path == "/api/models/me/mine/commit/main":
            for line in map(json.loads, data.splitlines()):
                value = line["value"]
                if line["key"] == "deletedFile":
                    self.server.files.remove(value["path"])
                if line["key"] == "file":
                    self.server.uploaded[value["path"]] = base64.b64decode(value["content"])
            done = {"commitUrl": f"{place}/commit/{SHA}", "commitOid": SHA}
            self.answer_json(done | {"hookOutput": "", "success": True})
        else:
            self.answer(507, b"", {})

    def answer_json(self, content):
        self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def answer(self, status, data, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def server(tmp_path):
    held = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    held.asked, held.created, held.uploaded, held.is_full = [], [], {}, False
    held.info, held.headers, held.files = None, {}, []
    held.folder = small_checkpoints.write(tmp_path / "published", small_checkpoints.tensors())
    (held.folder / "README.md").write_text("a card")
    (held.folder / "pytorch_model.bin").write_bytes(b"a pickle")
    threading.Thread(target=held.serve_forever, args=(0.01,), daemon=True).start()
    yield held
    held.shutdown()
    held.server_close()


@pytest.fixture
def asked_here(server, tmp_path, monkeypatch):
    """This process asks the stand-in, whose cache is tmp_path/home/cache, without a token."""
    from huggingface_hub import constants

    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    hub.fetch.cache_clear()
    yield server
    hub.fetch.cache_clear()


@pytest.fixture
def cut_off_from_hub(asked_here, monkeypatch):
    """A function that cuts this process off: it asks nobody, or nobody answers."""
    from huggingface_hub import constants

    def cut_off(how):
        hub.fetch.cache_clear()
        names = {"offline": ("HF_HUB_OFFLINE", True), "nobody": ("ENDPOINT", "http://127.0.0.1:9")}
        monkeypatch.setattr(constants, *names[how])

    return cut_off


def upload(folder, name, is_public=False):
    hub.check_upload(name, is_public)
    return hub.upload(folder, name, is_public)


def test_the_files_of_sentence_transformers_come_along(asked_here):
    (asked_here.folder / "modules.json").write_text(
        '[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}]'
    )
    for name in ("1_Pooling", "zz_others"):
        (asked_here.folder / name).mkdir()
        (asked_here.folder / name / "config.json").write_text('{"pooling_mode": "cls"}')
    folder = hub.fetch("org/small")
    assert sentence_modules.read(folder) == sentence_modules.SentenceVectors("cls")
    assert not (folder / "zz_others").exists()


def test_a_model_is_downloaded_read_and_taken_from_the_cache_offline(
    asked_here, cut_off_from_hub, capsys
):
    folder = hub.fetch("org/small")
    announced = f"hf:org/small at {SHA[:12]} of the Hugging Face hub: 3 files, "
    assert capsys.readouterr().out.startswith(announced)
    ours, theirs = load.load(f"hf:{asked_here.folder}"), load.load(f"hf:{folder}")
    assert theirs.config == ours.config and theirs.vocabulary.pieces() == ours.vocabulary.pieces()
    assert not [one for one in asked_here.asked if "README" in one or "pytorch" in one]
    asked_here.asked.clear()
    hub.fetch.cache_clear()
    assert hub.fetch("org/small") == folder
    assert not [one for one in asked_here.asked if one.startswith("GET /org/")]
    for how in ("nobody", "offline"):
        cut_off_from_hub(how)
        assert hub.fetch("org/small") == folder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/none", "'hf:org/none' is not a folder.*no such model, or hides it from this account"),
        ("org/gated", "^hf:org/gated is open only to accounts.*HF_TOKEN"),
        ("org/small@v9", "^org/small has no revision 'v9' on the Hugging Face hub$"),
    ],
)
@pytest.mark.usefixtures("asked_here")
def test_what_the_hub_does_not_give_is_refused(name, words):
    with pytest.raises(Refused, match=words):
        hub.fetch(name)


def test_a_file_that_the_hub_lacks_is_named(asked_here, cut_off_from_hub):
    for name in ("model.safetensors", "config.json"):
        (asked_here.folder / name).unlink()
        with pytest.raises(Refused, match=f"^hf:org/small on the Hugging Face hub.*{name}"):
            hub.fetch("org/small")
    cut_off_from_hub("offline")
    with pytest.raises(OSError, match=r"^hf:org/small is neither .* try again with a network$"):
        hub.fetch("org/small")


NO_INFO = {
    "a list": b"[1, 2]",
    "a page": b"<!DOCTYPE html><html>Sign in</html>",
    "nothing": b"",
    "cut": b'{"id": "org/other", "sib',
    "a name that is a number": {"siblings": [{"rfilename": 5}]},
    "a file that is a text": {"siblings": ["config.json"]},
    "names that are a number": {"siblings": 3},
    "no commit": {"siblings": [{"rfilename": "config.json"}], "sha": None},
    "a commit that leads elsewhere": {"siblings": [{"rfilename": "config.json"}], "sha": "../x"},
    "a size without end": {"siblings": [{"rfilename": "config.json", "size": 10**400}]},
    "a size that is a text": {"siblings": [{"rfilename": "config.json", "size": "5"}]},
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", NO_INFO)
def test_an_answer_that_describes_no_model_is_refused(asked_here, kind):
    info = NO_INFO[kind]
    if isinstance(info, dict):
        info = json.dumps({"id": "org/other", "sha": SHA} | info).encode()
    asked_here.info = info
    with pytest.raises(Refused, match=r"hf:org/other.* hub at http://127.*HF_ENDPOINT"):
        hub.fetch("org/other")


def describe_files(name):
    siblings = [{"rfilename": file} for file in ("config.json", "model.safetensors")]
    return json.dumps({"id": name, "sha": SHA, "siblings": siblings}).encode()


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"../../../outside"'},
        {"ETag": "/tmp/outside"},
        {"ETag": ".."},
        {"ETag": "a" * 300},
        {"X-Linked-Etag": '"../outside"'},
        {"X-Repo-Commit": "../../outside"},
        {"X-Repo-Commit": "2" * 40},
    ],
)
def test_an_answer_about_a_file_that_leads_out_of_the_cache_is_refused(
    asked_here, tmp_path, headers
):
    asked_here.info, asked_here.headers = describe_files("org/other"), headers
    before = {path for path in tmp_path.rglob("*") if "published" not in path.parts}
    with pytest.raises(Refused, match=r"hf:org/other.* hub at http://127"):
        hub.fetch("org/other")
    assert {path for path in tmp_path.rglob("*") if "published" not in path.parts} == before


def test_redirects_in_a_circle_end(asked_here, monkeypatch):
    monkeypatch.setattr(hub, "_ANSWER_SECS", 0.5)
    asked_here.info = describe_files("org/circle")
    with pytest.raises(OSError, match=r"hf:org/circle is neither a folder .* nor in the hub's"):
        hub.fetch("org/circle")


def test_a_hub_that_is_late_may_be_asked_again(cut_off_from_hub):
    cut_off_from_hub("nobody")
    with pytest.raises(ConnectionError, match="hf:org/other is neither a folder"):
        hub.fetch("org/other")


def test_an_export_is_uploaded_privately_unless_it_is_to_be_public(
    asked_here, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    folder = small_checkpoints.write(tmp_path / "export", small_checkpoints.tensors())
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    for is_public in (False, True):
        asked_here.uploaded.clear()
        page = upload(folder, "me/mine", is_public)
        assert page.startswith("http://127.0.0.1:") and page.endswith("/me/mine")
        assert asked_here.uploaded == files
        created = asked_here.created.pop()
        assert created["name"] == "mine" and created.get("organization", "me") == "me"
        is_private = created.get("private") is True or created.get("visibility") == "private"
        assert is_private is not is_public  # the key is another since huggingface_hub 2
    kept, stale = ["README.md", "LICENSE", "vocab.txt"], "model-00001-of-00002.safetensors"
    asked_here.files = [*kept, stale, "model.safetensors.index.json", "spiece.model"]
    upload(folder, "me/mine")
    assert asked_here.files == kept
    asked_here.is_full = True
    with pytest.raises(OSError, match=r"^the Hugging Face hub cannot be asked: .*507"):
        upload(folder, "me/mine")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.parametrize(
    ("name", "token", "offline", "kind", "words"),
    [
        ("me/mine", "", "", Refused, "HF_TOKEN"),
        ("me/mine", "hf_wrong", "", Refused, "does not accept the token"),
        ("you/mine", "hf_secret", "", Refused, "may write to me, org"),
        ("org/open", "hf_secret", "", Refused, "--public=true"),
        ("me/mine", "hf_secret", "offline", OSError, "asked"),
        ("me/mine", "hf_secret", "nobody", ConnectionError, "asked"),
    ],
)
def test_what_cannot_be_uploaded_is_refused(
    asked_here, cut_off_from_hub, monkeypatch, name, token, offline, kind, words
):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    if offline:
        cut_off_from_hub(offline)
    with pytest.raises(kind, match=words) as refused:
        upload(asked_here.folder, name)
    assert "hf_secret" not in str(refused.value)
    assert not asked_here.created and not asked_here.uploaded


@pytest.mark.long
def test_convert_uploads_what_it_has_proven(server, tmp_path):
    out = tmp_path / "out"
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "hf_secret",
        "JAX_PLATFORMS": "cpu",
    }
    given = [f"--from=hf:{server.folder}", f"--to=hf:{out}", "--push_to_hub=me/mine"]
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax.convert", *given],
        cwd=ROOT,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hf_secret" not in done.stdout + done.stderr
    written = [path for path in out.rglob("*") if path.is_file()]
    files = {path.relative_to(out).as_posix(): path.read_bytes() for path in written}
    assert "model.safetensors" in files and not any(b"hf_secret" in data for data in files.values())
    assert server.uploaded == files and "/me/mine" in done.stdout
    assert b".from_pretrained('me/mine')" in files["README.md"]


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"'hf:org/name' is not a folder .* pip install hugg"):
        load.load("hf:org/name")
    with pytest.raises(ValueError, match=r"--push_to_hub is 'me/mine'.* pip install hugg"):
        hub.check_upload("me/mine", is_public=False)


NAMES = (
    "bert-base-uncased",
    "google-bert/bert-base-uncased",
    "org/name@v1.0",
    "org/name@refs/pr/1",
)
NO_NAMES = (
    "/absolute/path",
    "./there",
    "a/b/c",
    "../up",
    "me/../up",
    "me/",
    "org/name@",
    "a b",
    "",
)


def test_what_can_be_a_name():
    assert all(map(hub.is_name, NAMES)) and not any(map(hub.is_name, NO_NAMES))
    for name in (*NO_NAMES, "mine", "me/mine@v1", "a b/c"):  # an upload needs ORG/NAME
        with pytest.raises(ValueError, match="--push_to_hub is "):
            hub.check_upload(name, is_public=False)
