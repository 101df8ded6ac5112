"""The scripts one by one with a stand-in for gcloud: what they send, show and refuse."""

import io
import os
import re
import shlex
import shutil
import sys

import pytest

from launch.cloud import job, watch
from tests.launch import scripts
from tests.launch.scripts import LAUNCH, TRAIN_FLAGS, commit, run_on, write_command
from tests.launch.simulated_cloud import HOUR

pytestmark = pytest.mark.slow

TRAIN = ("--config=configs/base.py", "--workdir=gs://my-bucket/a")


def remote(call, *arguments):
    """Return the commands that a script would run on the workers."""
    code, out, error = call(*arguments, "--dry-run")
    assert (code, error) == (0, "")
    words = [word for line in out.splitlines() for word in shlex.split(line)]
    return [word.removeprefix("--command=") for word in words if word.startswith("--command=")]


def test_a_flag_reaches_the_training_as_it_was_given_and_its_log_is_shown(
    call, cluster, tmp_path, monkeypatch
):
    flags = (*TRAIN_FLAGS, "--x=/mnt/my stores/a[0]$(id);`id`'\"&|\\", "--x=")
    monkeypatch.setenv("LIBTPU_LOCK", str(tmp_path / "libtpu_lockfile"))
    home = tmp_path / "w-1"
    shutil.copytree(LAUNCH / "worker", home / "bert_jax" / "launch" / "worker")
    python = home / "bert_jax" / ".venv" / "bin" / "python"
    write_command(python, 'printf "%s\n" "$@" "port ${JAX_COORDINATOR_PORT-none}"', "touch end")
    (logs,) = remote(call, "logs", cluster(), "--lines=2")
    ran = run_on(home, logs)
    assert ran.returncode == 1 and "launch/train.sh has not run" in ran.stderr
    for command in remote(call, "train", cluster(COORDINATOR_PORT="8476"), *flags):
        ran = run_on(home, command)
        assert ran.returncode == 0, ran
    words = ["-u", "-m", "bert_jax.train", "--multihost", *flags, "port 8476"]
    (stop,) = remote(call, "train", cluster(), "--stop")
    run_on(home, f"until [ -e bert_jax/end ]; do sleep 0.05; done; {stop}")
    first, *lines = (home / "bert_jax" / "logs" / "train.log").read_text().splitlines()
    assert first.endswith("Z train.sh")
    assert lines[: len(words)] == words
    assert run_on(home, logs).stdout.splitlines() == [f"w-1: {line}" for line in lines[-2:]]


def test_a_log_ends_quietly_with_its_reader_in_any_locale(cluster, tools):
    write_command(tools / "gcloud", '[[ "$1 $2" != "auth list" ]] || exec echo me', "yes 漢")
    pipe = f"bash {LAUNCH / 'logs.sh'} {cluster()} | head -n 1"
    # As of a locale without UTF-8.
    around = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ran = scripts.call(["bash", "-c", pipe], env=around)
    assert (ran.stdout, ran.stderr) == ("漢\n", "")


def test_supervision_outlives_the_reader_of_its_events():
    opened, written = os.pipe()
    os.close(opened)
    with open(written, "w") as file:
        for _ in range(2):
            watch.show("an event", file)


FOLDER = "gs://my-bucket/logs/my-tpu"
LIST = f"""\
      20  2026-11-22T03:04:05Z  {FOLDER}/t1v-n-1-w-0-20261122T020000Z.log
      30  2026-11-22T03:05:05Z  {FOLDER}/t1v-n-1-w-1-20261122T020000Z.log
      10  2026-11-20T03:04:05Z  {FOLDER}/t1v-n-0-w-1-20261120T020000Z.log
       1  2026-11-23T03:04:05Z  {FOLDER}/\x1b[2J.log
TOTAL: 4 objects, 60 bytes (60B)
"""


