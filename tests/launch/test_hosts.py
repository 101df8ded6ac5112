"""launch/slurm.sh and launch/hosts.sh: the exit codes they restart, and real runs to their end."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bert_jax.interop import load, pretrained
from data_pipeline.cli.main import BAD_NUMBERS, DONE, REFUSED
from tests.faults.runs import ROOT, environment, free_port, last_step, lines_of, training
from tests.launch.scripts import LAUNCH, call, wait_for, write_command

PROCESSES, LIMIT_SECS = 3, 900
RESTARTED = (1, 86, 129, 130, 134, 137, 143)
FINAL = (DONE, REFUSED, BAD_NUMBERS)
CODES = [(code, code in RESTARTED) for code in (*FINAL, *RESTARTED)]
NO_COMMAND = [(126, False), (127, False)]
CONFIG = ROOT / "tests" / "faults" / "one_phase.py"


@pytest.fixture
def folder(tools, tmp_path, monkeypatch):
    """A folder with a clone; `python` of tools is what trains."""
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "launch").symlink_to(LAUNCH)
    monkeypatch.setenv("PYTHON", "python")
    for name in ("POLL_SECS", "PAUSE_SECS", "GRACE_SECS"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("LIBTPU_LOCK", str(tmp_path / "libtpu"))
    return tmp_path


def write_answers(folder, **commands):
    """Commands that write their words to calls/NAME; the last line of each says how it ends."""
    (folder / "calls").mkdir()
    for name, lines in commands.items():
        write_command(folder / "my tools" / name, f'echo "$*" >>"{folder}/calls/{name}"', *lines)


def calls(folder, name):
    path = folder / "calls" / name
    return path.read_text().splitlines() if path.exists() else []


def take(path):
    """The first line of a file, which loses it unless it is the last."""
    return [f'head -n 1 "{path}"', f'sed -i "1{{\\$!d}}" "{path}"']


@pytest.fixture
def job(folder, monkeypatch):
    """A function that starts slurm.sh once: the code of srun, checkpoints before and after."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    steps = folder / "steps"
    python = ["[[ -z ${PYTHONSAFEPATH-} ]] || exit 1", *take(steps)]  # the clone is imported
    write_answers(folder, python=python, srun=['exit "$CODE"'], scontrol=[])

    def start(code, before=0, after=0, *flags, **around):
        steps.write_text(f"{before}\n{after}\n")
        words = ["bash", str(LAUNCH / "slurm.sh"), "--workdir=w", *flags]
        around = os.environ | {"CODE": str(code), "PYTHONSAFEPATH": "1"} | around
        return call(words, cwd=folder / "clone", env=around)

    return start


@pytest.mark.parametrize(("code", "is_restarted"), CODES)
def test_slurm_requeues_after_the_codes_that_may_succeed(folder, job, code, is_restarted):
    assert job(code, 0, 0, "--x=a 'b'", SLURM_CPUS_PER_TASK="5").returncode == code
    assert calls(folder, "scontrol") == ["requeue 7"] * is_restarted
    (step,) = calls(folder, "srun")
    trains = "python -u -m bert_jax.train --workdir=w --x=a 'b' --multihost"
    assert step == f"--kill-on-bad-exit=0 --wait=0 --cpus-per-task=5 {trains}"


def test_slurm_gives_up_after_five_starts_without_a_newer_checkpoint(folder, job):
    (folder / "clone" / "slurm-7.tries").write_text("4\n")  # an older job of this number
    for restart in range(4):
        job(1, SLURM_RESTART_COUNT=str(restart))
    job(143, 0, 20, SLURM_RESTART_COUNT="4")
    for restart in range(5, 9):
        job(134, 20, "unknown", SLURM_RESTART_COUNT=str(restart))
    assert len(calls(folder, "scontrol")) == 9
    ran = job(134, 20, 20, SLURM_RESTART_COUNT="9")
    assert ran.returncode == 134 and "gave up" in ran.stderr
    assert len(calls(folder, "scontrol")) == 9
    job(134, 40, 40, SLURM_RESTART_COUNT="11")  # after one that saved and was preempted
    assert len(calls(folder, "scontrol")) == 10


def test_slurm_requeues_no_job_whose_starts_it_cannot_count(folder, job):
    (folder / "clone" / "slurm-7.tries").mkdir()  # as on a full disk
    ran = job(1)
    assert ran.returncode == 1 and calls(folder, "scontrol") == []
    assert ran.stderr.splitlines()[-1].startswith("error: ") and "slurm-7.tries" in ran.stderr


