"""launch/create.sh: the queued resource that it asks for, and what it says comes next."""

import pathlib

import pytest

from tests.launch.scripts import (
    commands,
    refusal,
    run,
    write_command,
)

ON_DEMAND = [
    *("gcloud", "compute", "tpus", "queued-resources", "create", "my-tpu", "--node-id=my-tpu"),
    *("--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"),
    *("--zone=us-central2-b", "--project=my-project", "--labels=launched_by=bert_jax"),
]
ALL = {
    "SPOT": "true",
    "VALID_UNTIL": "6h",
    "SERVICE_ACCOUNT": "trainer@my-project.iam.gserviceaccount.com",
    "NETWORK": "my-network",
    "SUBNETWORK": "my-subnetwork",
    "INTERNAL_IPS": "true",
    "LABEL": "anna",
}


@pytest.mark.parametrize(("spot", "more"), [("false", []), ("true", ["--spot"])])
def test_dry_run_prints_one_request(cluster, spot, more):
    assert commands("create.sh", cluster(SPOT=spot)) == [ON_DEMAND + more]


def test_it_says_what_comes_next_and_that_it_costs_money(cluster, path_with_gcloud):
    option = cluster()
    said = run("create.sh", option, PATH=path_with_gcloud()).stdout
    assert "queued-resources describe my-tpu" in said
    assert f"launch/setup.sh {option}" in said
    assert "costs money" in said
    assert f"launch/delete.sh {option}" in said


@pytest.mark.parametrize("kind", ["v4-32", "v5p-128", "v6e-64", "tpu7x-16"])
def test_other_kinds_pass(cluster, kind):
    assert f"--accelerator-type={kind}" in commands("create.sh", cluster(ACCELERATOR_TYPE=kind))[0]


def test_each_setting_has_its_flag(cluster):
    (command,) = commands("create.sh", cluster(**ALL))
    assert command == [
        *ON_DEMAND[:-1],
        *("--labels=launched_by=anna", "--spot", "--valid-until-duration=6h"),
        "--service-account=trainer@my-project.iam.gserviceaccount.com",
        *("--network=my-network", "--subnetwork=my-subnetwork", "--internal-ips"),
    ]


def test_waiting_says_each_state_until_it_is_active(cluster, path_with_gcloud):
    waits = ("ACCEPTED bert_jax", "WAITING_FOR_RESOURCES bert_jax", "PROVISIONING bert_jax")
    queued = ",".join((*waits, waits[-1], "ERROR", "ACTIVE bert_jax"))
    ran = run_waiting(cluster, path_with_gcloud, queued)
    assert ran.returncode == 0
    said = [line.split(" after ")[0] for line in ran.stdout.splitlines() if "Z my-tpu is " in line]
    assert [line.split(" is ")[1] for line in said] == [
        *("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
    ]
    assert "try later" in ran.stderr


def run_waiting(cluster, path_with_gcloud, queued, *flags):
    """Run create.sh --wait with a sleep that takes no time."""
    path = path_with_gcloud()
    write_command(pathlib.Path(path.partition(":")[0]) / "sleep")
    where = {"PATH": path, "QUEUED": queued, "ERROR": "503 try later"}
    return run("create.sh", cluster(), *(flags or ("--wait",)), **where)


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED", "DELETING"])
def test_waiting_ends_where_there_will_be_none(cluster, path_with_gcloud, state):
    ran = run_waiting(cluster, path_with_gcloud, f"ACCEPTED bert_jax,{state} bert_jax")
    assert ran.returncode == 1
    assert f"my-tpu is {state} and will not become ACTIVE; run launch/delete.sh" in ran.stderr


def test_waiting_ends_where_nobody_answers(cluster, path_with_gcloud):
    ran = run_waiting(cluster, path_with_gcloud, "ACCEPTED bert_jax,ERROR")
    assert ran.returncode == 1
    assert ran.stderr.count("503 try later") == 5


def test_waiting_ends_at_its_limit(cluster, path_with_gcloud):
    flags = ("--wait=9s", "--poll_secs=10")
    ran = run_waiting(cluster, path_with_gcloud, "PROVISIONING bert_jax", *flags)
    assert ran.returncode == 1
    assert "my-tpu is still PROVISIONING after" in ran.stderr


@pytest.mark.parametrize("flag", ["--wait=", "--wait=6", "--wait=6 h", "--poll_secs=0"])
def test_a_bad_time_is_named(cluster, flag):
    assert flag in refusal("create.sh", "--dry-run", cluster(), flag)
