"""Two processes of one device each train the run that one process trains alone."""

import json
import socket
import subprocess

import pytest

from tests.smoke.test_train import ROOT, TINY, command, environment, run


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def losses_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    names = ("mlm_loss", "unigram_mlm_loss", "majority_nsp_accuracy")
    return {
        (line["step"], line["split"], name): line[name]
        for line in lines
        for name in names
        if name in line
    }


def test_two_processes_train_as_one_on_packed_rows(tiny_store, tmp_path):
    flags = [*TINY, f"--config.data.store={tiny_store}", "--config.phases[0].steps=20"]
    flags += ["--config.mesh.preset=zero1", "--config.log_every_steps=5"]
    flags += ["--config.optim.warmup_steps=5", "--config.phases[1].seq_len=48"]
    flags += ["--config.phases[1].max_predictions_per_seq=7"]
    flags += ["--config.data.packed_examples=2", "--config.data.short_seq_prob=0.5"]
    joined = [f"--coordinator_address=127.0.0.1:{free_port()}", "--num_processes=2", "--multihost"]
    processes = [
        subprocess.Popen(
            command(*flags, *joined, f"--process_id={number}", f"--workdir={tmp_path / 'two'}"),
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    run(*flags, f"--workdir={tmp_path / 'one'}")
    assert losses_of(tmp_path / "two") == pytest.approx(losses_of(tmp_path / "one"), rel=1e-4)
    assert (tmp_path / "two" / "checkpoints" / "30").is_dir()
