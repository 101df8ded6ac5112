"""Describe what the machines receive: a commit of the clone, packages, training flags."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from .cluster import ROOT, Cluster
from .run import Command, make
from .text import escape, refuse

SET_UP_SECS = 3600


@dataclasses.dataclass(frozen=True)
class Job:
    """Hold commit, flags, whether packages come from the bucket, the config's store."""

    cluster: Cluster
    flags: tuple[str, ...] = ()
    commit: str = ""
    from_bucket: bool = False
    store: str = ""

    def find(self, name: str) -> str:
        """Return the value of a training flag, the last one if repeated; '' without one."""
        start = f"--{name}="
        return next((f.removeprefix(start) for f in self.flags[::-1] if f.startswith(start)), "")

    @property
    def workdir(self) -> str:
        """Return the workdir without a slash at its end: two spellings of a folder are one run."""
        return self.find("workdir").rstrip("/") or self.find("workdir")

    @property
    def archive(self) -> pathlib.Path:
        """Return where the commit is packed, in build/, which git ignores."""
        return ROOT / "build" / "launch" / f"bert_jax-{self.commit}.tar.gz"

    @property
    def wheelhouse(self) -> str:
        """Return where the bucket has the packages; '' where they come from the internet."""
        if not (self.from_bucket or self.cluster.is_internal):
            return ""
        bucket = self.cluster.need("BUCKET", "but workers install from it")
        return f"{bucket}/wheelhouse/{find_digest(self.commit)}"

    def pack(self) -> list[Command]:
        """Return the commands that check the bucket's packages, and pack the commit."""
        look = make(f"gcloud storage ls {self.wheelhouse}/complete {self.cluster.project}")
        return [
            *[look] * bool(self.wheelhouse),
            make("mkdir -p", str(self.archive.parent)),
            make("git -C", str(ROOT), "archive", f"--output={self.archive}", self.commit),
        ]


def _git(*words: str) -> tuple[int, str]:
    command = ["git", "-C", str(ROOT), *words]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", errors="surrogateescape")
    return ran.returncode, (ran.stderr if ran.returncode else ran.stdout).strip()


def find_commit(revision: str) -> str:
    """Return the full hash of a commit of the clone; '' is HEAD, with everything committed."""
    code, top = _git("rev-parse", "--show-toplevel") if shutil.which("git") else (1, "not on PATH")
    # macOS has several spellings of a name: another case, and accents in two forms.
    if code or not (os.path.exists(top) and os.path.samefile(top, ROOT)):
        refuse(f"{ROOT} is no clone of bert_jax, and a commit of one is sent (git: {top[:99]})")
    # No machine reads cluster.env.
    status = _git("status", "--porcelain", "--", ".", ":!launch/cluster.env")[1]
    changed = "" if revision else status.split("\n")[0]
    if changed:
        refuse(
            f"{ROOT} has uncommitted changes, such as '{changed}', and a commit is sent; "
            "commit them, or leave them out with --revision=HEAD"
        )
    revision, script = revision or "HEAD", "launch/worker/on_worker_setup.sh"
    code, commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}")
    if code or _git("cat-file", "-e", f"{commit}:{script}")[0]:
        refuse(f"--revision={revision} is no commit of {ROOT} that holds {script}; see git log")
    return commit


def find_digest(commit: str) -> str:
    """Return a name for the packages of a commit: git's hashes of the two files that pin them."""
    files = [f"{commit}:requirements/{name}.txt" for name in ("tpu", "uv")]
    return "-".join(_git("rev-parse", file)[1][:12] for file in files)


def check_config(job: Job) -> Job:
    """Return the job with its store; refuse, as bert_jax.train does, what workers would refuse.

    Resolved in the commit that is sent, or in the files here without one, by this Python or by
    BERT_JAX_PYTHON. Without bert_jax there, only the workers resolve it.
    """
    path, store = job.find("config").partition(":")[0], ""
    if os.path.isabs(path) and not os.path.isfile(path):
        _note(f"{path} is not on this machine, so only the workers resolve it")
    elif not job.commit:
        # In a wheel the package itself would hide other packages.
        is_clone = (ROOT / "bert_jax" / "train.py").exists()
        store = _resolve(ROOT if is_clone else pathlib.Path.cwd(), path, job.flags)
    else:
        with tempfile.TemporaryDirectory() as folder:
            pipe = ["bash", "-c", 'git -C "$0" archive "$1" | tar -xf - -C "$2"', str(ROOT)]
            ran = subprocess.run([*pipe, job.commit, folder], stderr=subprocess.PIPE)
            if ran.returncode:
                why = os.fsdecode(ran.stderr).split("\n")[0]
                refuse(f"the commit is not unpacked in {folder} ({why}); make room, or set TMPDIR")
            store = _resolve(pathlib.Path(folder), path, job.flags)
    return dataclasses.replace(job, store=store or job.find("config.data.store"))


def _note(words: str) -> None:
    print(escape(f"note: {words}"), file=sys.stderr)


def _resolve(folder: pathlib.Path, path: str, flags: Sequence[str]) -> str:
    named = os.environ.get("BERT_JAX_PYTHON") or sys.executable
    if (python := shutil.which(named)) is None:
        refuse(f"BERT_JAX_PYTHON={named} is no command; name a Python, or unset it")
    # A folder may be a store on the workers alone. A Python without jax ends with 1, wrong flags
    # with 2.
    for more in ([], ["--config.data.store="]):
        words = [os.path.abspath(python), "-m", "bert_jax.train", *flags, *more, "--print_config"]
        ran = subprocess.run(
            words, cwd=folder, env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        if ran.returncode != 2:
            break
    if ran.returncode == 0:
        return _check_resolved(ran.stdout)
    if ran.returncode == 2 and "error: " in ran.stderr:
        refuse(ran.stderr.rpartition("error: ")[2].split("\n")[0])
    if not os.path.isabs(path) and not (folder / path).is_file():
        refuse(f"--config={path}: there is no such file in {ROOT}")
    _note(f"{python} has no bert_jax, so only the workers resolve {path}")
    return ""


def _check_resolved(resolved: str) -> str:
    """Return the store; refuse what workers would: several slices, no folder for copies of it."""
    if slices := re.search(r"\n  num_slices: (?!1\n)(\d+)", resolved):
        refuse(f"config.mesh.num_slices is {slices[1]}, but one slice is created; leave it at 1")
    found = re.search(r"""\n  store: ["']?([^\n"']*)""", resolved)
    store = found[1] if found else ""
    if "://" in store and "\n  data_cache: ''" in resolved:
        refuse(
            f"config.data.store is {store}, which each host copies once, but config.data."
            "data_cache is empty; add --config.data.data_cache=FOLDER, such as /tmp/stores"
        )
    return store
