"""launch/delete.sh: what it deletes, and that it asks first."""

import os
import pty
import subprocess

import pytest

from tests.launch.scripts import LAUNCH, commands, refusal, run


def typed(
    answer: str, *arguments: str, path: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run delete.sh on a terminal where this is typed."""
    ours, its = pty.openpty()
    os.write(ours, answer.encode())
    ran = subprocess.run(
        ["bash", str(LAUNCH / "delete.sh"), *arguments],
        stdin=its,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path} | environment,
    )
    os.close(ours)
    os.close(its)
    return ran


def test_dry_run_prints_the_question_and_the_command_and_does_not_ask(cluster):
    question, command = commands("delete.sh", cluster())
    assert question[:6] == ["gcloud", "compute", "tpus", "queued-resources", "describe", "my-tpu"]
    assert question[-1].endswith("labels.launched_by)")
    assert command == [
        *("gcloud", "compute", "tpus", "queued-resources", "delete", "my-tpu", "--force"),
        *("--zone=us-central2-b", "--project=my-project", "--quiet"),
    ]


def test_the_name_typed_deletes(cluster, path_with_gcloud):
    ran = typed("my-tpu\n", cluster(), path=path_with_gcloud())
    assert ran.returncode == 0
    assert "This deletes my-tpu in us-central2-b of my-project" in ran.stderr
    assert "queued-resources\ndelete\nmy-tpu\n" in ran.stdout
    assert "Deleted my-tpu" in ran.stdout


def test_another_name_typed_deletes_nothing(cluster, path_with_gcloud):
    for answer in ("y\n", "\n", "my-tpu-2\n", "\x04"):
        ran = typed(answer, cluster(), path=path_with_gcloud())
        assert ran.returncode == 2
        assert ran.stdout == ""
        assert "nothing was deleted" in ran.stderr


def test_no_terminal_and_no_yes_deletes_nothing(cluster, path_with_gcloud):
    assert "add --yes" in refusal("delete.sh", cluster(), PATH=path_with_gcloud())


def test_a_failure_says_that_it_may_still_cost_money(cluster, path_with_gcloud):
    ran = run("delete.sh", cluster(), "--yes", PATH=path_with_gcloud(exit_code=3))
    assert ran.returncode == 3
    assert "my-tpu may still cost money" in ran.stderr
    assert "Deleted" not in ran.stdout


@pytest.mark.parametrize("queued", ["ACTIVE", "ACTIVE other", "ACTIVE bert_jax2"])
def test_what_has_not_our_mark_is_left_alone(cluster, path_with_gcloud, queued):
    said = refusal("delete.sh", cluster(), "--yes", PATH=path_with_gcloud(), QUEUED=queued)
    assert f"launched_by='{queued.removeprefix('ACTIVE').strip()}', not 'bert_jax'" in said
    assert "nothing was deleted" in said


def test_a_mark_of_ones_own_is_asked_for(cluster, path_with_gcloud):
    where = {"PATH": path_with_gcloud(), "QUEUED": "ACTIVE anna"}
    assert run("delete.sh", cluster(LABEL="anna"), "--yes", **where).returncode == 0
    assert "not 'bert'" in refusal("delete.sh", cluster(LABEL="bert"), "--yes", **where)


def test_what_is_foreign_goes_only_when_its_name_is_typed(cluster, path_with_gcloud):
    where = {"PATH": path_with_gcloud(), "QUEUED": "ACTIVE other"}
    flags = (cluster(), "--yes", "--force_foreign")
    assert "only for hands" in refusal("delete.sh", *flags, **where)
    by_hand = typed("my-tpu\n", *flags, path=where["PATH"], QUEUED=where["QUEUED"])
    assert by_hand.returncode == 0
    assert "delete\nmy-tpu\n" in by_hand.stdout


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ERROR: (gcloud) NOT_FOUND: it was not found", "my-tpu was not found among the queued"),
        ("ERROR: (gcloud) PERMISSION_DENIED: no right", "PERMISSION_DENIED: no right"),
    ],
)
def test_nothing_is_deleted_that_cannot_be_seen(cluster, path_with_gcloud, error, said):
    where = {"PATH": path_with_gcloud(), "QUEUED": "ERROR", "ERROR": error}
    ran = run("delete.sh", cluster(), "--yes", **where)
    assert ran.returncode == 1
    assert said in ran.stderr
    assert "may still cost money; what there is: gcloud compute tpus tpu-vm list" in ran.stderr
    assert ran.stdout == ""
