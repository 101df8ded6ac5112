"""Fine-tune from the checkpoints of a run while it trains: python -m bert_jax.probe ...

    --workdir=RUN          the run of pre-training; it is only read
    --config=...           a short fine-tuning, such as configs/finetune/glue.py:task=rte
    --config.data.dir=DIR  the files of the task; any field of the config may be set
    --probe_dir=DIR        scores, their picture and the fine-tunings; by default RUN-probe
    --every=2000           skip checkpoints that are fewer steps apart
    --platform=cpu         JAX's platform for the fine-tunings: the run uses the accelerator

Every checkpoint is fine-tuned with the same seed, the newest first. The probe ends when the run has
ended and all checkpoints are done; Ctrl-C ends it earlier, and the same command resumes it.
"""

import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Sequence

from absl import flags, logging

from bert_jax.config.schema import FinetuneConfig
from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

_CONFIG = cli.config_flag(FinetuneConfig)
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run of pre-training, or gs://...")
_PROBE_DIR = flags.DEFINE_string("probe_dir", None, "folder of the probe; by default RUN-probe")
_EVERY = flags.DEFINE_integer(
    "every", 1, "smallest distance of the fine-tuned checkpoints, in steps"
)
_PLATFORM = flags.DEFINE_string(
    "platform", "cpu", "JAX's platform for the fine-tunings: cpu, cuda or tpu"
)

USAGE = (
    "python -m bert_jax.probe --workdir=RUN --config=configs/finetune/glue.py:task=rte "
    "--config.data.dir=DIR"
)

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from etils import epath

from bert_jax import config as config_lib
from bert_jax.checkpoint import directory
from bert_jax.config import validate
from bert_jax.config.schema import with_length
from bert_jax.lab.probe import Probe, claim_folder, run_probe
from bert_jax.runtime import run_record
from bert_jax.runtime import workdir as workdir_lib
from bert_jax.tasks.registry import open_task
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.address import is_address


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        cli.refuse_arguments(arguments, USAGE)
        run = _WORKDIR.value
        if not run:
            raise Refused(f"--workdir is missing: the folder of a run of pre-training; {USAGE}")
        if _EVERY.value < 1:
            raise Refused(f"--every is {_EVERY.value}; it must be 1 or more")
        if not _PROBE_DIR.value and is_address(run):
            raise Refused(
                f"--probe_dir is missing, and {run} is a bucket: give a folder of this host"
            )
        config = cli.load_config(FinetuneConfig, _CONFIG)
        if config.init:
            raise Refused(
                f"config.init is {config.init}; a probe starts from the checkpoints of --workdir: "
                "remove it"
            )
        validate.check_finetune(dataclasses.replace(config, init=f"orbax:{run}"))
        log.hold()
        with tempfile.TemporaryDirectory(prefix="bert_jax-") as scratch:
            storage = workdir_lib.fetch_workdir(run, pathlib.Path(scratch))
            record = run_record.read(storage.home)
            positions = record.config.model.max_position_embeddings
            task = open_task(with_length(config.data, positions), record.vocabulary)
        folder = pathlib.Path(_PROBE_DIR.value or f"{run.rstrip('/')}-probe")
        claim_folder(folder, {"run": run, "config": config_lib.recorded(config)})
        probe = Probe(
            run=run,
            run_folder=directory.make_absolute(epath.Path(run)),
            folder=folder,
            config_arguments=cli.config_arguments(_CONFIG),
            task=task.name,
            score=task.main_score,
            baseline=task.baseline[task.main_score],
            summary_key=f"heldout_{task.main_record}",
            every_steps=_EVERY.value,
            platform=_PLATFORM.value,
        )
    return run_probe(probe)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "the same command resumes", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
