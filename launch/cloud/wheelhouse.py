"""Copy to the bucket what workers without internet install: uv, Python 3.12, packages."""

import re
import shutil
from argparse import Namespace
from types import ModuleType

from .cluster import ROOT
from .job import find_commit, find_digest
from .run import Command, ask, make, run_all
from .text import refuse

# The platforms whose wheels a worker (glibc 2.31 or newer) can use, newest first.
_PLATFORMS = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(31, 4, -1)]
_PLATFORMS += [f"--platform=manylinux{name}_x86_64" for name in ("2014", "2010", "1")]
# uv looks for its DATE/FILE in a mirror.
_ARCHIVE = re.compile(
    r"https://[\w:/.%+-]+/download/"
    r"(\d+/[\w.%+-]+-x86_64-unknown-linux-gnu-install_only_stripped\.tar\.gz)"
)


def wheelhouse(given: Namespace, road: ModuleType) -> int:
    """Copy to BUCKET/wheelhouse/DIGEST what workers without internet install.

    Python 3.12 and the packages of requirements/tpu.txt and uv.txt, each checked against its hash:
    about 1 GB, once for all commits with the same packages. This machine needs the internet, git
    and curl.
    """
    cluster, python, is_dry_run = given.cluster, given.python, given.dry_run
    bucket = cluster.need("BUCKET", "and the packages go there")
    project, commit = cluster.project, find_commit(given.revision or "")
    digest = find_digest(commit)
    folder, house = f"{ROOT}/build/wheelhouse/{digest}", f"{bucket}/wheelhouse/{digest}"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    if not is_dry_run and (ask(Command([*pip, "--version"])).code or not shutil.which("curl")):
        refuse(f"--python={python} has no pip, or curl is not on PATH; try .venv/bin/python")
    safe = ["--quiet", "--no-deps", "--require-hashes"]
    wheels = [*pip, "download", *safe, "--implementation=cp"]
    tpu, uv = (f"--requirement={folder}/requirements/{name}.txt" for name in ("tpu", "uv"))
    into = [*_PLATFORMS, f"--dest={folder}/wheels"]
    install = [*pip, "install", "--upgrade", *safe, "--only-binary=:all:"]
    archive = ["archive", f"--output={folder}/requirements.tar", commit, "requirements"]
    commands = [
        make("mkdir -p", f"{folder}/wheels"),
        make("git -C", str(ROOT), *archive),
        make("tar -xf", f"{folder}/requirements.tar", "-C", folder),
        Command([*wheels, "--prefer-binary", "--python-version=3.12", *into, tpu]),
        Command([*wheels, "--only-binary=:all:", "--python-version=3.10", *into, uv]),
        Command([*install, f"--target={folder}/uv", uv]),
    ]
    if code := run_all(commands, is_dry_run):
        return code
    sync, complete = "gcloud storage rsync --recursive", f"{folder}/requirements/tpu.txt"
    commands = [
        *_fetch_python(folder, is_dry_run),
        *(make(sync, f"{folder}/{n}", f"{house}/{n}", project) for n in ("wheels", "python")),
        # The last file tells the workers that nothing is missing.
        make("gcloud storage cp", complete, f"{house}/complete", project),
    ]
    code = run_all(commands, is_dry_run)
    if not code and not is_dry_run:
        print(f"Ready: {cluster.next_command('setup', '--wheelhouse')}")
    return code


def _fetch_python(folder: str, is_dry_run: bool) -> list[Command]:
    """Return the download of the Python that this uv names; uv on the worker checks its hash."""
    url, name = "URL", "FILE"
    flags = ["--only-downloads", "--all-platforms", "--all-arches", "--output-format=json"]
    listing = Command([f"{folder}/uv/bin/uv", "python", "list", "3.12", *flags])
    if is_dry_run:
        listing.print()
    else:
        if not (found := _ARCHIVE.search(ask(listing).out)):
            refuse("uv names no Python 3.12 for x86 Linux at an address that ends in DATE/FILE")
        url, name = found[0], found[1].replace("%2B", "+")
    path = f"{folder}/python/{name}"
    curl = "curl --fail --silent --show-error --location --output"
    return [make("mkdir -p", path.rpartition("/")[0]), make(curl, path, url)]
