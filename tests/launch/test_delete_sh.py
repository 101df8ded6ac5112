"""launch/delete.sh: what it deletes, and that it asks first."""

import os
import pty
import subprocess

from tests.launch.scripts import LAUNCH, commands, gcloud_accepts, needs_gcloud, refusal, run


def typed(answer: str, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run delete.sh on a terminal where this is typed."""
    ours, its = pty.openpty()
    os.write(ours, answer.encode())
    ran = subprocess.run(
        ["bash", str(LAUNCH / "delete.sh"), *arguments],
        stdin=its,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
    )
    os.close(ours)
    os.close(its)
    return ran


def test_dry_run_prints_one_command_and_does_not_ask(cluster):
    assert commands("delete.sh", cluster()) == [
        [
            *("gcloud", "compute", "tpus", "queued-resources", "delete", "my-tpu", "--force"),
            *("--zone=us-central2-b", "--project=my-project", "--quiet"),
        ]
    ]


@needs_gcloud
def test_gcloud_knows_the_flags(cluster, tmp_path):
    (command,) = commands("delete.sh", cluster())
    assert gcloud_accepts(command, tmp_path)


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
