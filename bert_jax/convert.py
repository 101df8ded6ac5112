"""Write a checkpoint in another format.

The copy gets its name only after it is read back and its outputs match the checkpoint's.
"""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence

from bert_jax.config.model_schema import HIDDEN_ACTS
from bert_jax.config.schema import DISCRIMINATOR, PARTS
from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused


@dataclasses.dataclass(frozen=True)
class ConvertFlags:
    """Declare the flags; from_ is --from, as `from` is a Python keyword."""

    from_: str = flag(
        "",
        "orbax:WORKDIR[@STEP], hf:DIR or NAME, or google:DIR/bert_model.ckpt",
        metavar="CK",
        is_required=True,
    )
    to: str = flag(
        "",
        "hf:DIR, google:DIR/bert_model.ckpt or orbax:DIR, a new or an empty folder",
        metavar="CK",
        is_required=True,
    )
    part: str = flag(
        DISCRIMINATOR, "model of a replaced-token detection run to convert", choices=PARTS
    )
    initialize_missing: bool = flag(
        False, "initialize the pooler and the heads that the checkpoint lacks"
    )
    seed: int | None = flag(
        None, "seed of --initialize_missing; 0 if not set", minimum=0, maximum=2**32 - 1
    )
    hidden_act: str | None = flag(
        None, "activation to write, if the checkpoint names another gelu", choices=HIDDEN_ACTS
    )
    with_optimizer: bool = flag(
        False, "copy a run's checkpoint with its optimizer to orbax:DIR, for others to branch from"
    )
    push_to_hub: str | None = flag(
        None,
        "name on the Hugging Face hub to upload an export to hf: to",
        "upload",
        metavar="ORG/NAME",
    )
    public: bool = flag(False, "let everybody read the upload", "upload")

    def __post_init__(self) -> None:
        if self.seed is not None and not self.initialize_missing:
            raise Refused(
                f"--seed is {self.seed}, and nothing is initialized; give --initialize_missing "
                "too, or leave it out"
            )
        is_changed = self.part != DISCRIMINATOR or self.hidden_act or self.initialize_missing
        if self.with_optimizer and is_changed:
            raise Refused(
                "--with_optimizer copies a checkpoint as it is; leave out --part, --hidden_act and "
                "--initialize_missing"
            )
        if self.public and self.push_to_hub is None:
            raise Refused("--public is for uploads; give --push_to_hub=ORG/NAME too")


