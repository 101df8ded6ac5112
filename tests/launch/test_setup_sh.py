"""launch/setup.sh: what it sends, the commands it prints, and what it refuses to send."""

import pytest

from tests.launch.clones import commit, git, make_clone
from tests.launch.scripts import LAUNCH, commands, refusal, run


@pytest.fixture
def clone(tmp_path):
    return make_clone(tmp_path / "clone")


@pytest.fixture
def script(clone):
    return clone / "launch" / "setup.sh"


def test_dry_run_prints_what_packs_sends_and_unpacks_the_commit(cluster, clone, script):
    head = git(clone, "rev-parse", "HEAD")
    name = f"bert_jax-{head}.tar.gz"
    archive = f"{clone}/build/launch/{name}"
    place = ["--zone=us-central2-b", "--project=my-project"]
    assert commands(script, cluster()) == [
        ["mkdir", "-p", f"{clone}/build/launch"],
        ["git", "-C", str(clone), "archive", "--format=tar.gz", f"--output={archive}", head],
        [
            *("gcloud", "compute", "tpus", "tpu-vm", "scp", archive, f"my-tpu:{name}"),
            *(*place, "--worker=all"),
        ],
        [
            *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "my-tpu", *place, "--worker=all"),
            f"--command=tar -xzOf {name} launch/on_worker_setup.sh >bert_jax-setup.sh && "
            f"bash bert_jax-setup.sh {name} {head} bert_jax .venv/bin/python",
        ],
    ]
    assert not (clone / "build").exists()


def test_it_packs_the_commit_and_says_what_comes_next(cluster, clone, script, path_with_gcloud):
    ran = run(script, cluster(), PATH=path_with_gcloud())
    assert ran.returncode == 0
    assert f"my-tpu has commit {git(clone, 'rev-parse', 'HEAD')}" in ran.stdout
    (archive,) = (clone / "build" / "launch").iterdir()
    assert archive.stat().st_size > 0
    assert git(clone, "status", "--porcelain") == ""


def test_nothing_is_run_on_workers_that_got_no_archive(cluster, script, path_with_gcloud):
    ran = run(script, cluster(), PATH=path_with_gcloud(exit_code=7))
    assert ran.returncode == 7
    assert "scp" in ran.stdout
    assert "ssh" not in ran.stdout


@pytest.mark.parametrize("name", ["new.py", "old module.py"])
def test_changes_that_are_not_committed_are_named(cluster, clone, script, name):
    (clone / name).write_text("x = 1\n")
    said = refusal(script, "--dry-run", cluster())
    assert name in said
    assert "commit them, or leave them behind with --revision=HEAD" in said
    assert commands(script, cluster(), "--revision=HEAD")


def test_an_older_commit_can_be_sent(cluster, clone, script):
    first = git(clone, "rev-parse", "HEAD")
    (clone / "new.py").touch()
    commit(clone)
    assert first in commands(script, cluster(), "--revision=HEAD~1")[1]


@pytest.mark.parametrize("revision", ["absent", "--all", "HEAD:launch"])
def test_a_revision_that_is_no_commit_is_named(cluster, script, revision):
    said = refusal(script, "--dry-run", cluster(), f"--revision={revision}")
    assert f"--revision={revision} is no commit" in said


def test_a_commit_without_the_workers_script_is_refused(cluster, clone, script):
    (clone / "launch" / "on_worker_setup.sh").unlink()
    commit(clone)
    assert "launch/on_worker_setup.sh" in refusal(script, "--dry-run", cluster())


def test_scripts_from_a_wheel_say_that_they_need_a_clone(cluster, clone):
    """An environment often lies inside a clone of something."""
    installed = clone / ".venv" / "bert_jax" / "launch"
    installed.mkdir(parents=True)
    for path in (
        LAUNCH / name for name in ("setup.sh", "cluster.sh", "outside_text.sh", "commit.sh")
    ):
        (installed / path.name).write_bytes(path.read_bytes())
    said = refusal(installed / "setup.sh", "--dry-run", cluster())
    assert "is not the launch folder of a clone of bert_jax" in said


@pytest.mark.parametrize("python", ["python3", "bin/python3", "/bin/python"])
def test_a_python_that_is_in_no_environment_of_its_own_is_refused(cluster, script, python):
    said = refusal(script, "--dry-run", cluster(REMOTE_PYTHON=python))
    assert f"REMOTE_PYTHON is '{python}'" in said


def test_a_wheelhouse_is_looked_for_and_named_to_the_workers(cluster, clone, script):
    option = cluster(BUCKET="gs://my-bucket/bert")
    printed = commands(script, option, "--wheelhouse")
    tpu, uv = (
        git(clone, "rev-parse", f"HEAD:requirements/{name}.txt")[:12] for name in ("tpu", "uv")
    )
    folder = f"gs://my-bucket/bert/wheelhouse/{tpu}-{uv}"
    looked = ["gcloud", "storage", "ls", f"{folder}/complete", "--project=my-project"]
    assert printed[0] == looked
    assert printed[-1][-1].endswith(f" bert_jax .venv/bin/python {folder}")
    assert printed[1:-1] == commands(script, option)[:-1]


def test_other_packages_have_another_wheelhouse(cluster, clone, script):
    option = cluster(BUCKET="gs://my-bucket/bert")
    before = commands(script, option, "--wheelhouse")[0]
    (clone / "old module.py").write_text("x = 1\n")
    commit(clone)
    assert commands(script, option, "--wheelhouse")[0] == before
    (clone / "requirements" / "tpu.txt").write_text("# none\n")
    commit(clone)
    assert commands(script, option, "--wheelhouse")[0] != before


def test_nothing_is_sent_where_the_wheelhouse_is_not_complete(cluster, script, path_with_gcloud):
    path = path_with_gcloud()
    said = refusal(script, cluster(BUCKET="gs://my-bucket"), "--wheelhouse", PATH=path, STORED="1")
    assert "/complete cannot be seen" in said
    assert "launch/wheelhouse.sh" in said
    assert "BUCKET is empty" in refusal(script, cluster(), "--wheelhouse")


def test_workers_without_outside_addresses_install_from_the_bucket(cluster, script):
    inside = {"INTERNAL_IPS": "true", "BUCKET": "gs://my-bucket"}
    assert commands(script, cluster(**inside)) == commands(
        script, cluster(**inside), "--wheelhouse"
    )
    assert "BUCKET is empty" in refusal(script, "--dry-run", cluster(INTERNAL_IPS="true"))
