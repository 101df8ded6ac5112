"""launch/create.sh: the queued resource that it asks for, and what it says comes next."""

import pytest

from tests.launch.scripts import commands, gcloud_accepts, needs_gcloud, run

ON_DEMAND = [
    *("gcloud", "compute", "tpus", "queued-resources", "create", "my-tpu", "--node-id=my-tpu"),
    *("--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"),
    *("--zone=us-central2-b", "--project=my-project"),
]


@pytest.mark.parametrize(("spot", "more"), [("false", []), ("true", ["--spot"])])
def test_dry_run_prints_one_request(cluster, spot, more):
    assert commands("create.sh", cluster(SPOT=spot)) == [ON_DEMAND + more]


@needs_gcloud
@pytest.mark.parametrize(("broken", "accepted"), [((), True), (("--accelerators=4",), False)])
def test_gcloud_knows_the_flags(cluster, tmp_path, broken, accepted):
    (command,) = commands("create.sh", cluster(SPOT="true"))
    assert gcloud_accepts([*command, *broken], tmp_path) is accepted


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