@pytest.mark.parametrize("around", ["SLURM_JOB_ID=", "SLURM_JOB_ID=7;id", "PYTHON=no/python"])
def test_slurm_refuses_what_it_cannot_run(folder, job, around):
    name, _, value = around.partition("=")
    ran = job(0, **{name: value})
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert f"{name} is '{value}'" in ran.stderr and calls(folder, "srun") == []


def hosts(folder, *words, **around):
    script = ["bash", str(LAUNCH / "hosts.sh"), *words]
    return call(script, cwd=folder, env=os.environ | around)


def write_hosts(folder, newest=("echo 0",), status=(), start=()):
    """An ssh that answers what is asked for on stdin, which calls/lines has, by these commands."""
    answers = {"newest_step": newest, "--status": status, "--process_id": start}
    cases = [line for what, own in answers.items() for line in (f"*{what}*)", *own, ";;")]
    keep = ["read -r line", f'echo "$line" >>"{folder}/calls/lines"']
    write_answers(folder, ssh=[*keep, 'case "$line" in', *cases, "esac"])


def starts(folder):
    return [line for line in calls(folder, "lines") if "--process_id" in line]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "is_restarted"), [*CODES, *NO_COMMAND])
def test_hosts_restarts_after_the_codes_that_may_succeed(folder, code, is_restarted):
    """Host a ends with the code and then with 0; host b with what another's death leaves."""
    (folder / "codes").write_text(f"ended {code} -\nended 0 -\n")
    other = 'if [[ "${@: -2:1}" == b ]]; then echo "ended 134 -"; exit; fi'
    write_hosts(folder, status=[other, *take(folder / "codes")])
    ran = hosts(folder, "a,b", "my folder", "--workdir=w", "--x=a 'b' $(id)")
    begun = starts(folder)
    assert (ran.returncode, len(begun)) == (0 if is_restarted else code, 4 if is_restarted else 2)
    own = r"cd -- my\ folder && exec bash launch/worker/on_worker_train.sh python logs/a.log ''"
    flags = r"--workdir=w --x=a\ \'b\'\ \$\(id\) --multihost --num_processes=2"
    first = f"{own} --coordinator_address=a:8482 {flags} --process_id=0"
    assert min(begun) == first
    options = "-o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=20"
    options += " -o RequestTTY=no -o ControlPersist=no --"
    assert set(calls(folder, "ssh")) == {f"{options} {host} bash" for host in "ab"}


@pytest.mark.slow
def test_hosts_gives_up_after_five_starts_without_a_newer_checkpoint(folder):
    (folder / "steps").write_text("0\n" * 3 + "20\n")
    write_hosts(folder, newest=take(folder / "steps"), status=["echo 'ended 86 -'"])
    ran = hosts(folder, "node_1", "x", "--workdir=w")
    assert (ran.returncode, len(starts(folder))) == (86, 8)
    assert "newest checkpoint 20, 5 starts in a row" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("codes", "count"), [((1, 1), 2), ((255, 2, 124, 255, 0), 5)])
def test_hosts_starts_again_what_the_network_cut_off_alone(folder, codes, count):
    (folder / "codes").write_text("".join(f"{code}\n" for code in codes))
    ends = ["code=$(head -n 1 codes)", "sed -i 1d codes", 'exit "$code"']
    write_hosts(folder, status=["echo 'ended 0 -'"], start=ends)
    ran = hosts(folder, "a", "x", "--workdir=w")
    assert (ran.returncode, len(starts(folder))) == (0 if codes[-1] == 0 else 2, count)


@pytest.mark.parametrize(
    "words",
    [
        *(["a;b", "x"], ["-oProxyCommand=id", "x"], ["a,,b", "x"], ["a\nb", "x"], ["", "x"]),
        *(["a,me@a", "x"], ["a", ""], ["a", "--workdir=w"], ["--stop", "a"]),
        *(["a", "x"], ["a", "x", "--workdir=w", "--process_id=1"]),
        ["a", "x", "--workdir=w"],  # nowhere to keep the answers
    ],
)
def test_hosts_refuses_bad_names_in_one_sentence(folder, words):
    write_answers(folder, ssh=[])
    around = {"TMPDIR": str(folder / "absent")} if words[2:] == ["--workdir=w"] else {}
    ran = hosts(folder, *words, **around)
    assert (ran.returncode, ran.stdout, ran.stderr[:7]) == (2, "", "error: ")
    assert ran.stderr.count("\n") == 1 and calls(folder, "ssh") == []
    assert all(name in ran.stderr for name in around)


