"""Read cluster.env and the flags of the scripts; each value is checked by its form."""

import argparse
import os
import pathlib
import re
import shlex
from collections.abc import Sequence
from typing import Any

from .text import escape, refuse
from .topologies import ROADS, find_slice

LAUNCH = pathlib.Path(__file__).parents[1]
ROOT = LAUNCH.parent
DURATION = r"[1-9]\d{0,5}[smhd]"
_PATH = "[A-Za-z0-9._/][A-Za-z0-9._/-]*"
_NAME = "[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_HOST = r"projects/[a-z0-9.:-]+"  # a Shared VPC's host project
_ACCOUNT = r"[a-z0-9][a-z0-9-]{0,62}@[a-z0-9.-]+\.gserviceaccount\.com"
_BUCKET = r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[A-Za-z0-9._-]+)*/?"
_PORT = r"[1-9]\d{3}|[1-5]\d{4}|6([0-4]\d|5[0-4])\d\d|655([0-2]\d|3[0-5])"
_PYTHON = "(?!-)[A-Za-z0-9._/-]*[A-Za-z0-9_-]/bin/python"
_TAG = "(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
_IMAGE = rf"[a-z0-9][a-z0-9.-]*(:\d{{1,5}}/)?[a-z0-9._/-]*{_TAG}"

