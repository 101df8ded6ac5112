"""A secret in the environment of a run: it must stand in nothing that the run writes."""

import signal

import pytest

from tests.faults.runs import TINY, training

CANARY = "canary-6b1f0c2e9d"

pytestmark = pytest.mark.long


@pytest.mark.fault(20, "secrets in the environment of a run that is stopped, and of one that ends")
def test_no_file_of_a_run_holds_what_stands_in_its_environment(tiny_store, tmp_path):
    names = ("HF_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS_JSON", "CLOUDSDK_AUTH_ACCESS_TOKEN")
    secrets = {name: f"{CANARY}-{name}" for name in names}
    flags = [*TINY, f"--config.data.store={tiny_store}", "--config.phases[0].steps=60"]
    flags += ["--config.optim.warmup_steps=5", "--config.log_every_steps=5"]
    with training(*flags, workdir=tmp_path / "run", **secrets) as run:
        run.wait_for_step(10)
        run.signal(signal.SIGTERM)
        run.codes()
    with training(*flags, "--profile_steps=65:66", workdir=tmp_path / "run", **secrets) as run:
        run.finish()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "metrics.jsonl", "summary.json"} <= {path.name for path in files}
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
