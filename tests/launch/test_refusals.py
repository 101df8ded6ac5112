"""Every refusal of launch/ is one sentence with the file, the key and the value, and code 2."""

import re
import shlex
import shutil

import pytest

from tests.launch.scripts import (
    FLAGS,
    IMAGE,
    LAUNCH,
    TRAIN_FLAGS,
    VALUES,
    commands,
    refusal,
    run,
    write_command,
)

pytestmark = pytest.mark.slow

WATCH = (*TRAIN_FLAGS, "--revision=HEAD")
JOB = ("--config=configs/base.py", "--workdir=gs://my-bucket/base")
JOB_WORKDIR = "--workdir=gs://BUCKET/FOLDER is missing"

# A script, its flags, and the start of what it says.
FLAGS_REFUSED = [
    ("create.sh", ("--wait=",), "--wait="),
    ("create.sh", ("--wait=6 h",), "--wait=6 h"),
    ("create.sh", ("--poll_secs=0",), "--poll_secs=0"),
    ("create.sh", ("--dryrun",), "'--dryrun' is no option of launch/create.sh"),
    ("train.sh", TRAIN_FLAGS[:1], "--workdir="),
    ("train.sh", TRAIN_FLAGS[1:], "--config="),
    ("train.sh", ("--stop", "--config=a"), "'--config=a'"),
    ("logs.sh", ("--worker=-1",), "--worker=-1"),
    ("logs.sh", ("--worker=all;id",), "--worker=all;id"),
    ("logs.sh", ("--lines=0",), "--lines=0"),
    ("logs.sh", ("--bucket",), "BUCKET is empty"),
    ("ssh.sh", ("--worker=all",), "a shell opens on one worker"),
    ("ssh.sh", ("df", "-k"), "'-k' is no option of launch/ssh.sh"),
    ("ssh.sh", ("df", "tail"), "launch/ssh.sh 'df tail'"),
    ("setup.sh", ("--revision=HEAD", "--wheelhouse"), "BUCKET is empty"),
    ("wheelhouse.sh", ("--revision=HEAD",), "BUCKET is empty"),
    ("watch.sh", (*WATCH, "--poll_secs=often"), "--poll_secs=often"),
    ("watch.sh", (*WATCH, "--hung_secs=0"), "--hung_secs=0"),
    ("watch.sh", (*WATCH, "--tries=0"), "--tries=0"),
    ("watch.sh", (*WATCH, "--price=$1"), "--price=$1"),
    ("watch.sh", (*WATCH, "--workdir=runs/a"), "--workdir=runs/a is in REMOTE_DIR"),
    ("watch.sh", WATCH[1:], "--config=FILE is missing"),
    ("pod.sh", (), "CONFIG is missing"),
    ("pod.sh", ("a.py", "b.py"), "'b.py' is a second config after 'a.py'"),
    ("pod.sh", ("--config=a.py",), "launch/pod.sh a.py"),
    ("pod.sh", ("a.py",), "BUCKET is empty"),
    ("gke/jobset.sh", JOB[:1], JOB_WORKDIR),
    ("gke/jobset.sh", (JOB[0], "--workdir=/mnt/a"), JOB_WORKDIR),
    ("gke/jobset.sh", JOB[1:], "--config=FILE is missing"),
    ("gke/jobset.sh", (*JOB, "--max_restarts=-1"), "--max_restarts=-1"),
    ("gke/xpk.sh", JOB[:1], JOB_WORKDIR),
    # What a terminal or YAML would obey.
    ("gke/jobset.sh", (*JOB, "--x=a\nkind: Pod"), "has a line break"),
    ("gke/jobset.sh", (*JOB, "--x=\x9b"), "has a control character"),
    ("train.sh", (*TRAIN_FLAGS, "--config=a\x1b[2J.py"), "has a control character"),
    ("train.sh", (*TRAIN_FLAGS, "--config=a.py\nid"), "has a line break"),
    ("watch.sh", ("--config=a.py", "--workdir=/mnt/\u202ea"), "has a control character"),
    ("pod.sh", ("a.py", "--state_dir=/tmp/\r"), "has a control character"),
    ("ssh.sh", ("echo \x1b]0;x\x07",), "has a control character"),
    ("create.sh", ("--cluster=/tmp/\x1b",), "has a control character"),
]


