"""launch/worker/on_boot.sh on a machine of a group: boots that train, and one after the end."""

import os
import shutil

import pytest

from tests.launch.scripts import LAUNCH, call, git, write_command

pytestmark = pytest.mark.slow

FOLDER = "gs://my-bucket/launch/my-tpu"


@pytest.fixture
def boot(clone, bucket, worker_tools, tmp_path):
    """A function that boots the machine, waits for its script's end, and gives its records.

    The bucket refuses the next three records after a run that ends with 3.
    """
    folder = bucket / "my-bucket" / "launch" / "my-tpu"
    folder.mkdir(parents=True)
    head = git(clone, "rev-parse", "HEAD")
    git(clone, "archive", f"--output={folder / 'code.tar.gz'}", head)
    write_command(worker_tools / "curl", f"[[ ${{!#}} == */bert-jax-folder ]] && echo {FOLDER}")
    # Exit codes of the runs, one a line; the environment's Python is replaced by this.
    write_command(
        tmp_path / "trainer",
        'echo "$*" "port ${JAX_COORDINATOR_PORT-none}" >>"$CLOUD/trained"',
        'code=$(head -n 1 "$CLOUD/codes")',
        'sed -i 1d "$CLOUD/codes"',
        'sleep 0.3; [[ $code != 3 ]] || seq 3 >"$CLOUD/down"; exit "$code"',
    )

    def run(*codes, flags=("--config=a", "--x=a 'b' $(id)")):
        lines = [head, ".venv/bin/python", "", "8476", "", "--multihost", *flags]
        (folder / "job.txt").write_text("".join(f"{line}\n" for line in lines))
        (bucket / "codes").write_text("".join(f"{code}\n" for code in codes))
        around = os.environ | {"RECORD_SECS": "0.1", "HOSTNAME": "w-0"}
        paths = {"HOME_DIR": "home", "TRAINER": "trainer", "LIBTPU_LOCK": "lock"}
        around |= {name: str(tmp_path / path) for name, path in paths.items()}
        ran = call(["bash", str(LAUNCH / "worker" / "on_boot.sh")], env=around)
        assert ran.returncode == 0, ran
        said = (bucket / "said").read_text().splitlines()
        assert all(line.startswith("worker w-0 ") for line in said)
        return [line.removeprefix("worker w-0 ").rpartition(" time ")[0] for line in said]

    run.home, run.trained, run.folder = tmp_path / "home", bucket / "trained", folder
    return run


def test_it_trains_again_until_a_code_is_final_and_not_at_the_next_boot(boot):
    said = boot(134, 0)
    first, *running, last = said
    assert first == "not set up starts 1"
    assert last == "ended 0 - starts 2"
    assert "ended 134 - starts 1" in running and "not set up starts 2" in running
    assert any(line.startswith("running ") and line.endswith(" - starts 2") for line in running)
    trained = boot.trained.read_text().splitlines()
    assert trained == ["-u -m bert_jax.train --multihost --config=a --x=a 'b' $(id) port 8476"] * 2
    assert boot(0) == said  # its record says 0


def test_a_machine_with_an_empty_disk_goes_on_counting(boot):
    boot(2)
    record = boot.folder / "records" / "w-0"
    assert record.read_text().startswith("worker w-0 ended 2 - starts 1 time ")
    assert boot(0)[-1] == "ended 2 - starts 1"
    record.write_text("worker w-0 ended 143 - starts 7 time 1\n")
    shutil.rmtree(boot.home)
    assert boot(3)[-1] == "ended 3 - starts 8"  # written once the bucket takes it
