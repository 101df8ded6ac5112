"""launch/create.sh and delete.sh: what they request, wait for and delete, and leave alone."""

import pytest

from tests.launch.scripts import write_command

pytestmark = pytest.mark.slow


def test_next_commands_and_the_cost_are_named(pod):
    said = pod.run("create.sh").stdout
    assert "queued-resources describe my-tpu" in said
    assert f"launch/setup.sh {pod.cluster}" in said
    assert "costs money" in said
    assert f"launch/delete.sh {pod.cluster}" in said


# The states of a request -> the flags, the exit code, the states that are printed, the error.
WAITS = {
    "active": (
        [("ACCEPTED", 1), ("WAITING_FOR_RESOURCES", 1), ("PROVISIONING", 2), ("503", 1)],
        ("ACTIVE", ()),
        (0, ["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"], "UNAVAILABLE"),
    ),
    "no answer": (
        [("ACCEPTED", 1)],
        ("503", ()),
        (1, ["ACCEPTED"], "five queries for my-tpu in a"),
    ),
    "limit": (
        [],
        ("PROVISIONING", ("--wait=9s", "--poll_secs=10")),
        (1, ["PROVISIONING"], "my-tpu is still PROVISIONING after"),
    ),
} | {
    state: (
        [("ACCEPTED", 1)],
        (state, ()),
        (
            1,
            ["ACCEPTED", state],
            f"my-tpu is {state} and will not become ACTIVE; run launch/delete.sh",
        ),
    )
    for state in ("FAILED", "SUSPENDED", "DELETING")
}


@pytest.mark.parametrize("case", WAITS)
def test_waiting_prints_each_state_until_there_is_a_tpu_vm_or_will_be_none(pod, api, case):
    states, (last, flags), (code, printed, error) = WAITS[case]
    api.lives = [[(state, None, times) for state, times in [*states, (last, 0)]]]
    write_command(pod.commands / "sleep")
    ran = pod.run("create.sh", *(flags or ("--wait",)), code=code)
    lines = [line.split(" after ")[0] for line in ran.stdout.splitlines() if "Z my-tpu is " in line]
    assert [line.split(" is ")[1] for line in lines] == printed
    assert error in ran.stderr
    assert case != "no answer" or ran.stderr.count("UNAVAILABLE") == 5


def test_only_the_name_that_is_typed_deletes(pod, api):
    api.create("bert_jax")
    for answer in ("y\n", "\n", "my-tpu-2\n", "\x04"):
        ran = pod.run("delete.sh", typed=answer, code=2)
        assert (ran.stdout, "nothing was deleted" in ran.stderr) == ("", True)
    assert "add --yes" in pod.run("delete.sh", code=2).stderr
    assert api.names
    ran = pod.run("delete.sh", typed="my-tpu\n")
    assert "This deletes my-tpu in us-central2-b of my-project" in ran.stderr
    assert "Deleted my-tpu" in ran.stdout
    assert api.names == {}


@pytest.mark.parametrize(
    ("label", "ours"), [("", "bert_jax"), ("bert_jax2", "bert_jax"), ("anna", "bert")]
)
def test_a_tpu_vm_without_our_label_goes_only_when_its_name_is_typed(pod, api, label, ours):
    api.create(label)
    pod.set(LABEL=ours)
    said = pod.run("delete.sh", "--yes", code=2).stderr
    assert f"launched_by='{label}', not '{ours}'" in said and "nothing was deleted" in said
    said = pod.run("delete.sh", "--yes", "--force_foreign", code=2).stderr
    assert "there is none; run --force_foreign on one" in said
    assert api.names
    pod.run("delete.sh", "--yes", "--force_foreign", typed="my-tpu\n")
    assert api.names == {}


def test_a_label_of_ones_own_is_compared(pod, api):
    api.create("anna")
    pod.set(LABEL="anna")
    pod.run("delete.sh", "--yes")
    assert api.names == {}


# A request and the status of its answer -> the message.
FAILURES = [
    ("GET", 404, "my-tpu was not found among the queued"),
    ("GET", 403, "PERMISSION_DENIED: no right"),
    ("DELETE", 503, "UNAVAILABLE: no right"),
]


@pytest.mark.parametrize(("method", "status", "words"), FAILURES)
def test_a_deletion_that_fails_says_that_it_may_still_cost_money(pod, api, method, status, words):
    api.create("bert_jax")
    api.refusals = [(method, status, "no right")]
    ran = pod.run("delete.sh", "--yes", code=1)
    assert words in ran.stderr and ran.stdout == ""
    assert "may still cost money; list what exists: gcloud compute tpus tpu-vm list" in ran.stderr
    assert api.names