@pytest.mark.fault(24, "escapes in the log of a worker, and in a name in the bucket")
@pytest.mark.parametrize(
    ("worker", "newest"), [("all", "1-w-1"), ("0", "1-w-0"), ("1", "1-w-1"), ("2", "")]
)
def test_the_bucket_shows_the_newest_copy(call, cluster, tools, tmp_path, worker, newest):
    (tmp_path / "list").write_text(LIST)
    write_command(
        tools / "gcloud",
        '[[ "$1 $2" != "auth list" ]] || echo me',
        f'[[ "$1 $2" != "storage ls" ]] || cat {tmp_path / "list"}',
        '[[ "$1 $2" != "storage cat" ]] || printf "%s\\n" "a $3" "b $3" $\'\\x1b]0;c\\x07\\xff\'',
    )
    flags = ("--bucket", "--lines=2", f"--worker={worker}")
    code, out, error = call("logs", cluster(BUCKET="gs://my-bucket"), *flags)
    if not newest:
        assert (code, f"{FOLDER} has no log of worker 2" in error) == (1, True)
        return
    listed, _, end = out.partition("\n\n")
    assert [line.split()[0] for line in listed.splitlines()] == ["10", "20", "30"]
    address = f"{FOLDER}/t1v-n-{newest}-20261122T020000Z.log"
    assert end.splitlines() == [address, f"b {address}", r"\x1b]0;c\x07\xff"]


@pytest.mark.parametrize("road", ["queued", "compute_engine"])
def test_a_slice_is_deleted_with_its_label_alone(call, refused, cluster, cloud, road):
    """By the command that create.sh prints, which repeats the flags that override the file."""
    cloud.road, settings = road, {"BUCKET": "gs://my-bucket"}
    own = ("--topology=v5e:2x4",) if road == "queued" else ("--topology=v6e:2x4", *TRAIN)
    code, out, _ = call("create", cluster(**settings), "--wait=6h", "--revision=HEAD", *own)
    assert code == 0 and "my-tpu is READY after" in out
    delete = shlex.split(re.search("launch/delete.sh (.+)", out)[1])
    cloud.label = "anna"
    assert "--force_foreign needs" in refused("delete", *delete, "--force_foreign")
    assert "launched_by='anna', not 'bert_jax'" in refused("delete", *delete, "--yes")
    assert cloud.state == "ACTIVE"
    cluster(**settings, LABEL="anna")
    assert call("delete", *delete, "--yes")[0] == 0
    cloud.sleep(HOUR)
    assert not cloud.exists
    code, _, error = call("delete", *delete, "--yes")
    listing = "tpus tpu-vm list" if road == "queued" else "instances list"
    assert code == 1 and "my-tpu was not found" in error and f"gcloud compute {listing}" in error


def test_a_creation_that_fails_says_what_deletes_whatever_it_left(call, cluster, cloud):
    option = cluster()
    assert call("create", option)[0] == 0
    code, out, error = call("create", option)
    assert (code, out) == (1, "") and "ALREADY_EXISTS" in error
    assert f"costs money until: launch/delete.sh {option}" in error


def test_ctrl_c_ends_a_wait_without_a_traceback(call, cluster, cloud):
    def interrupt(secs):
        raise KeyboardInterrupt

    cloud.grants_from, cloud.on_sleep = cloud.now + 10 * HOUR, interrupt
    assert call("create", cluster(), "--wait")[0] == 130


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self):
        return True


def test_only_the_name_that_is_typed_deletes(cluster, cloud, call, monkeypatch):
    call("create", cluster())
    for typed, code in {"y\n": 2, "my-tpu-2\n": 2, "": 2, "my-tpu\n": 0}.items():
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        ran = call("delete", cluster())
        assert ran[0] == code and "This deletes my-tpu" in ran[2]
        assert (cloud.state != "DELETING") == bool(code)