def write_ssh(folder):
    """An ssh to this machine: each host is a home folder with a clone."""
    # As of a ~/.ssh/config with ControlPersist and RequestTTY, in OpenSSH 8.0.
    stays = '[[ "$*" == *ControlPersist=no* ]] || sleep 60 >/dev/null &'
    ends = '[[ "$*" == *RequestTTY=no* ]] || exec > >(sed "s/$/\r/")'
    line = 'while [[ $1 == -o ]]; do shift 2; done; host=$2; cd "$HOSTS/$host" && shift 2'
    write_command(folder / "my tools" / "ssh", stays, ends, line, 'HOSTNAME=$host exec sh -c "$*"')
    for name in "abc":
        (folder / name / "clone").mkdir(parents=True)
        (folder / name / "clone" / "launch").symlink_to(LAUNCH)
    return {"HOSTS": str(folder)}


@pytest.mark.slow
def test_hosts_ends_the_others_of_a_process_that_failed_and_hands_flags_over_as_they_are(folder):
    """Host a dies in the first start, where b would go on for ever; the second start succeeds."""
    write_command(
        folder / "my tools" / "python",
        f'if [[ $2 == launch.* ]]; then echo 0; exit; fi; printf "%s\n" "$@" >>"{folder}/flags"',
        f'cd "{folder}"; if [[ -e died ]]; then exit 0; fi',
        "if [[ $HOSTNAME == a ]]; then",
        "    until [[ -e b_trains ]]; do sleep 0.05; done; touch died; exit 134",
        "fi",
        "trap 'touch ended; exit 143' TERM; touch b_trains; while sleep 0.05; do :; done",
    )
    flag = "--x=a\n'b' $(id) ~ \\ é"
    around = write_ssh(folder) | {"POLL_SECS": "0.1"}
    ran = hosts(folder, "b,a", "clone", "--workdir=w", flag, **around)
    assert ran.returncode == 0, ran
    assert (folder / "ended").exists()
    assert "exit code 134, newest checkpoint 0, 1 starts in a row" in ran.stdout
    assert (folder / "flags").read_text().count(f"\n{flag}\n") >= 3
    assert "no training runs here" in hosts(folder, "--stop", "b,a", "clone", **around).stdout


@pytest.fixture(scope="module")
def flags(tiny_store):
    """The flags of a run of three processes, each with two rows of a batch."""
    own = ["phases[0].batch_size=6", "eval.examples=18", "checkpoint.every_steps=10"]
    own += ["log_every_steps=5", f"data.store={tiny_store}"]
    return [f"--config={CONFIG}", *(f"--config.{setting}" for setting in own)]


@pytest.fixture(scope="module")
def undisturbed(flags, tmp_path_factory):
    """The workdir of a run that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    with training(*flags, workdir=workdir, processes=PROCESSES) as run:
        run.finish(secs=LIMIT_SECS)
    return workdir


def wait_for_step(workdir, step, running):
    def is_there():
        assert running.poll() is None, running.communicate()
        return last_step(workdir) >= step

    wait_for(is_there, LIMIT_SECS)


def assert_same_run(workdir, wanted):
    ours, theirs = (
        pretrained.place_masked_lm(load.load(str(folder))).params for folder in (workdir, wanted)
    )
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert lines_of(workdir) == lines_of(wanted)


# What srun does on one node: the highest code is its own, 128 + n of a task that signal n ended.
SRUN = """\
while [[ $1 == --* ]]; do shift; done
pids=() code=0
for ((n = 0; n < SLURM_NTASKS; n++)); do
    SLURM_PROCID=$n SLURM_LOCALID=$n SLURM_STEP_NODELIST=127.0.0.1 "$@" &
    pids+=($!)
done
echo "${pids[*]}" >"$SLURM/tasks"
for pid in "${pids[@]}"; do
    ended=0
    wait "$pid" || ended=$?
    ((ended <= code)) || code=$ended
