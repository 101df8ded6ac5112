"""A run on gs://: refused, late, gone, killed, half a checkpoint, a second run."""

import contextlib
import json
import re
import shutil
import signal
import time

import gcsfs
import pytest
from etils import epath

from bert_jax.checkpoint.directory import holds_files, quarantine
from bert_jax.runtime.workdir import check_bucket, locate_home
from bert_jax.train_step.metrics import TIMINGS
from data_pipeline import build
from data_pipeline.io import address
from data_pipeline.io.bucket import Bucket
from data_pipeline.store import open_store
from data_pipeline.store.cache import fetch_store
from tests.faults import runs
from tests.faults.bucket_server import NAME, Fault, denied, fake_bucket

pytestmark = pytest.mark.slow

RUN = f"gs://{NAME}/runs/mine"
SAVES = ["--config.phases[0].steps=200", "--config.checkpoint.every_steps=50"]
SAVES += ["--config.log_every_steps=10"]


@pytest.fixture
def bucket():
    with fake_bucket() as server:
        yield server


@pytest.fixture
def here(bucket, monkeypatch):
    """The same, for this process too."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    gcsfs.GCSFileSystem.clear_instance_cache()  # of an earlier test's server
    address.use_one_driver()
    yield bucket
    gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.mark.fault(16, "each permission that a run needs is missing in turn")
@pytest.mark.parametrize(
    ("permission", "method", "path", "what", "role"),
    [
        ("objects.create", "POST", "/upload/", "writing", "objectUser"),
        ("objects.get", "GET", "/o/", "reading", "objectUser"),
        ("objects.delete", "DELETE", "", "deleting", "objectUser"),
        ("buckets.get", "GET", f"/b/{NAME}$", "looking", "legacyBucketReader"),
    ],
)
def test_what_is_not_allowed_is_named_before_the_run(here, permission, method, path, what, role):
    permission = f"storage.{permission}"
    here.faults.append(denied(permission, method, path=path))
    begun = time.monotonic()
    with pytest.raises(PermissionError) as refused:
        check_bucket(Bucket(RUN))
    assert time.monotonic() - begun < 5
    said = str(refused.value)
    account = "trainer@project.iam.gserviceaccount.com"
    assert re.match(rf"{RUN}: {what} .* was refused; {account} has no {permission} on ", said)
    assert f"--role=roles/storage.{role}" in said and "\n" not in said


@pytest.mark.fault(16, "a store is built into a bucket, and without the right to write there")
def test_a_store_is_built_into_a_bucket_or_refused_in_a_sentence(here, tmp_path, capsys):
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"{i}.\n{i}." for i in range(40)))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *"0123456789"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    address = f"gs://{NAME}/stores/mine"
    argv = [f"--input={tmp_path}/corpus.txt", f"--vocab={tmp_path}/vocab.txt", "--workers=1"]
    assert build.main([*argv, f"--output={address}"]) == 0
    assert open_store(fetch_store(address, str(tmp_path / "cache"))).vocab_size == len(pieces)
    here.faults.append(denied("storage.objects.create", "POST", path="/upload/"))
    capsys.readouterr()
    assert build.main([*argv, f"--output=gs://{NAME}/stores/other"]) == 2
    error = capsys.readouterr().err
    assert "where this account may not write" in error and error.count("\n") == 1


@pytest.mark.fault(16, "the bucket does not exist")
def test_a_bucket_that_is_not_there_is_called_so(here):
    with pytest.raises(FileNotFoundError, match="there is no bucket gs://other, or this account"):
        check_bucket(Bucket("gs://other/run"))


@pytest.mark.fault(16, "the bucket answers too late")
def test_a_bucket_that_answers_too_late_is_not_waited_for(here):
    here.faults.append(Fault(("POST",), status=0, delay_secs=1.0))
    with pytest.raises(TimeoutError, match=r"writing \.probe-\w+ got no answer within 0.3 s"):
        check_bucket(Bucket(RUN, answer_secs=0.3))


@pytest.mark.fault(16, "an answer of 503 in between")
def test_a_bucket_that_is_late_once_is_asked_again(here):
    here.faults.append(Fault(("POST",), times=1))
    check_bucket(Bucket(RUN))
    assert here.names("") == []


@pytest.mark.fault(4, "a damaged checkpoint on gs:// is set aside")
def test_a_checkpoint_is_set_aside_in_the_bucket(here):
    damaged = epath.Path(RUN) / "checkpoints" / "3"
    for name in ("state/d/array", "commit_success.txt"):
        (damaged / name).write_text(name)
    assert holds_files(damaged)
    assert str(quarantine(damaged)) == f"{RUN}/checkpoints_damaged/3"
    kept = [f"runs/mine/checkpoints_damaged/3/{n}" for n in ("commit_success.txt", "state/d/array")]
    assert here.names("") == kept
    assert here.text(kept[1]) == "state/d/array"


@contextlib.contextmanager
def training(bucket, scratch, *flags, store):
    """A run in the bucket with its small files in `scratch`."""
    with runs.training(
        *runs.TINY,
        *SAVES,
        *flags,
        f"--config.data.store={store}",
        f"--scratch={scratch}",
        workdir=locate_home(RUN, str(scratch)),
        address=RUN,
        **bucket.environment,
    ) as run:
        yield run


def committed(bucket):
    """Steps of the checkpoints in the bucket that are whole."""
    found = [
        re.fullmatch(r"runs/mine/checkpoints/(\d+)/commit_success.txt", name)
        for name in bucket.names("runs/mine/checkpoints")
    ]
    return sorted(int(one[1]) for one in found if one)


def lines(text):
    whole = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in whole]


@pytest.mark.long
@pytest.mark.fault(16, "a run on gs:// is killed, its host is lost, its newest checkpoint is half")
def test_a_killed_run_goes_on_from_the_bucket_alone(bucket, tiny_store, tmp_path):
    local = tmp_path / "local"
    flags = [*runs.TINY, *SAVES, f"--config.data.store={tiny_store}"]
    with runs.training(*flags, workdir=local) as run:
        run.finish()
    with training(bucket, tmp_path / "a", store=tiny_store) as run:
        run.wait_until(lambda: len(committed(bucket)) > 2, "two more checkpoints than the first")
        run.signal(signal.SIGKILL)
        run.codes()
    newest = committed(bucket)[-1]
    assert newest < 200
    bucket.delete(f"runs/mine/checkpoints/{newest}/commit_success.txt")
    shutil.rmtree(tmp_path / "a")
    with training(bucket, tmp_path / "b", store=tiny_store) as run:
        said = run.finish()
    assert f"resuming at step {newest - 50}" in said
    assert lines(bucket.text("runs/mine/metrics.jsonl")) == runs.lines_of(local)
    receipts = [
        bucket.text("runs/mine/checkpoints/210/receipt/receipt.json"),
        (local / "checkpoints/210/receipt/receipt.json").read_text(),
    ]
    # Of each array, a fingerprint of its bits.
    assert json.loads(receipts[0])["leaves"] == json.loads(receipts[1])["leaves"] != {}


@pytest.mark.long
@pytest.mark.fault(16, "a second run in a workdir on gs://")
def test_a_second_run_is_refused_while_the_first_lives(bucket, tiny_store, tmp_path):
    slow = "--config.phases[0].steps=100000"
    with training(bucket, tmp_path / "a", slow, store=tiny_store) as first:
        first.wait_for_step(10)
        begun = time.monotonic()
        with training(bucket, tmp_path / "b", store=tiny_store) as second:
            said = second.finish(code=2)
        assert time.monotonic() - begun < 60
        assert f"{RUN} is in use by the run of process {first.processes[0].pid} on" in said
        assert first.processes[0].poll() is None


@pytest.mark.long
@pytest.mark.fault(16, "the bucket begins to refuse writes while the run goes on")
def test_a_bucket_that_refuses_in_the_middle_ends_the_run_in_a_sentence(
    bucket, tiny_store, tmp_path
):
    slow = "--config.phases[0].steps=100000"
    with training(bucket, tmp_path / "a", slow, store=tiny_store) as run:
        run.wait_until(lambda: len(committed(bucket)) > 1, "checkpoints")
        before = committed(bucket)
        bucket.faults.append(denied("storage.objects.create", "POST", "PUT"))
        said = run.finish(code=1)
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "has no storage.objects.create on gs://bert-runs: `gcloud storage buckets" in line
    assert set(before[-1:]) <= set(committed(bucket))


@pytest.mark.long
@pytest.mark.fault(16, "503 from the first request on; no network")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_bucket_that_is_out_of_order_is_left_within_a_minute(
    bucket, tiny_store, tmp_path, is_there
):
    if is_there:
        bucket.faults.append(Fault(("GET", "POST", "PUT", "DELETE")))
    else:
        bucket.server.server_close()
    begun = time.monotonic()
    with training(bucket, tmp_path, store=tiny_store) as run:
        said = run.finish(code=1)  # it may be there again when the supervisor starts the next try
    assert time.monotonic() - begun < 75  # a minute, and the imports
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert f"{RUN}: writing .probe-" in line and "look at this host's network" in line
