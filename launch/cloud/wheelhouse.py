"""Copy to the bucket what workers without internet install: uv, Python 3.12, packages."""

import re
import shlex
import shutil
from collections.abc import Sequence

from .cluster import ROOT, Cluster
from .job import find_commit, find_digest
from .run import Command, ask, run_all
from .text import refuse

# The platforms whose wheels a worker (glibc 2.31 or newer) can use, newest first.
_PLATFORMS = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(31, 4, -1)]
_PLATFORMS += [f"--platform=manylinux{name}_x86_64" for name in ("2014", "2010", "1")]
_ARCHIVE = re.compile(
    r"https://[A-Za-z0-9:/._%+-]+-x86_64-unknown-linux-gnu-install_only_stripped\.tar\.gz"
)
_NAME = re.compile(r"[A-Za-z0-9._+-]+/[A-Za-z0-9._+-]+")


def copy_packages(cluster: Cluster, revision: str, python: str, is_dry_run: bool) -> int:
    """Download, check and copy about 1 GB to BUCKET/wheelhouse/DIGEST; return the exit code."""
    bucket, project = (
        cluster.need_bucket("and the packages go there"),
        f"--project={cluster.get('PROJECT')}",
    )
    commit = find_commit(revision)
    digest = find_digest(commit)
    folder, house = ROOT / "build" / "wheelhouse" / digest, f"{bucket}/wheelhouse/{digest}"
    if not is_dry_run and (
        ask(Command([python, "-m", "pip", "--version"])).code or not shutil.which("curl")
    ):
        refuse(
            f"--python={python} has no pip, or curl is not on PATH; try --python=.venv/bin/python"
        )
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    packages = [*pip, "download", "--quiet", "--no-deps", "--require-hashes", "--implementation=cp"]
    requirements = [f"--requirement={folder}/requirements/{name}.txt" for name in ("tpu", "uv")]
    into = f"--dest={folder}/wheels"
    uv = [*pip, "install", "--quiet", f"--target={folder}/uv", "--upgrade", "--no-deps"]
    steps = [
        ["mkdir", "-p", f"{folder}/wheels"],
        [
            "git",
            "-C",
            str(ROOT),
            "archive",
            f"--output={folder}/requirements.tar",
            commit,
            "requirements",
        ],
        ["tar", "-xf", f"{folder}/requirements.tar", "-C", str(folder)],
        [*packages, "--prefer-binary", "--python-version=3.12", *_PLATFORMS, into, requirements[0]],
        [
            *packages,
            "--only-binary=:all:",
            "--python-version=3.10",
            *_PLATFORMS,
            into,
            requirements[1],
        ],
        [*uv, "--only-binary=:all:", "--require-hashes", requirements[1]],
    ]
    listing = [
        f"{folder}/uv/bin/uv",
        "python",
        "list",
        "3.12",
        "--only-downloads",
        "--all-platforms",
    ]
    listing += ["--all-arches", "--output-format=json"]
    if code := run_all([Command(step) for step in steps], is_dry_run):
        return code
    steps = _fetch_python(listing, str(folder), is_dry_run)
    # The last file tells the workers that nothing is missing.
    steps += [
        [
            "gcloud",
            "storage",
            "rsync",
            "--recursive",
            f"{folder}/{name}",
            f"{house}/{name}",
            project,
        ]
        for name in ("wheels", "python")
    ]
    steps += [
        ["gcloud", "storage", "cp", f"{folder}/requirements/tpu.txt", f"{house}/complete", project]
    ]
    code = run_all([Command(step) for step in steps], is_dry_run)
    if not code and not is_dry_run:
        print(f"Ready: {cluster.next_command('setup', '--wheelhouse')}")
    return code


def _fetch_python(listing: Sequence[str], folder: str, is_dry_run: bool) -> list[list[str]]:
    """Return what downloads the Python that this uv names, whose hash it checks on the worker."""
    url, name = "URL", "FILE"
    if is_dry_run:
        print(shlex.join(listing))
    else:
        found = _ARCHIVE.search(ask(Command(list(listing))).out)
        url = found[0] if found else ""
        # uv looks for DATE/FILE in a mirror, as the address ends.
        name = url.rpartition("/download/")[2].replace("%2B", "+")
        if not _NAME.fullmatch(name) or ".." in name.split("/"):
            refuse(
                f"uv names the Python '{url}' for x86 Linux, which is not DATE/FILE of a release"
            )
    path = f"{folder}/python/{name}"
    curl = ["curl", "--fail", "--silent", "--show-error", "--location", "--output", path, url]
    return [["mkdir", "-p", path.rpartition("/")[0]], curl]