@pytest.fixture
def config(clone, tmp_path, monkeypatch):
    """A config of one line; the stand-in for Python knows the sentences of train, no store."""
    config = clone / "configs" / "base.py"
    config.parent.mkdir()
    (clone / "bert_jax" / "train.py").touch()
    config.write_text("right\n")
    commit(clone)
    python = tmp_path / "a python" / "python"
    write_command(
        python,
        f'echo "$*" >>{tmp_path}/arguments',
        "[[ -f configs/base.py ]] || exit 1",
        'end() { echo "error: $1" >&2; exit 2; }',
        '[[ "$*" != *store=/mnt* || "$*" == *"store= --print_config" ]] || end "no store"',
        '[[ $(<configs/base.py) == right ]] || end "not a field of the config: a"',
        "printf '\\ndata:\\n  store: gs://b/s\\n'",
    )
    monkeypatch.setenv("BERT_JAX_PYTHON", str(python))
    return config


@pytest.mark.parametrize("name", ["train", "watch", "pod", "create"])
def test_a_mistake_in_a_config_is_refused_as_by_train(refused, call, cluster, clone, config, name):
    """What is resolved is the commit that is sent; `train` sends none, and takes the files here."""
    config.write_text("wrong\n")
    option = cluster(BUCKET="gs://my-bucket", TOPOLOGY="v6e:2x4" if name == "create" else "v5e:2x4")
    words = [name, option, "--dry-run", *(("configs/base.py",) if name == "pod" else TRAIN)]
    if name != "train":
        words.append("--revision=HEAD")
        assert call(*words)[0] == 0
        commit(clone)
    assert "not a field of the config: a" in refused(*words)
    config.unlink()
    commit(clone)
    assert "--config=configs/base.py: there is no such file" in refused(*words)


def test_a_store_that_a_config_names_is_checked(call, cluster, config):
    assert "ls gs://b/s/manifest.json" in call("check", "--dry-run", cluster(), TRAIN[0])[1]


def test_a_commit_that_cannot_be_unpacked_here_is_refused(refused, cluster, tools):
    write_command(tools / "tar", "echo 'tar: a: No space left on device' >&2; exit 2")
    said = refused("watch", "--dry-run", cluster(), *TRAIN)
    assert "tar: a: No space left on device" in said and "TMPDIR" in said


def test_what_only_workers_have_is_left_to_them(call, cluster, config, tmp_path, monkeypatch):
    flags = ("--dry-run", cluster(), *TRAIN)
    assert call("watch", *flags, "--revision=HEAD", "--config.data.store=/mnt/a,b")[0] == 0
    assert call("train", *flags, "--config.data.store=/mnt/store", "--config.seed=3")[0] == 0
    *_, last = (tmp_path / "arguments").read_text().splitlines()
    asked = "--config.data.store=/mnt/store --config.seed=3 --config.data.store= --print_config"
    assert last.endswith(asked)
    ran = call("train", "--dry-run", cluster(), "--config=/mnt/configs/a.py", TRAIN[1])
    assert ran[0] == 0 and "note: /mnt/configs/a.py is not on this machine" in ran[2]
    monkeypatch.setenv("BERT_JAX_PYTHON", "false")  # as a Python without jax ends, with 1
    code, _, error = call("train", *flags)
    assert code == 0 and "so only the workers resolve configs/base.py" in error


# A store in a bucket needs a folder for its copies; the workers would refuse it much later.
MISTAKES = {
    "--config.phases[0].stpes=3": "phases[0].stpes=3",
    "--config.data.store=gs://b/s": "config.data.store is gs://b/s",
    "--config.mesh.num_slices=2": "config.mesh.num_slices is 2, but one slice is created",
}


@pytest.mark.long
@pytest.mark.parametrize("flag", MISTAKES)
def test_the_real_train_resolves_the_config_without_a_store(refused, cluster, monkeypatch, flag):
    monkeypatch.setenv("BERT_JAX_PYTHON", sys.executable)
    monkeypatch.setattr(job, "ROOT", LAUNCH.parent)
    assert MISTAKES[flag] in refused("train", "--dry-run", cluster(), *TRAIN, flag)
