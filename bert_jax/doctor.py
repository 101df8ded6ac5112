"""Check a machine before you trust a run to it.

Takes minutes and changes nothing. Prints a verdict for each part: versions and devices, the disk or
bucket, the links between devices, the attention kernel (compared with plain attention), twenty
steps (compared with a CPU's), the step time (compared with its estimate), the input. Exit code 1
means that a part failed.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_jax.config import Config
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig, ProcessFlags
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused

_BASE, _SMALL = "configs/base.py", "configs/quickstart.py"  # defaults; the second on CPUs


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorFlags:
    """Declare the flags."""

    config: GivenConfig[Config] = cli.config_flag(
        is_required=False,
        about=" of the planned run: checks its model, first phase and mesh, and measures its "
        f"store's input; if not given {_BASE}, or {_SMALL} on a CPU",
    )
    process: ProcessFlags
    workdir: str = flag(
        "",
        "folder or gs://BUCKET/PATH for checkpoints, to write and read a test file; skipped if "
        "not given",
        metavar="DIR",
    )
    json_out: str = flag("", "JSON file for all numbers, to keep or to send", metavar="FILE")
    limit_secs: float = flag(480.0, "start no more parts after this many seconds", minimum=0.0)
    step_secs: float = flag(10.0, "seconds to time steps", minimum=0.1)


COMMAND = Command(
    "bert_jax.doctor",
    __doc__,
    DoctorFlags,
    "python -m bert_jax.doctor --config=configs/base.py --workdir=gs://BUCKET/PATH",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

import jax

from bert_jax.benchmarking import checks, measure
from bert_jax.benchmarking.checks import FINE, SKIPPED, WRONG, CheckResult
from bert_jax.config import MeshConfig, ModelConfig
from bert_jax.interop.teacher import read_teacher_sizes
from bert_jax.logging.console import BAD, FAINT, Screen
from bert_jax.model import bert
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.parallel import processes
from bert_jax.runtime import startup
from bert_jax.runtime.watchdog import Watchdog
from bert_jax.train_step import objectives
from bert_jax.trainer import run, setup
from data_pipeline.cli.main import DONE, FAILED, describe_os_error
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import check_file_paths, write_json

Check = Callable[[], CheckResult]
_MAX_WAIT_SECS = 1800.0  # limit for the slowest worker to end a part


def _main(log: LibraryLog, flags: DoctorFlags) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        check_file_paths(json_out=flags.json_out)
        config = flags.config.load(_BASE)
        if not flags.process.multihost:
            _refuse_alone(config)
        log.hold()
        watchdog = Watchdog()
        if flags.process.multihost:
            run.join_processes(flags.process, config.hosts, log)
            watchdog.begin(log.screen, log.say)  # ends this worker if another one fails
        is_writer = processes.number() == 0
        screen = Screen(is_writer=is_writer)
        if not flags.config.place:
            name = _SMALL if jax.default_backend() == "cpu" else _BASE
            config = flags.config.load(name)
            screen.print(
                f"checking with {name}; give the config of the planned run with --config=FILE"
            )
        resolved = setup.resolve_alone(config)
        source = setup.open_feed(resolved, screen)
        teacher = read_teacher_sizes(resolved)
        config = measure.set_rows(resolved, resolved.phases[0], 0)
    parts = _list_parts(config, source, teacher, flags)
    results = check_parts(parts, screen, flags.limit_secs)
    watchdog.close()
    wrong = {part: result for part, result in results.items() if result.outcome == WRONG}
    if not is_writer:  # wrong here and perhaps on no other worker
        for part, result in wrong.items():
            log.say(f"{part}: {result.sentence}")
    screen.print(summarize(results))
    if flags.json_out and is_writer:
        listed = [dataclasses.asdict(result) | {"part": part} for part, result in results.items()]
        content = {"config": dataclasses.asdict(config), "parts": listed}
        write_json(pathlib.Path(flags.json_out), content)
    return FAILED if wrong else DONE


def summarize(results: Mapping[str, CheckResult]) -> str:
    """Name the parts that are wrong, and count the skipped ones, in one line."""
    wrong = [part for part, result in results.items() if result.outcome == WRONG]
    skipped = sum(result.outcome == SKIPPED for result in results.values())
    checked = len(results) - skipped
    if not checked:
        return f"nothing was checked; {skipped} skipped"
    words = f"wrong: {', '.join(wrong)}" if wrong else "nothing wrong"
    return f"{checked} part{'' if checked == 1 else 's'} checked, {words}; {skipped} skipped"


def _refuse_alone(config: Config) -> None:
    """Refuse to run on one worker of several: a TPU would wait for the other workers forever."""
    try:
        rank = startup.find_rank(None, None, None, config.hosts.start_secs)
    except ValueError:  # no platform tells
        return
    if rank is not None and rank.count > 1:
        raise Refused(
            f"this is worker {rank.number} of {rank.count}; start it on all of them, with "
            "--multihost, as launch/ssh.sh --worker=all does with a command"
        )


def _list_parts(
    config: Config, source: Any, teacher: ModelConfig | None, flags: DoctorFlags
) -> dict[str, Check]:
    """List the parts to check, the quick ones first."""
    local = mesh_lib.make_mesh(MeshConfig(), jax.local_devices())
    whole = mesh_lib.make_mesh(config.mesh)
    seq_len, batch_size = config.phases[0].seq_len, config.phases[0].batch_size
    rates: list[float] = []

    def check_step() -> CheckResult:
        result = checks.check_step(config, flags.step_secs, teacher)
        made = len(mesh_lib.process_rows(batch_size, whole))  # rows that this worker makes
        rates.append(result.numbers["rows_per_sec"] * made / batch_size)
        return result

    def check_losses() -> CheckResult:
        try:
            reference = jax.local_devices(backend="cpu")[:1]
        except RuntimeError:
            return CheckResult(SKIPPED, "JAX_PLATFORMS leaves out the CPU to compare with")
        return checks.check_losses(jax.local_devices(), reference)

    def check_storage() -> CheckResult:
        if not flags.workdir:
            return CheckResult(SKIPPED, "no --workdir is given")
        (objective,) = objectives.find_each(config)
        model = bert.build(config.model, jax.default_backend(), 1, config.compute, objective.heads)
        return checks.check_storage(flags.workdir, 3 * 4 * model.parameter_count)

    return {
        "software": checks.check_software,
        "storage": check_storage,
        "collectives": lambda: checks.check_collectives(whole),
        f"attention kernel at {seq_len}": lambda: checks.check_kernel(local, config.model, seq_len),
        "losses": check_losses,
        "step": check_step,
        "input": lambda: checks.check_input(config, source, rates[0] if rates else None, 5.0),
    }


def check_parts(
    parts: Mapping[str, Check], screen: Screen, limit_secs: float
) -> dict[str, CheckResult]:
    """Check each part and print its result; an error is a result too."""
    began, results = time.monotonic(), dict[str, CheckResult]()
    for name, check in parts.items():
        # All workers must skip the same parts: a part that only some start never ends.
        own = str(time.monotonic() - began > limit_secs)
        if "True" in processes.agree("whether the time is over", own, _MAX_WAIT_SECS):
            result = CheckResult(SKIPPED, f"the {limit_secs:g} s of --limit_secs are over")
        else:
            with screen.spinning(f"checking: {name}"):
                result = _run(check)
        style = {FINE: "", WRONG: BAD, SKIPPED: FAINT}[result.outcome]
        screen.print(f"{result.outcome:8}{name}: {result.sentence}", style)
        results[name] = result
    return results


def _run(check: Check) -> CheckResult:
    try:
        return check()
    except (OSError, RuntimeError, MemoryError, ValueError, AssertionError) as error:
        # The command reports errors of devices, disks and compilers.
        text = describe_os_error(error) if isinstance(error, OSError) else str(error)
        reason = text.splitlines()[0] if text else type(error).__name__
        return CheckResult(WRONG, reason)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was changed", argv, run.leave)


if __name__ == "__main__":
    sys.exit(main())
