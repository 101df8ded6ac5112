"""launch/config_check.sh: a config with a mistake is refused here, before anything is asked for."""

import os
import sys

import pytest

from tests.launch.clones import git, make_clone
from tests.launch.gke.test_jobset_sh import IMAGE
from tests.launch.scripts import refusal, run, write_command

TRAIN = ("--config=configs/base.py", "--workdir=gs://my-bucket/a")
SCRIPTS = {
    "train.sh": TRAIN,
    "watch.sh": (*TRAIN, "--revision=HEAD"),
    "pod.sh": ("configs/base.py", "--revision=HEAD"),
    "gke/jobset.sh": TRAIN,
    "gke/xpk.sh": TRAIN,
}


@pytest.fixture
def clone(tmp_path):
    """A clone with one config, and beside it a Python that reads the config as lines of text."""
    folder = make_clone(tmp_path / "clone")
    (folder / "configs").mkdir()
    (folder / "configs" / "base.py").write_text("right\n")
    (folder / "bert_jax" / "train.py").touch()
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=b")
    return folder


@pytest.fixture
def python(tmp_path, monkeypatch):
    """A stand-in for python that knows the sentences of train, and writes down its arguments."""
    path = tmp_path / "a python" / "python"
    write_command(
        path,
        f'printf "%s\\n" "$@" >{tmp_path}/arguments',
        "for word in $*; do",
        "    [[ $word != --config=* ]] || config=${word#--config=}",
        "done",
        'echo "a warning" >&2',
        'words=""',
        '[[ -f $config ]] || words="--config=$config: there is no such file"',
        '[[ -n $words || $(<"$config") == right ]] || words="not a field of the config: a"',
        '[[ -z $words ]] || { echo "error: $words" >&2; exit 2; }',
    )
    monkeypatch.setenv("BERT_JAX_PYTHON", str(path))
    return path


@pytest.fixture
def canary(tmp_path):
    """A PATH whose gcloud and xpk leave a mark for every question that costs or makes something."""
    for name in ("gcloud", "xpk"):
        write_command(tmp_path / "bin" / name, f'echo "$*" >>{tmp_path}/asked')
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("damage", ["no file", "no field"])
def test_a_mistake_is_refused_with_the_sentence_of_train(
    cluster, clone, python, canary, tmp_path, script, damage
):
    config = clone / "configs" / "base.py"
    if damage == "no file":
        config.unlink()
        (clone / "configs" / "b.py").touch()
    else:
        config.write_text("wrong\n")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message=c")
    option = cluster(BUCKET="gs://my-bucket", **IMAGE)
    said = refusal(clone / "launch" / script, option, *SCRIPTS[script], **canary)
    if damage == "no file":
        assert said == "error: --config=configs/base.py: there is no such file\n"
    else:
        assert said == "error: not a field of the config: a\n"
    assert not (tmp_path / "asked").exists()


def test_the_flags_of_the_training_are_looked_at_but_its_store_is_not(
    cluster, clone, python, tmp_path
):
    flags = (*TRAIN, "--config.data.store=gs://my-bucket/store", "--config.seed=3")
    assert run(clone / "launch" / "train.sh", "--dry-run", cluster(), *flags).returncode == 0
    said = (tmp_path / "arguments").read_text().split()
    assert said == ["-m", "bert_jax.train", *flags, "--config.data.store=", "--print_config"]


def test_what_is_looked_at_is_the_commit_that_is_sent(cluster, clone, python):
    """What was changed and not committed since does not reach the workers."""
    option = cluster(BUCKET="gs://my-bucket")
    (clone / "configs" / "base.py").write_text("wrong\n")
    flags = ("--dry-run", option, *SCRIPTS["watch.sh"])
    assert run(clone / "launch" / "watch.sh", *flags).returncode == 0
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message=c")
    assert "not a field" in refusal(clone / "launch" / "watch.sh", *flags)


def test_the_workers_may_have_another_commit(cluster, clone, python):
    (clone / "configs" / "base.py").write_text("wrong\n")
    flags = ("--dry-run", cluster(), *TRAIN)
    assert run(clone / "launch" / "train.sh", "--skip_config_check", *flags).returncode == 0
    assert run(clone / "launch" / "train.sh", "--dry-run", cluster(), "--stop").returncode == 0
    assert "not a field" in refusal(clone / "launch" / "train.sh", *flags)


def test_without_bert_jax_here_the_file_at_least_is_there(cluster, clone, monkeypatch):
    monkeypatch.setenv("BERT_JAX_PYTHON", "false")  # as a Python without jax ends, with 1
    script = clone / "launch" / "train.sh"
    ran = run(script, "--dry-run", cluster(), *TRAIN)
    assert ran.returncode == 0
    assert ran.stdout
    assert ran.stderr.startswith(
        "note: no Python here has bert_jax, so that configs/base.py is not"
    )
    assert ran.stderr.count("\n") == 1
    flags = ("--config=configs/bse.py", TRAIN[1])
    assert "--config=configs/bse.py: there is no such" in refusal(script, cluster(), *flags)


def test_a_config_that_only_the_workers_have_is_left_to_them(cluster, clone, python):
    flags = ("--config=/mnt/configs/a.py", TRAIN[1])
    ran = run(clone / "launch" / "train.sh", "--dry-run", cluster(), *flags)
    assert ran.returncode == 0
    assert "note: /mnt/configs/a.py is not on this machine" in ran.stderr


@pytest.mark.parametrize(
    "wrong", ["--config.phases[0].stpes=3", pytest.param("", marks=pytest.mark.long)]
)
def test_the_real_train_names_a_wrong_field_and_needs_no_store(cluster, monkeypatch, wrong):
    monkeypatch.setenv("BERT_JAX_PYTHON", sys.executable)
    flags = ("--dry-run", cluster(), *TRAIN, "--config.data.store=/mnt/nowhere")
    if wrong:
        assert "phases[0].stpes=3" in refusal("train.sh", *flags, wrong)
    else:
        assert run("train.sh", *flags).returncode == 0


@pytest.mark.long
def test_the_real_train_says_what_is_no_file(cluster, monkeypatch):
    monkeypatch.setenv("BERT_JAX_PYTHON", sys.executable)
    flags = ("configs/bse.py", "--dry-run", "--revision=HEAD", cluster(BUCKET="gs://my-bucket"))
    said = refusal("pod.sh", *flags)
    assert "--config=configs/bse.py: there is no such file" in said
