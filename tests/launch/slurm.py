"""Stand in for sbatch, srun and scontrol on one node, by their manual pages.

SLURM is a folder: its file `limit_nears` stands for the clock. sbatch runs the job in the
foreground. Run with python -I -S.
"""

import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

SLURM = pathlib.Path(os.environ["SLURM"])
REQUEUED, LIMIT_NEARS, TASKS = SLURM / "requeued", SLURM / "limit_nears", SLURM / "tasks"
OPTIONS = {
    "sbatch": "nodes ntasks-per-node gpus-per-node time job-name signal requeue open-mode",
    "srun": "kill-on-bad-exit wait cpus-per-task",
}


def split(tool: str, words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split words into the leading options and the rest."""
    count = next((i for i, word in enumerate(words) if not word.startswith("--")), len(words))
    options = dict(word[2:].partition("=")[::2] for word in words[:count])
    if unknown := set(options) - set(OPTIONS[tool].split()):
        sys.exit(f"{tool}: unrecognized option '--{min(unknown)}'")
    return options, words[count:]


def sbatch(words: list[str]) -> int:
    """Run the job until it is not requeued; near the limit, signal its step and not the shell."""
    options, (script, *arguments) = split("sbatch", words)
    own = re.findall(r"^#SBATCH (\S+)$", pathlib.Path(script).read_text(), re.MULTILINE)
    options = split("sbatch", own)[0] | options
    number = signal.Signals["SIG" + options.get("signal", "CONT").partition("@")[0]]
    spooled = shutil.copy(script, SLURM / "slurm_script")  # not where the script was
    job, mode = os.environ["JOB"], "ab" if options.get("open-mode") == "append" else "wb"
    around = os.environ | {"SLURM_JOB_ID": job, "SLURM_NTASKS": options["ntasks-per-node"]}
    for restart in range(99):
        around["SLURM_RESTART_COUNT"] = str(restart)
        with open(f"slurm-{job}.out", mode) as out:
            pipes = {"stdout": out, "stderr": out, "start_new_session": True}
            shell = subprocess.Popen([spooled, *arguments], env=around, **pipes)
        end = functools.partial(os.killpg, shell.pid, signal.SIGKILL)
        signal.signal(signal.SIGTERM, lambda *_, end=end: end())
        while shell.poll() is None:
            if LIMIT_NEARS.exists():
                LIMIT_NEARS.unlink()
                for pid in TASKS.read_text().split():
                    os.kill(int(pid), number)
            time.sleep(0.05)
        if not REQUEUED.exists() or "requeue" not in options:
            break
        REQUEUED.unlink()
    return shell.returncode


def srun(words: list[str]) -> int:
    """Run the tasks; return the highest exit code, 128 + n of one that signal n ended."""
    _, command = split("srun", words)
    tasks = []
    for number in map(str, range(int(os.environ["SLURM_NTASKS"]))):
        own = {"SLURM_PROCID": number, "SLURM_LOCALID": number}
        own |= {"SLURM_STEP_NODELIST": "127.0.0.1"}
        tasks.append(subprocess.Popen(command, env=os.environ | own))
    TASKS.write_text(" ".join(str(task.pid) for task in tasks))
    codes = [task.wait() for task in tasks]
    return max(128 - code if code < 0 else code for code in codes)


def scontrol(words: list[str]) -> int:
    if words != ["requeue", os.environ["SLURM_JOB_ID"]]:
        sys.exit("scontrol: error: Invalid job id specified")
    REQUEUED.touch()
    return 0


sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