COMMAND = Command(
    "bert_jax.convert",
    __doc__,
    ConvertFlags,
    "python -m bert_jax.convert --from=orbax:runs/base --to=hf:exports/base",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax.inference.hidden_states import MEAN, Extraction, choose_layers
from bert_jax.inference.sentence_modules import describe_differences
from bert_jax.interop import export, hub, load, tf1, transformers_class
from bert_jax.interop.export import Target
from bert_jax.interop.load import GOOGLE, HF
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.tensor_names import OPTIONAL_PARTS, PART_NAMES, list_names
from bert_jax.logging.console import BAD, Screen
from bert_jax.trainer import fresh_start
from data_pipeline.cli.main import DONE, FAILED, accept_stop, find_python
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import new_folder
from data_pipeline.vocab import WORDPIECE


def _main(log: LibraryLog, flags: ConvertFlags) -> int:
    with cli.preparing():
        target = export.parse_target(flags.to)
        if flags.push_to_hub is not None:
            if target.scheme != HF:
                raise Refused(
                    f"--push_to_hub is {flags.push_to_hub!r}, and --to is {flags.to!r}; only an "
                    "export to hf:DIR is uploaded"
                )
            hub.check_upload(flags.push_to_hub, flags.public)
        screen = Screen(is_writer=True)
        log.hold()
        if flags.with_optimizer:
            return _publish(flags, target, screen)
        with screen.spinning(f"reading {flags.from_}"):
            loaded = load.load(flags.from_, flags.part)
            if flags.hidden_act:
                loaded = loaded.change({}, hidden_act=flags.hidden_act)
            checkpoint = export.keep_supported(loaded, target)
            export.check_exportable(checkpoint, target)
        _name_unkept(checkpoint, target, screen)
    dropped = [part for part in loaded.params if part not in checkpoint.params]
    return _convert(flags, checkpoint, dropped, target, screen, log.say)


def _name_unkept(checkpoint: Pretrained, target: Target, screen: Screen) -> None:
    """Print the sentence-transformers settings of a checkpoint that its export to hf: loses."""
    config = checkpoint.config
    length, layers = config.max_position_embeddings, choose_layers("-1", config.num_hidden_layers)
    written = Extraction(layers, MEAN, False, length, stride=0, batch_size=1)
    if target.scheme == HF and (lost := describe_differences(checkpoint.address, written)):
        screen.print(f"skipped, as the export takes the mean of whole rows: its {lost}", BAD)


def _publish(flags: ConvertFlags, target: Target, screen: Screen) -> int:
    """Copy a checkpoint with its optimizer, position and record, for runs to branch from."""
    scheme, place = load.split_address(flags.from_)
    if scheme != load.ORBAX or target.scheme != load.ORBAX:
        raise Refused(
            f"--with_optimizer copies a run's checkpoint, and --from is {flags.from_!r}, --to "
            f"{flags.to!r}; give orbax:WORKDIR[@STEP] and orbax:DIR"
        )
    workdir, step = load.split_step(place)
    with load.open_workdir(place) as storage:
        step = load.choose_step(flags.from_, workdir, step, storage)
    trunk = fresh_start.parse_trunk(f"{workdir}@{step}")
    with screen.spinning(f"copying {trunk}"), new_folder(target.destination) as files:
        fresh_start.publish(trunk, files)
    branch = f"--branch={shlex.quote(str(target.folder))}@{step}"
    screen.table(f"{flags.to}, step {step:,}", [("branch from it", branch)])
    return DONE


def _convert(
    flags: ConvertFlags,
    checkpoint: Pretrained,
    dropped: Sequence[str],
    target: Target,
    screen: Screen,
    say_error: Callable[[str], None],
) -> int:
    missing = export.find_missing(checkpoint, target)
    screen.table(checkpoint.address, _describe(checkpoint))
    if missing:
        names = ", ".join(PART_NAMES[part] for part in missing)
        consequence = (
            "initialized at random, as before any training"
            if flags.initialize_missing
            else "skipped; --initialize_missing initializes what is missing"
        )
        screen.print(f"without {names}: {consequence}", BAD)
    if dropped:
        names = ", ".join(PART_NAMES[part] for part in dropped)
        screen.print(f"skipped, because this conversion does not write it: {names}", BAD)
    if checkpoint.unread:
        screen.print(f"no part of a BERT, and skipped: {list_names(checkpoint.unread)}", BAD)
    with screen.spinning(f"writing {target.folder}, and reading it back"):
        if flags.initialize_missing:
            checkpoint = export.initialize_missing(checkpoint, missing, flags.seed or 0)
        initialized = missing if flags.initialize_missing else ()
        largest = export.write(checkpoint, target, initialized, flags.push_to_hub)
    rows = [(name, f"differ by {difference:.1e} at most") for name, difference in largest.items()]
    screen.table(f"{flags.to}, read back and run on the same rows", rows)
    code = DONE
    if flags.push_to_hub is not None:
        code = _upload(target, flags.push_to_hub, flags.public, screen, say_error)
    _show_next_steps(checkpoint, target, screen)
    return code


def _upload(
    target: Target, name: str, is_public: bool, screen: Screen, say_error: Callable[[str], None]
) -> int:
    """Upload a finished export; return the exit code. A failed upload keeps the export."""
    try:
        with screen.spinning(f"uploading {target.folder} to {name}"):
            page = hub.upload(target.folder, name, is_public)
    except (OSError, KeyboardInterrupt) as error:
        private, why = "" if is_public else " --private", str(error) or "interrupted"
        say_error(
            f"error: {name} was not uploaded: {why}; the export is complete in {target.folder}, "
            f"and hf upload {name} {shlex.quote(str(target.folder))}{private} uploads it"
        )
        return accept_stop(error) if isinstance(error, KeyboardInterrupt) else FAILED
    screen.print(f"uploaded to {page}")
    return DONE


def _describe(checkpoint: Pretrained) -> list[tuple[str, str]]:
    config, vocabulary = checkpoint.config, checkpoint.vocabulary
    heads = [part for part in (*OPTIONAL_PARTS, "rtd") if part in checkpoint.params]
    parts = ["encoder", *(PART_NAMES[part] for part in heads)]
    if checkpoint.task is not None:
        parts.append(f"the layer of {checkpoint.task.name}")
    case = "lowercased" if vocabulary.lowercase else "cased"
    spare = ""
    if config.vocab_size > vocabulary.size:
        spare = f"; {config.vocab_size - vocabulary.size:,} rows of the word table have none"
    layers = f"{config.num_hidden_layers} of width {config.hidden_size}, {config.hidden_act}"
    return [
        ("layers", layers),
        ("parameters", f"{checkpoint.parameter_count:,}: {', '.join(parts)}"),
        ("vocabulary", f"{vocabulary.size:,} pieces of {vocabulary.kind}, {case}{spare}"),
    ]


def _show_next_steps(checkpoint: Pretrained, target: Target, screen: Screen) -> None:
    """Print how to use an export; flags and commands are quoted for a shell."""
    if target.scheme == HF:
        kind = transformers_class.choose_architecture(checkpoint)
        rows = [
            ("transformers", f"{kind}.from_pretrained({str(target.folder)!r})"),
            ("to publish", f"{target.folder / export.CARD} lacks the license"),
        ]
    elif target.scheme == GOOGLE:
        case = "" if checkpoint.vocabulary.lowercase else " --do_lower_case=false"
        init = shlex.quote(f"--init_checkpoint={target.folder / target.prefix}")
        rows = [("Google's code", f"{init}{case}")]
        if checkpoint.vocabulary.kind != WORDPIECE:
            rows.append(("vocabulary", "its tokenization.py reads WordPiece only"))
        elif not tf1.cuts_alike(checkpoint.vocabulary):
            rows.append(("vocabulary", "its tokenization.py has other rules than tokenizer.json"))
    else:
        rows = [("begin with it", shlex.quote(f"--config.init=orbax:{target.folder}"))]
    screen.table("next", rows)
    if target.scheme == load.ORBAX and checkpoint.heads.mlm:
        place = shlex.quote(str(target.folder))
        screen.command(
            f"{find_python()} -m bert_jax.fill_mask --checkpoint={place} 'A [MASK] sentence.'",
            before="try it: ",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was written", argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
