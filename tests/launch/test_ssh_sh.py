"""launch/ssh.sh: a shell on one worker, a command on one or all."""

import pytest

from tests.launch.scripts import commands, refusal

PLACE = ["my-tpu", "--zone=us-central2-b", "--project=my-project"]


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ((), ["--worker=0"]),
        (("--worker=3",), ["--worker=3"]),
        (("df -h | tail -1",), ["--worker=0", "--command=df -h | tail -1"]),
        (("--worker=all", "uptime"), ["--worker=all", "--command=uptime"]),
    ],
)
def test_dry_run_prints_one_command(cluster, given, printed):
    (command,) = commands("ssh.sh", cluster(), *given)
    assert command == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", *PLACE, *printed]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--worker=all",), "a shell is opened on one worker"),
        (("--worker=-1",), "--worker=-1 is neither"),
        (("df", "-k"), "'-k' is no option of launch/ssh.sh"),
        (("df", "tail"), "give one, in quotes: launch/ssh.sh 'df tail'"),
    ],
)
def test_what_is_not_clear_is_refused(cluster, given, said):
    assert said in refusal("ssh.sh", "--dry-run", cluster(), *given)
