"""Read cluster.env and the flags of the scripts; each value is checked by its form."""

import dataclasses
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence

from .text import check_arguments, refuse
from .topologies import ROADS, find_slice

LAUNCH = pathlib.Path(__file__).parents[1]
ROOT = LAUNCH.parent
DURATION = r"[1-9]\d{0,5}[smhd]"
_PATH = "[A-Za-z0-9._/][A-Za-z0-9._/-]*"
_NAME = "[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_IMAGE = r"[a-z0-9][a-z0-9._/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"

# Setting -> its form and an example.
FORMS = {
    "PROJECT": (r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "my-project"),
    "ZONE": ("[a-z]+-[a-z]+[0-9]+-[a-z0-9]+", "us-central2-b"),
    "TPU_NAME": (_NAME, "my-tpu"),
    "TOPOLOGY": ("[a-z0-9]+:[0-9x]+", "v5e:8x8"),
    "ROAD": ("|".join(ROADS), "gke"),
    "PROVISIONING": ("standard|spot|flex_start", "spot"),
    "VALID_UNTIL": (DURATION, "6h"),
    "BUCKET": (rf"gs://[a-z0-9][a-z0-9._-]{{1,220}}[a-z0-9](/{_PATH})?", "gs://my-bucket/bert"),
    "SERVICE_ACCOUNT": (
        r"[a-z0-9][a-z0-9-]{0,62}@[a-z0-9.-]+\.gserviceaccount\.com",
        "trainer@my-project.iam.gserviceaccount.com",
    ),
    "NETWORK": (_NAME, "default"),
    "SUBNETWORK": (_NAME, "default"),
    "INTERNAL_IPS": ("true|false", "true"),
    "COORDINATOR_PORT": ("[1-9][0-9]{3}|[1-5][0-9]{4}", "8482"),
    "LABEL": ("[a-z]([a-z0-9_-]{0,61}[a-z0-9])?", "bert_jax"),
    "GKE_IMAGE": (_IMAGE, "us-docker.pkg.dev/my-project/my-images/bert_jax:1"),
    "GKE_SERVICE_ACCOUNT": ("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "trainer"),
    "REMOTE_DIR": (_PATH, "bert_jax"),
    # Of a virtual environment, which setup.sh makes.
    "REMOTE_PYTHON": ("(?!-)[A-Za-z0-9._/-]*[A-Za-z0-9_-]/bin/python", ".venv/bin/python"),
}
DEFAULTS = {"PROVISIONING": "standard", "INTERNAL_IPS": "false", "LABEL": "bert_jax"}
DEFAULTS |= {"REMOTE_DIR": "bert_jax", "REMOTE_PYTHON": ".venv/bin/python"}
_MAY_BE_EMPTY = {"ROAD", "VALID_UNTIL", "BUCKET", "SERVICE_ACCOUNT", "NETWORK", "SUBNETWORK"}
_MAY_BE_EMPTY |= {"COORDINATOR_PORT", "GKE_IMAGE", "GKE_SERVICE_ACCOUNT"}


class Cluster:
    """Hold the settings of one TPU slice, each of its form.

    project, place: gcloud's flags. bucket: without a slash at its end, or ''. is_internal: the
    machines get no external address.
    """

    def __init__(self, path: pathlib.Path, overrides: dict[str, str]) -> None:
        self.path = path
        self._values = dict.fromkeys(FORMS, "") | DEFAULTS | _read(path) | overrides
        for name, value in self._values.items():
            _check(f"--{name.lower()}" if name in overrides else str(path), name, value)
        self.name, self.bucket = self.get("TPU_NAME"), self.get("BUCKET").rstrip("/")
        self.project = f"--project={self.get('PROJECT')}"
        self.place = f"--zone={self.get('ZONE')} {self.project}"
        self.region = self.get("ZONE").rpartition("-")[0]
        self.is_internal = self.get("INTERNAL_IPS") == "true"
        origin = "--topology" if "TOPOLOGY" in overrides else str(path)
        self.slice = find_slice(self.get("TOPOLOGY"), self.get("ROAD"), origin)

    def get(self, name: str) -> str:
        """Return the value of a setting; one that may be empty is ''."""
        return self._values[name]

    def need(self, name: str, why: str) -> str:
        """Return the value of a setting, or refuse where it is empty."""
        if not self.get(name):
            refuse(f"{self.path}: {name} is empty, {why}; set it, such as {name}={FORMS[name][1]}")
        return self.get(name).rstrip("/")

    def flags(self, **names: str) -> str:
        """Return gcloud's flag for each named setting that is not empty."""
        return " ".join(
            f"--{flag.replace('_', '-')}={self.get(n)}" for flag, n in names.items() if self.get(n)
        )

    def next_command(self, script: str, *flags: str) -> str:
        """Return a command of ours as a user may paste it."""
        return shlex.join([f"launch/{script}.sh", f"--cluster={self.path}", *flags])


def _check(origin: str, name: str, value: str) -> None:
    form, example = FORMS[name]
    if not value and name not in _MAY_BE_EMPTY:
        refuse(f"{origin}: {name} is empty; set it, such as {name}={example}")
    if value and not re.fullmatch(form, value):
        refuse(f"{origin}: {name} is '{value}', which is not of the form of {example}")
    # Only paths can hold a slash; no folder above the named one is meant.
    if ".." in value.split("/"):
        refuse(f"{origin}: {name} is '{value}', and .. is not allowed in it")
    # Neither the root of the workers' disks nor their home folder is ours to fill and to clear.
    if name.startswith("REMOTE_") and not value.strip("./"):
        refuse(f"{origin}: {name} is '{value}', which is no folder; try {name}={example}")


def _read(path: pathlib.Path) -> dict[str, str]:
    """Read NAME=VALUE lines as text: a file that a shell sourced could run anything."""
    if not path.is_file():
        refuse(f"{path}: there is no such file; copy launch/cluster.env and fill it in")
    values: dict[str, str] = {}
    for number, line in enumerate(path.read_text(errors="surrogateescape").split("\n"), 1):
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


@dataclasses.dataclass(frozen=True)
class Flag:
    """Describe a flag: without a value it is a switch; a value in brackets may be left out."""

    name: str
    words: str
    value: str = ""
    form: str = ".+"
    default: str = ""

    @property
    def shown(self) -> str:
        """Return the flag as --help writes it."""
        is_optional = self.value.startswith("[")
        equals = f"[={self.value[1:]}" if is_optional else f"={self.value}" * bool(self.value)
        return f"--{self.name}{equals}"


_COMMON = (
    Flag("dry-run", "print the commands instead of running them; needs no gcloud and no login"),
    Flag("cluster", "settings of the slice (default: cluster.env beside this script)", "FILE"),
    Flag("topology", "overrides TOPOLOGY of the file, such as v6e:8x8", "NAME"),
    Flag("road", "overrides ROAD of the file: queued, compute_engine or gke", "NAME"),
)


@dataclasses.dataclass
class Arguments:
    """Hold what a script was given: flags by name, the cluster, and words for the training."""

    script: str
    values: dict[str, str]
    cluster: Cluster
    rest: list[str]

    @property
    def is_dry_run(self) -> bool:
        """Whether commands are printed only."""
        return self.has("dry-run")

    def has(self, name: str) -> bool:
        """Whether a flag was given."""
        return name in self.values


def read_arguments(
    script: str, arguments: Sequence[str], usage: str, flags: Sequence[Flag], words: str
) -> Arguments:
    """Read the arguments of launch/SCRIPT.sh; prints --help and exits, or refuses.

    Flags may stand anywhere. Others belong to the training where usage names TRAIN_FLAG.
    """
    check_arguments(list(arguments), takes_lines=script == "ssh")
    known = {flag.name: flag for flag in (*_COMMON, *flags)}
    if {"-h", "--help"} & set(arguments):
        print(f"usage: launch/{script}.sh [OPTION ...] {usage}\n\n{words}\n")
        for flag in known.values():
            default = f" (default: {flag.default})" if flag.default else ""
            print(f"  {flag.shown:20} {flag.words}{default}")
        print("\nExit code: the failed command's; 2 where this script refuses.")
        print("Not yet run against Google Cloud.")
        sys.exit(0)
    values = {flag.name: flag.default for flag in flags if flag.default}
    rest = []
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and name in known:
            flag = known[name]
            is_right = bool(equals) == bool(flag.value) or flag.value.startswith("[")
            if not is_right or (equals and not re.fullmatch(flag.form, value)):
                refuse(f"{argument}: it is written {flag.shown}; see launch/{script}.sh --help")
            values[name] = value
        elif "TRAIN_FLAG" in usage or ("COMMAND" in usage and not argument.startswith("-")):
            rest.append(argument)
        else:
            refuse(f"'{argument}' is no option; see launch/{script}.sh --help")
    path = pathlib.Path(values.get("cluster", str(LAUNCH / "cluster.env")))
    overrides = {n.upper(): values[n] for n in ("topology", "road") if n in values}
    return Arguments(script, values, Cluster(path, overrides), rest)