@pytest.mark.parametrize(("script", "flags", "words"), FLAGS_REFUSED)
def test_flags(cluster, script, flags, words):
    """BUCKET is empty, so no cloud is asked."""
    said = refusal(script, "--dry-run", cluster(**IMAGE), *flags)
    assert words in said
    assert not set(said) & set("\x1b\u202e\r\x9b\x07")


# Every setting -> values that are not of its form; the script that is asked reads it.
ODD = ("../a", "a b", "$(touch canary)", "a;b", "-a", "a'b", "")
VALUES_REFUSED = {
    ("logs.sh", "PROJECT"): (*ODD, "My Project", "\u202emy-project"),
    ("logs.sh", "ZONE"): (*ODD, "us-central2", "--zone"),
    ("logs.sh", "TPU_NAME"): (*ODD, "a" * 64),
    ("logs.sh", "BUCKET"): ("my-bucket", "gs://my bucket", "gs://my-bucket/../other"),
    ("logs.sh", "REMOTE_DIR"): (*ODD, "/", "~", "..", "./", "//", "a/../b", "a\x1b[2Jb"),
    ("setup.sh", "REMOTE_PYTHON"): (*ODD, "/", "python3", "bin/python3", "/bin/python"),
    ("create.sh", "ACCELERATOR_TYPE"): ("v5e", "16", "v4-08", "v4-" + "9" * 20, ""),
    ("create.sh", "RUNTIME_VERSION"): ("v2 alpha", ""),
    ("create.sh", "SPOT"): ("yes", "true or false", ""),
    ("create.sh", "PRESET"): ("base", "base-v5litepod"),
    ("create.sh", "VALID_UNTIL"): ("6 hours",),
    ("create.sh", "SERVICE_ACCOUNT"): ("me@example.com",),
    ("create.sh", "NETWORK"): ("my network", "../default"),
    ("create.sh", "SUBNETWORK"): ("../default",),
    ("create.sh", "INTERNAL_IPS"): ("1", ""),
    ("create.sh", "LABEL"): ("a,b=c", ""),
    ("train.sh", "COORDINATOR_PORT"): ("80",),
    ("gke/jobset.sh", "GKE_IMAGE"): ("my image", ""),
    ("gke/jobset.sh", "GKE_SERVICE_ACCOUNT"): ("Trainer",),
    ("gke/jobset.sh", "TPU_NAME"): ("a" * 41,),
    ("gke/jobset.sh", "ACCELERATOR_TYPE"): ("v2-32", "v5litepod-8", "v6e-17"),
    ("gke/xpk.sh", "GKE_CLUSTER"): ("",),
}
ALL_FLAGS = FLAGS | {"gke/jobset.sh": JOB, "gke/xpk.sh": JOB}


@pytest.mark.fault(20, "blanks, .. and shell in the names and paths of cluster.env")
@pytest.mark.parametrize(("script", "name"), VALUES_REFUSED)
def test_values_of_a_setting(cluster, tmp_path, monkeypatch, script, name):
    """Named with its file; neither run nor obeyed by a terminal."""
    monkeypatch.chdir(tmp_path)
    for value in VALUES_REFUSED[script, name]:
        option = cluster(**IMAGE | {name: value})
        words = refusal(script, "--dry-run", option, *ALL_FLAGS[script])
        assert f"{option.partition('=')[2]}" in words and f"{name} is " in words
        assert not set(words) & {"\x1b", "\u202e"}
    assert not (tmp_path / "canary").exists()


def test_every_setting_is_checked_shipped_and_has_the_same_default():
    shipped = dict(
        line.split("=", 1)
        for line in (LAUNCH / "cluster.env").read_text().splitlines()
        if line and not line.startswith("#")
    )
    script = (LAUNCH / "lib" / "cluster.sh").read_text()
    (names,) = re.findall(r"^SETTINGS='([^']+)'", script, re.MULTILINE)
    assert names.split() == list(shipped)
    assert {name for _, name in VALUES_REFUSED} == set(shipped)
    for name in ("INTERNAL_IPS", "LABEL"):
        assert f" {name}={shipped[name]}" in " " + script.replace("\n", " ")


@pytest.mark.parametrize(
    "line",
    ["PROJECT ZONE=foo", " ZONE=a", "=a", "ZONE", "PATH=/tmp", "ZONE+=a", "a\x1b[2J=b", "touch x"],
)
def test_lines_that_are_no_setting(cluster, tmp_path, line):
    option = cluster()
    with (tmp_path / "cluster.env").open("a") as file:
        file.write(line)
    words = refusal("delete.sh", "--yes", "--dry-run", option)
    assert f", line {len(VALUES) + 1}: " in words and "is not NAME=VALUE" in words
    assert "\x1b" not in words