done
exit "$code"
"""


def sbatch(folder, tasks, job, nears_limit, *flags, **changed):
    """Run slurm.sh as sbatch and Slurm do, by their manual pages; return exit code and output.

    Near the time limit, once in a job, Slurm signals the tasks and not the shell.
    """
    write_answers(folder, scontrol=[])
    write_command(folder / "my tools" / "srun", SRUN)
    script = shutil.copy(LAUNCH / "slurm.sh", folder / "slurm_script")  # not where the script was
    own = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", (LAUNCH / "slurm.sh").read_text(), re.M))
    assert own.keys() <= {"job-name", "signal", "requeue", "open-mode"}
    around = {"SLURM": str(folder), "SLURM_JOB_ID": job, "SLURM_NTASKS": str(tasks)} | changed
    out, is_signaled, end = folder / "out", False, time.monotonic() + LIMIT_SECS
    for restart in range(99):
        with out.open("ab" if own["open-mode"] == "append" else "wb") as file:
            pipes = {"stdout": file, "stderr": file, "start_new_session": True}
            around["SLURM_RESTART_COUNT"] = str(restart)
            words, where = [script, f"--workdir={folder / 'run'}", *flags], folder / "clone"
            shell = subprocess.Popen(words, cwd=where, env=environment(**around), **pipes)
        try:
            while shell.poll() is None:
                assert time.monotonic() < end, out.read_text()
                if not is_signaled and (folder / "tasks").exists() and nears_limit():
                    is_signaled, number = True, f"SIG{own['signal'].partition('@')[0]}"
                    for pid in (folder / "tasks").read_text().split():
                        os.kill(int(pid), signal.Signals[number])
                time.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        if "requeue" not in own or calls(folder, "scontrol") != [f"requeue {job}"] * (restart + 1):
            break
    return shell.returncode, out.read_text()


@pytest.mark.slow
def test_the_tasks_of_a_job_that_nears_its_limit_save_and_the_job_is_requeued(folder):
    write_command(
        folder / "my tools" / "python",
        "if [[ $2 == launch.* ]]; then echo 20; exit; fi",
        f'cd "{folder}"; echo "task $SLURM_PROCID: $*" >>started',
        "if [[ -e trains.$SLURM_PROCID ]]; then exit 0; fi",
        "trap 'exit 143' TERM; touch trains.$SLURM_PROCID",
        "while sleep 0.05; do :; done",
    )
    code, out = sbatch(folder, 2, "7", lambda: len([*folder.glob("trains.*")]) == 2)
    assert (code, out.count("exit code 143, newest checkpoint 20")) == (0, 1), out
    flags = f"-u -m bert_jax.train --workdir={folder / 'run'} --multihost"
    trains = [f"task {number}: {flags}" for number in (0, 0, 1, 1)]
    assert sorted((folder / "started").read_text().splitlines()) == trains


OURS = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}


@pytest.mark.long
def test_a_job_that_nears_its_limit_ends_with_the_same_weights(folder, flags, undisturbed):
    workdir, job = folder / "run", str((free_port() - 61440) % 4096)  # jax takes the port from it
    code, out = sbatch(folder, PROCESSES, job, lambda: last_step(workdir) >= 15, *flags, **OURS)
    assert code == 0, out
    assert "exit code 143, newest checkpoint" in out
    assert out.count("stopped and saved at step") == 1
    assert_same_run(workdir, undisturbed)


@pytest.mark.long  # the script's part is seen above
def test_a_host_whose_process_is_killed_starts_again_and_ends_with_the_same_weights(
    folder, flags, undisturbed
):
    workdir = folder / "run"
    command = ["bash", str(LAUNCH / "hosts.sh"), "a,b,c", "clone", *flags, f"--workdir={workdir}"]
    command += [f"--coordinator_address=127.0.0.1:{free_port()}"]
    around = environment(**write_ssh(folder), **OURS, POLL_SECS="1", GRACE_SECS="120")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = subprocess.Popen(command, cwd=folder / "clone", env=around, **pipes)
    try:
        wait_for_step(workdir, 15, running)
        _, pid = (folder / "b" / "clone" / "logs" / "b.pid").read_text().split()
        os.kill(int(pid), signal.SIGKILL)
        said, _ = running.communicate(timeout=LIMIT_SECS)
    finally:
        running.terminate()
        running.communicate(timeout=120)
    assert running.returncode == 0, said
    assert re.search(r"exit code 137, newest checkpoint \d+, 0 starts in a row", said)
    assert_same_run(workdir, undisturbed)
