"""launch/lib/config_check.sh: a config with a mistake is refused before anything is requested."""

import os
import sys

import pytest

from tests.launch.scripts import IMAGE, commit, refusal, run, write_command

pytestmark = pytest.mark.slow

TRAIN = ("--config=configs/base.py", "--workdir=gs://my-bucket/a")
SCRIPTS = {
    "train.sh": TRAIN,
    "watch.sh": (*TRAIN, "--revision=HEAD"),
    "pod.sh": ("configs/base.py", "--revision=HEAD"),
    "gke/jobset.sh": TRAIN,
    "gke/xpk.sh": TRAIN,
}


@pytest.fixture
def clone(clone):
    """A clone with one config; the stand-in for Python reads it as a line of text."""
    (clone / "configs").mkdir()
    (clone / "configs" / "base.py").write_text("right\n")
    (clone / "bert_jax" / "train.py").touch()
    return commit(clone)


@pytest.fixture(autouse=True)
def python(tmp_path, monkeypatch):
    """A stand-in for Python that knows the sentences of train, and no store of the workers."""
    path = tmp_path / "a python" / "python"
    write_command(
        path,
        f'echo "$*" >>{tmp_path}/arguments',
        "for word in $*; do",
        "    [[ $word != --config=* ]] || config=${word#--config=}",
        "done",
        'echo "a warning" >&2',
        'words=""',
        '[[ "$*" != *store=/mnt* || "$*" == *"store= --print_config" ]] || words="no store"',
        '[[ -f $config ]] || words="--config=$config: there is no such file"',
        '[[ -n $words || $(<"$config") == right ]] || words="not a field of the config: a"',
        '[[ -z $words ]] || { echo "error: $words" >&2; exit 2; }',
    )
    monkeypatch.setenv("BERT_JAX_PYTHON", str(path))


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("damage", ["no file", "no field"])
def test_a_mistake_is_refused_with_the_sentence_of_train(cluster, clone, tmp_path, script, damage):
    config = clone / "configs" / "base.py"
    if damage == "no file":
        config.rename(clone / "configs" / "b.py")
        words = "--config=configs/base.py: there is no such file"
    else:
        config.write_text("wrong\n")
        words = "not a field of the config: a"
    commit(clone)
    for name in ("gcloud", "xpk"):
        write_command(tmp_path / "bin" / name, f'echo "$*" >>{tmp_path}/asked')
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    option = cluster(BUCKET="gs://my-bucket", **IMAGE)
    said = refusal(clone / "launch" / script, option, *SCRIPTS[script], **path)
    assert said == f"error: {words}\n"
    assert not (tmp_path / "asked").exists()


def test_a_store_that_only_the_workers_have_is_left_to_them(cluster, clone, tmp_path):
    flags = (*TRAIN, "--config.data.store=/mnt/store", "--config.seed=3")
    assert run(clone / "launch" / "train.sh", "--dry-run", cluster(), *flags).returncode == 0
    *_, last = (tmp_path / "arguments").read_text().splitlines()
    words = " ".join(("-m", "bert_jax.train", *flags))
    assert last == f"{words} --config.data.store= --print_config"


def test_what_is_resolved_is_the_commit_that_is_sent(cluster, clone):
    """What was changed and not committed since does not reach the workers."""
    (clone / "configs" / "base.py").write_text("wrong\n")
    flags = ("--dry-run", cluster(), *SCRIPTS["watch.sh"])
    assert run(clone / "launch" / "watch.sh", *flags).returncode == 0
    commit(clone)
    assert "not a field" in refusal(clone / "launch" / "watch.sh", *flags)
    # The workers may have another commit.
    flags, script = ("--dry-run", cluster(), *TRAIN), clone / "launch" / "train.sh"
    assert run(script, "--skip_config_check", *flags).returncode == 0
    assert run(script, "--dry-run", cluster(), "--stop").returncode == 0
    assert "not a field" in refusal(script, *flags)


def test_what_cannot_be_resolved_here_is_noted(cluster, clone, monkeypatch):
    script, option = clone / "launch" / "train.sh", cluster()
    ran = run(script, "--dry-run", option, "--config=/mnt/configs/a.py", TRAIN[1])
    assert ran.returncode == 0
    assert "note: /mnt/configs/a.py is not on this machine" in ran.stderr
    monkeypatch.setenv("BERT_JAX_PYTHON", "false")  # as a Python without jax ends, with 1
    ran = run(script, "--dry-run", option, *TRAIN)
    assert ran.returncode == 0 and ran.stdout
    words = "note: no Python here has bert_jax, so only the workers resolve configs/base.py\n"
    assert ran.stderr == words
    said = refusal(script, option, "--config=configs/bse.py", TRAIN[1])
    assert "--config=configs/bse.py: there is no such" in said


STORE = "--config.data.store="
REAL = [
    (("--config.phases[0].stpes=3",), "phases[0].stpes=3"),
    ((f"{STORE}gs://b/s",), "config.data.store is gs://b/s, which each host copies once, but"),
    pytest.param((f"{STORE}/mnt/nowhere",), "", marks=pytest.mark.long),
    pytest.param(
        (f"{STORE}gs://b/s", "--config.data.data_cache=/tmp/s"), "", marks=pytest.mark.long
    ),
    pytest.param(("--config=configs/bse.py",), "there is no such file", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("flags", "words"), REAL)
def test_the_real_train_resolves_the_config_without_a_store(cluster, monkeypatch, flags, words):
    """A store in a bucket needs a folder for its copies; the workers would refuse it much later."""
    monkeypatch.setenv("BERT_JAX_PYTHON", sys.executable)
    given = ("--dry-run", cluster(), *TRAIN, *flags)
    if words:
        assert words in refusal("train.sh", *given)
    else:
        assert run("train.sh", *given).returncode == 0