def test_cluster_files(cluster, tmp_path):
    path = tmp_path / "absent.env"
    assert f"{path}: there is no such file" in refusal("create.sh", f"--cluster={path}")
    assert "PROJECT is empty" in refusal("create.sh", "--dry-run")  # the example as it is shipped
    words = refusal("create.sh", "--dry-run", cluster(PRESET="base-v5e", ACCELERATOR_TYPE="v4-32"))
    assert "ACCELERATOR_TYPE is 'v4-32', but PRESET=base-v5e" in words
    option, path = cluster(), tmp_path / "cluster.env"
    lines = path.read_text()
    path.write_text(f"{lines}ZONE=us-east1-d\n")
    assert f"line {len(VALUES) + 1}: ZONE is set a second time" in refusal("delete.sh", option)
    # Comments, blank lines and the ends of Windows are fine; what is not read may be absent.
    needed = [line for line in lines.splitlines() if line.startswith(("P", "Z", "T", "L"))]
    path.write_bytes("\r\n".join(["# a comment", "", *needed]).encode())
    assert commands("delete.sh", option)[0][5] == "my-tpu"


KINDS = {
    "v2": ("v2-32", "v2-128", "tpu-ubuntu2204-base"),
    "v3": ("v3-32", "v3-128", "tpu-ubuntu2204-base"),
    "v4": ("v4-32", "v4-128", "tpu-ubuntu2204-base"),
    "v5e": ("v5litepod-16", "v5litepod-64", "v2-alpha-tpuv5-lite"),
    "v5p": ("v5p-32", "v5p-128", "v2-alpha-tpuv5"),
    "v6e": ("v6e-16", "v6e-64", "v2-alpha-tpuv6e"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_preset_is_a_machine_with_its_system(cluster, kind):
    *machines, runtime = KINDS[kind]
    for size, machine in zip(("base", "large"), machines, strict=True):
        same = {"ACCELERATOR_TYPE": machine, "RUNTIME_VERSION": runtime}
        for given in (dict.fromkeys(same, ""), same):
            (command,) = commands("create.sh", cluster(PRESET=f"{size}-{kind}", **given))
            assert f"--accelerator-type={machine}" in command
            assert f"--runtime-version={runtime}" in command


@pytest.mark.parametrize("script", FLAGS)
def test_gcloud_is_there_logged_in_and_gets_what_was_printed(cluster, clone, tmp_path, script):
    """Its exit code comes back. Without it, bash, dirname and git are all that --dry-run needs."""
    only = tmp_path / "only"
    only.mkdir()
    for name in ("bash", "dirname", "git"):
        (only / name).symlink_to(shutil.which(name))
    arguments = (clone / "launch" / script, cluster(), *FLAGS[script])
    assert "gcloud is not on PATH; install it" in refusal(*arguments, PATH=str(only))
    printed = run(*arguments, "--dry-run", PATH=str(only)).stdout.splitlines()
    answers = {"auth": "${ACCOUNT-}", "config": "${TOKEN_FILE-}"}
    write_command(
        tmp_path / "bin" / "gcloud",
        *(f'[[ $1 != {word} ]] || {{ echo "{value}"; exit; }}' for word, value in answers.items()),
        '[[ $4 != describe ]] || { echo "ACTIVE bert_jax"; exit; }',
        'printf "%s\\n" "$@"',
        "exit 7",
    )
    path = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    assert "run 'gcloud auth login'" in refusal(*arguments, **path)
    for login in ({"ACCOUNT": "me@example.com"}, {"TOKEN_FILE": "/a/token"}):
        ran = run(*arguments, **path, **login)
        assert ran.returncode == 7
        sent = [shlex.split(line)[1:] for line in printed if line.startswith("gcloud")]
        assert ran.stdout.splitlines() in (sent[0], sent[-1])


def test_a_folder_with_a_blank_and_an_apostrophe_is_quoted(pod, tmp_path):
    folder = tmp_path / "it's mine"
    folder.mkdir()
    path = (tmp_path / "cluster.env").rename(folder / "cluster.env")
    pod.cluster = f"--cluster={path}"
    (line,) = (line for line in pod.run("create.sh").stdout.splitlines() if "setup.sh" in line)
    assert shlex.split(line) == ["launch/setup.sh", pod.cluster]
