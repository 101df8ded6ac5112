"""launch/cluster.sh through the scripts: options, cluster.env, gcloud absent or not logged in."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.launch.clones import make_clone
from tests.launch.scripts import FLAGS, LAUNCH, READS, VALUES, commands, refusal, run


def test_shellcheck_finds_nothing():
    ours = [*LAUNCH.rglob("*.sh"), *(LAUNCH.parent / ".ci").iterdir()]
    shellcheck = pathlib.Path(sys.executable).with_name("shellcheck")
    ran = subprocess.run(
        [str(shellcheck), "--external-sources", *map(str, ours)], capture_output=True, text=True
    )
    assert ran.stdout == ""
    assert ran.returncode == 0


# What bash 3.2, which macOS has, does not know.
NEWER = re.compile(
    r"\b(declare|local) -[a-z]*[An]|\b(mapfile|readarray|coproc)\b|\$\{\w+(\^|,|@)|&>>|\|&|wait -n"
    r"|%\([^)]*\)T|\[-\d\]\}|EPOCHSECONDS|\[\[ -v "
)


def test_what_runs_on_a_laptop_is_written_for_bash_of_macos():
    here = [path for path in LAUNCH.rglob("*.sh") if not path.name.startswith("on_worker_")]
    lines = [line for path in here for line in path.read_text().splitlines()]
    assert [line for line in lines if NEWER.search(line)] == []
    planted = ("local -A b", "echo ${a^^}", "echo ${a[-1]}", "printf '%(%s)T'", "mapfile -t a <b")
    assert all(NEWER.search(line) for line in planted)


SCRIPTS = sorted(
    str(path.relative_to(LAUNCH))
    for path in LAUNCH.rglob("*.sh")
    if "\nusage() {" in path.read_text()
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_needs_no_cluster_and_says_what_was_not_tried(script, tmp_path):
    ran = run(script, "--help", f"--cluster={tmp_path / 'absent'}")
    assert ran.returncode == 0
    assert ran.stdout.startswith(f"usage: launch/{script}")
    assert "Not yet run" in ran.stdout


@pytest.mark.parametrize("script", FLAGS)
def test_the_example_that_is_shipped_names_what_to_fill_in(script):
    assert "PROJECT is empty" in refusal(script, "--dry-run", *FLAGS[script])


@pytest.mark.parametrize("script", FLAGS)
def test_no_cluster_file(script, tmp_path):
    path = tmp_path / "absent.env"
    assert f"{path}: there is no such file" in refusal(script, f"--cluster={path}", *FLAGS[script])


@pytest.mark.parametrize(("script", "name"), [(s, name) for s in FLAGS for name in READS[s]])
def test_an_empty_value_is_named(cluster, script, name):
    said = refusal(script, "--dry-run", cluster(**{name: ""}), *FLAGS[script])
    assert f"{name} is empty" in said


@pytest.mark.parametrize(
    ("script", "name", "value"),
    [
        ("logs.sh", "PROJECT", "My Project"),
        ("logs.sh", "PROJECT", "p; rm -rf ~"),
        ("logs.sh", "ZONE", "us-central2"),
        ("logs.sh", "ZONE", "--zone"),
        ("logs.sh", "TPU_NAME", "my tpu"),
        ("logs.sh", "TPU_NAME", "-f"),
        ("delete.sh", "TPU_NAME", "a" * 64),
        ("delete.sh", "TPU_NAME", "$(id)"),
        ("logs.sh", "REMOTE_DIR", "my folder"),
        ("logs.sh", "REMOTE_DIR", "-"),
        ("train.sh", "REMOTE_PYTHON", "python && id"),
        ("create.sh", "ACCELERATOR_TYPE", "v5e"),
        ("create.sh", "ACCELERATOR_TYPE", "16"),
        ("create.sh", "RUNTIME_VERSION", "v2 alpha"),
        ("create.sh", "SPOT", "yes"),
        ("create.sh", "SPOT", "true or false"),
        ("create.sh", "PRESET", "base"),
        ("create.sh", "PRESET", "base-v5litepod"),
        ("create.sh", "VALID_UNTIL", "6 hours"),
        ("create.sh", "SERVICE_ACCOUNT", "me@example.com"),
        ("create.sh", "NETWORK", "my network"),
        ("create.sh", "SUBNETWORK", "../default"),
        ("create.sh", "INTERNAL_IPS", "1"),
        ("create.sh", "LABEL", "a,b=c"),
        ("logs.sh", "BUCKET", "my-bucket"),
        ("logs.sh", "BUCKET", "gs://my bucket"),
        ("logs.sh", "BUCKET", "gs://my-bucket/../other"),
        ("train.sh", "COORDINATOR_PORT", "80"),
        ("logs.sh", "REMOTE_DIR", "../bert_jax"),
        ("logs.sh", "REMOTE_DIR", "runs/../../bert_jax"),
        ("train.sh", "REMOTE_PYTHON", "../.venv/bin/python"),
    ],
)
def test_a_bad_value_is_named(cluster, script, name, value):
    said = refusal(script, "--dry-run", cluster(**{name: value}), *FLAGS[script])
    assert f"{name} is '{value}'" in said


def test_a_setting_that_a_script_does_not_read_may_be_absent(tmp_path):
    path = tmp_path / "cluster.env"
    path.write_text("".join(f"{name}={VALUES[name]}\n" for name in READS["delete.sh"]))
    assert commands("delete.sh", f"--cluster={path}")


@pytest.mark.fault(20, "blanks, .. and shell in the names and paths of cluster.env")
def test_names_that_would_lead_elsewhere_are_refused(cluster):
    odd = ("../a", "a/../b", "a/..", "a b", "$(id)", "a;b", "-a", "a'b", "a*", "~root")
    for script, name in (
        *(("create.sh", name) for name in ("PROJECT", "ZONE", "TPU_NAME", "NETWORK", "LABEL")),
        *(("setup.sh", name) for name in ("REMOTE_DIR", "REMOTE_PYTHON")),
    ):
        for value in odd:
            said = refusal(script, "--dry-run", cluster(**{name: value}), *FLAGS[script])
            assert f"{name} is '{value}'" in said
    for value in odd:
        said = refusal("logs.sh", "--dry-run", cluster(BUCKET=f"gs://my-bucket/{value}"))
        assert f"BUCKET is 'gs://my-bucket/{value}'" in said


KINDS = {
    "v2": ("v2-32", "v2-128", "tpu-ubuntu2204-base"),
    "v3": ("v3-32", "v3-128", "tpu-ubuntu2204-base"),
    "v4": ("v4-32", "v4-128", "tpu-ubuntu2204-base"),
    "v5e": ("v5litepod-16", "v5litepod-64", "v2-alpha-tpuv5-lite"),
    "v5p": ("v5p-32", "v5p-128", "v2-alpha-tpuv5"),
    "v6e": ("v6e-16", "v6e-64", "v2-alpha-tpuv6e"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["base", "large"])
def test_a_preset_is_a_machine_with_its_system(cluster, size, kind):
    base, large, runtime = KINDS[kind]
    machine = base if size == "base" else large
    same = {"ACCELERATOR_TYPE": machine, "RUNTIME_VERSION": runtime}
    for given in (dict.fromkeys(same, ""), same):
        (command,) = commands("create.sh", cluster(PRESET=f"{size}-{kind}", **given))
        assert f"--accelerator-type={machine}" in command
        assert f"--runtime-version={runtime}" in command


@pytest.mark.parametrize(
    ("name", "value"),
    [("ACCELERATOR_TYPE", "v5litepod-64"), ("RUNTIME_VERSION", "tpu-ubuntu2204-base")],
)
def test_another_machine_beside_a_preset_is_refused(cluster, name, value):
    said = refusal("create.sh", "--dry-run", cluster(PRESET="base-v5e", **{name: value}))
    assert f"{name} is '{value}', but PRESET=base-v5e" in said


def test_each_setting_has_a_line_in_the_example_and_the_same_default(tmp_path):
    shipped = dict(
        line.split("=", 1)
        for line in (LAUNCH / "cluster.env").read_text().splitlines()
        if line and not line.startswith("#")
    )
    script = (LAUNCH / "cluster.sh").read_text()
    (names,) = re.findall(r"^SETTINGS='([^']+)'", script, re.MULTILINE)
    assert names.split() == list(shipped)
    for name in ("INTERNAL_IPS", "LABEL"):
        assert f" {name}={shipped[name]}" in " " + script.replace("\n", " ")


def test_workers_without_outside_addresses_are_reached_inside(cluster):
    for script in ("logs.sh", "train.sh"):
        for inside in ("true", "false"):
            command = commands(script, cluster(INTERNAL_IPS=inside), *FLAGS[script])[-1]
            assert ("--internal-ip" in command) == (inside == "true")


def test_lines_may_end_as_on_windows(cluster, tmp_path):
    option = cluster()
    path = tmp_path / "cluster.env"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert commands("delete.sh", option)[0][5] == "my-tpu"


@pytest.mark.parametrize("script", FLAGS)
def test_a_line_that_is_no_setting_is_refused_and_not_run(cluster, tmp_path, script):
    planted = tmp_path / "planted"
    said = refusal(script, "--dry-run", cluster(f"touch {planted}"), *FLAGS[script])
    assert "is not NAME=VALUE" in said
    assert not planted.exists()


@pytest.mark.parametrize("script", [script for script in FLAGS if script != "train.sh"])
def test_an_unknown_option_is_named(cluster, script):
    said = refusal(script, cluster(), "--dryrun", *FLAGS[script])
    assert f"'--dryrun' is no option of launch/{script}" in said


@pytest.mark.parametrize("script", FLAGS)
def test_gcloud_absent(cluster, tmp_path, script):
    """A PATH on which there are only the commands that lead to the question for gcloud."""
    (tmp_path / "only").mkdir()
    for name in ("bash", "dirname", "git"):
        (tmp_path / "only" / name).symlink_to(shutil.which(name))
    clone = make_clone(tmp_path / "clone")
    path = str(tmp_path / "only")
    said = refusal(clone / "launch" / script, cluster(), *FLAGS[script], PATH=path)
    assert "gcloud is not on PATH; install it" in said
    assert run(clone / "launch" / script, "--dry-run", cluster(), *FLAGS[script], PATH=path).stdout


@pytest.mark.parametrize("script", FLAGS)
def test_gcloud_not_logged_in(cluster, tmp_path, path_with_gcloud, script):
    clone = make_clone(tmp_path / "clone")
    where = {"PATH": path_with_gcloud(), "ACCOUNT": ""}
    said = refusal(clone / "launch" / script, cluster(), *FLAGS[script], **where)
    assert "run 'gcloud auth login'" in said


def test_a_token_file_is_a_login(cluster, path_with_gcloud):
    where = {"PATH": path_with_gcloud(), "ACCOUNT": "", "TOKEN_FILE": "/a/token"}
    assert run("delete.sh", cluster(), "--yes", **where).returncode == 0


@pytest.mark.parametrize("script", ["create.sh", "logs.sh", "ssh.sh", "delete.sh"])
def test_gcloud_gets_what_was_printed_and_its_exit_code_comes_back(
    cluster, path_with_gcloud, script
):
    given = run(script, cluster(), *FLAGS[script], PATH=path_with_gcloud(exit_code=7))
    assert given.returncode == 7
    printed = commands(script, cluster(), *FLAGS[script])[-1]
    assert given.stdout.splitlines() == printed[1:]


def test_a_folder_with_a_blank_and_an_apostrophe_is_quoted(cluster, tmp_path, path_with_gcloud):
    cluster()
    folder = tmp_path / "it's mine"
    folder.mkdir()
    path = (tmp_path / "cluster.env").rename(folder / "cluster.env")
    said = run("create.sh", f"--cluster={path}", PATH=path_with_gcloud()).stdout
    (line,) = (line for line in said.splitlines() if "setup.sh" in line)
    assert shlex.split(line) == ["launch/setup.sh", f"--cluster={path}"]