# Setting -> its form, an example, and its default; None: it must be set. Whatever is '' by default
# may be empty.
FORMS: dict[str, tuple[str, str, str | None]] = {
    "PROJECT": (r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "my-project", None),
    "ZONE": ("[a-z]+-[a-z]+[0-9]+-[a-z0-9]+", "us-central2-b", None),
    "TPU_NAME": (_NAME, "my-tpu", None),
    "TOPOLOGY": ("[a-z0-9]+:[0-9x]+", "v5e:8x8", None),
    "ROAD": ("|".join(ROADS), " or ".join(ROADS), ""),
    "PROVISIONING": ("standard|spot|flex_start", "standard or spot or flex_start", "standard"),
    "VALID_UNTIL": (DURATION, "6h", ""),
    "BUCKET": (_BUCKET, "gs://my-bucket/bert", ""),
    "SERVICE_ACCOUNT": (_ACCOUNT, "trainer@my-project.iam.gserviceaccount.com", ""),
    "NETWORK": (f"({_HOST}/global/networks/)?{_NAME}", "default", ""),
    "SUBNETWORK": (f"({_HOST}/regions/{_NAME}/subnetworks/)?{_NAME}", "default", ""),
    "INTERNAL_IPS": ("true|false", "true or false", "false"),
    "COORDINATOR_PORT": (_PORT, "8482", ""),
    "LABEL": ("[a-z]([a-z0-9_-]{0,61}[a-z0-9])?", "bert_jax", "bert_jax"),
    "GKE_IMAGE": (_IMAGE, "us-docker.pkg.dev/my-project/my-images/bert_jax:1", ""),
    "GKE_SERVICE_ACCOUNT": ("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "trainer", ""),
    # Not the root of the workers' disks or their home folder: setup.sh fills and clears it.
    "REMOTE_DIR": (rf"(?=.*\w){_PATH}", "bert_jax", "bert_jax"),
    # Python of the virtual environment that setup.sh makes.
    "REMOTE_PYTHON": (_PYTHON, ".venv/bin/python", ".venv/bin/python"),
}


class Cluster:
    """Hold the settings of one TPU slice, after checking the form of each.

    project, place: gcloud's flags. label: on all that is created. bucket: without a slash at its
    end, or ''. logs, lock: its folder for copies of the workers' logs and the object that one
    supervisor holds, or ''. is_internal: the machines get no external address.
    """

    def __init__(self, path: pathlib.Path, overrides: dict[str, str]) -> None:
        self.path = path
        self._flags = [f"--{name.lower()}={value}" for name, value in overrides.items()]
        defaults = {name: default or "" for name, (_, _, default) in FORMS.items()}
        self._values = defaults | _read(path) | overrides
        for name, value in self._values.items():
            _check(f"--{name.lower()}" if name in overrides else str(path), name, value)
        self.name, self.bucket = self.get("TPU_NAME"), self.get("BUCKET").rstrip("/")
        self.logs = f"{self.bucket}/logs/{self.name}" if self.bucket else ""
        self.lock = f"{self.bucket}/launch/{self.name}/lock" if self.bucket else ""
        self.project = f"--project={self.get('PROJECT')}"
        self.place = f"--zone={self.get('ZONE')} {self.project}"
        self.label = f"launched_by={self.get('LABEL')}"
        self.region = self.get("ZONE").rpartition("-")[0]
        self.is_internal = self.get("INTERNAL_IPS") == "true"
        origin = "--topology" if "TOPOLOGY" in overrides else str(path)
        self.slice = find_slice(self.get("TOPOLOGY"), self.get("ROAD"), origin)

    def get(self, name: str) -> str:
        """Return the value of a setting; one that may be empty is ''."""
        return self._values[name]

    def need(self, name: str, why: str) -> str:
        """Return the value of a setting; refuse an empty one and say `why` it is needed."""
        if not self.get(name):
            refuse(f"{self.path}: {name} is empty, {why}; set it, such as {name}={FORMS[name][1]}")
        return self.get(name).rstrip("/")

    def flags(self, **names: str) -> str:
        """Return gcloud's flag for each named setting that is not empty."""
        return " ".join(
            f"--{flag.replace('_', '-')}={self.get(n)}" for flag, n in names.items() if self.get(n)
        )

    def next_command(self, script: str, *flags: str) -> str:
        """Return the command line of another script of launch/ for this slice, to paste."""
        return shlex.join([f"launch/{script}.sh", f"--cluster={self.path}", *self._flags, *flags])


def _check(origin: str, name: str, value: str) -> None:
    form, example, default = FORMS[name]
    if not value and default != "":
        refuse(f"{origin}: {name} is empty; set it, such as {name}={example}")
    # Only the forms of paths allow a slash; no path may have .. in it.
    if value and not (re.fullmatch(form, value, re.ASCII) and ".." not in value.split("/")):
        refuse(f"{origin}: {name} is '{value}', which is not of the form of {example}")


def _read(path: pathlib.Path) -> dict[str, str]:
    """Read NAME=VALUE lines as text: a file that a shell sourced could run anything."""
    try:
        text = path.read_text("utf-8-sig", errors="surrogateescape")
    except OSError as error:
        refuse(f"{path}: {error.strerror}; copy launch/cluster.env to a file, and fill it in")
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or name not in FORMS:
            refuse(
                f"{path}, line {number}: '{line[:200]}' is not NAME=VALUE with NAME one of "
                f"{', '.join(FORMS)}"
            )
        if name in values:
            refuse(f"{path}, line {number}: {name} is set a second time; remove one line")
        values[name] = value
    return values


_NUMBER, _USD, _SECS = r"[1-9]\d{0,8}", r"\d+(\.\d+)?", r"[1-9]\d{0,4}|0\.\d{1,2}"
# Flag -> its words and, unless it is a switch, the name of its value, its form and its default.
FLAGS: dict[str, tuple[str, ...]] = {
    "dry-run": ("print the commands instead of running them; needs no gcloud and no login",),
    "cluster": ("settings of the slice (default: cluster.env next to this script)", "FILE"),
    "topology": ("overrides TOPOLOGY of the file, such as v6e:8x8", "NAME"),
    "road": ("overrides ROAD of the file: queued, compute_engine or gke", "NAME"),
    "revision": ("commit sent to the machines (default: HEAD, all committed)", "COMMIT"),
    "wheelhouse": ("machines install from BUCKET, see launch/wheelhouse.sh",),
    "doctor": ("check all workers with `bert_jax.doctor`; train if nothing is wrong",),
    "worker": ("a worker, counted from 0, or all", "N|all", r"all|0|[1-9]\d{0,4}"),
    "poll_secs": ("seconds between two checks", "N", _SECS, "60"),
    "wait": ("return once it is ready, or after TIME, such as 6h", "[TIME]", DURATION),
    "yes": ("ask for no confirmation",),
    "force_foreign": ("delete it without that label; always asks, on a terminal",),
    "stop": ("SIGTERM to all workers, so that training saves; SIGKILL 60 s later",),
    "lines": ("number of lines, from the end", "N", _NUMBER, "100"),
    "follow": ("keep showing lines until Ctrl-C, which does not disturb training",),
    "bucket": ("list the copies in BUCKET/logs/TPU_NAME, and show the newest",),
    "python": ("a Python with pip", "PYTHON", ".+", "python3"),
    # More than config.hosts.stuck_secs, whose watchdog names what hangs.
    "hung_secs": ("seconds without output after which a run is stuck", "N", _NUMBER, "4000"),
    "tries": ("tries in a row without a newer checkpoint", "N", _NUMBER, "5"),
    "price": ("dollars per chip-hour (default: planning/prices.json)", "USD", _USD),
    "max_usd": ("end the run and delete the slice at this cost", "USD", _USD),
    "state_dir": ("state and events (default: in ~/.local/state/bert_jax)", "DIR"),
    "delete_at_end": ("delete the slice at the run's end",),
}


def _describe(words: str, value: str = "", form: str = ".+", default: str = "") -> dict[str, Any]:
    """Return a flag as argparse wants it; a value in brackets may be left out."""

    def check(text: str) -> str:
        if not re.fullmatch(form, text):
            raise argparse.ArgumentTypeError(f"'{text}' is not of its form")
        return text

    if not value:
        return {"help": words, "action": "store_true"}
    words += f" (default: {default})" * bool(default)
    may_be_empty = {"nargs": "?", "const": "2d"} if value[0] == "[" else {}
    return may_be_empty | {
        "help": words,
        "metavar": value.strip("[]"),
        "type": check,
        "default": default or None,
    }


class _HelpLayout(argparse.HelpFormatter):
    """Lay out help: paragraphs stay apart."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(part, width, indent) for part in text.split("\n\n"))


def read_arguments(
    script: str, arguments: Sequence[str], usage: str, flags: str, words: str
) -> argparse.Namespace:
    """Return the flags of launch/SCRIPT.sh, its `cluster`, and the `rest`; or refuse.

    Flags may stand anywhere. Others belong to the training where usage names TRAIN_FLAG.
    """
    for argument in arguments:
        text = argument.replace("\n", " ")
        if escape(text) != text:
            refuse(f"'{argument}' has a control character, or is not UTF-8; remove it")
        if text != argument and script != "ssh":
            refuse(f"'{argument}' has a line break, which no option or flag has; remove it")
    if "Exit code:" not in words:
        words += "\n\nExit code: the failed command's; 2 where this script refuses."
    parser = argparse.ArgumentParser(
        usage=f"launch/{script}.sh [OPTION ...] {usage}",
        description=words,
        epilog="Not yet run against Google Cloud.",
        formatter_class=_HelpLayout,
        allow_abbrev=False,
    )
    parser.error = lambda words: refuse(f"{words}; see launch/{script}.sh --help")  # type: ignore[method-assign, assignment]
    for name in f"dry-run cluster topology road {flags}".split():
        parser.add_argument(f"--{name}", **_describe(*FLAGS[name]))
    given, rest = parser.parse_known_args(arguments)
    ours = {re.sub("[-_]", "", name) for name in FLAGS}
    for word in rest:
        # Training has no flag of these names: it is another script's, or written in another way.
        is_ours = word.startswith("-") and re.sub("[-_]", "", word.partition("=")[0]) in ours
        is_option = word.startswith("-") if "COMMAND" in usage else "TRAIN_FLAG" not in usage
        if is_ours or is_option or word == "--":
            parser.error(f"'{word}' is no option")
    path = pathlib.Path(os.path.expanduser(given.cluster or LAUNCH / "cluster.env"))
    overrides = {n.upper(): vars(given)[n] for n in ("topology", "road") if vars(given)[n]}
    given.script, given.cluster, given.rest = script, Cluster(path, overrides), rest
    return given
