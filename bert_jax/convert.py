"""Write a checkpoint in another format: python -m bert_jax.convert --from=orbax:RUN --to=hf:DIR

    --from=CK    orbax:WORKDIR[@STEP], hf:DIR or NAME, google:PREFIX
    --part=generator  of a run of replaced-token detection, in place of its discriminator
    --to=CK      hf:DIR, google:DIR/bert_model.ckpt or orbax:DIR, a new or an empty folder

The copy is read back and run on the same rows as the checkpoint before it gets its name.
"""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence

from absl import flags

from bert_jax.config.schema import DISCRIMINATOR, HIDDEN_ACTS, PARTS
from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

_FROM = flags.DEFINE_string(
    "from", None, "hf:DIR, google:DIR/bert_model.ckpt, or orbax:DIR, the workdir of a run"
)
_TO = flags.DEFINE_string("to", None, "the same, of a new or an empty folder")
_PART = flags.DEFINE_enum(
    "part", DISCRIMINATOR, PARTS, "the model to convert of a run of replaced-token detection"
)
_INITIALIZE_MISSING = flags.DEFINE_boolean(
    "initialize_missing", False, "initialize the pooler and the heads that the checkpoint lacks"
)
_SEED = flags.DEFINE_integer("seed", 0, "seed of --initialize_missing")
_HIDDEN_ACT = flags.DEFINE_enum(
    "hidden_act", None, HIDDEN_ACTS, "the gelu to write, if the checkpoint names another"
)
_PUSH_TO_HUB = flags.DEFINE_string(
    "push_to_hub", None, "ORG/NAME on the Hugging Face hub that an export to hf: is uploaded to"
)
_PUBLIC = flags.DEFINE_boolean("public", False, "let everybody read what is uploaded")

USAGE = "python -m bert_jax.convert --from=orbax:RUN --to=hf:DIR"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.interop import export, hub, huggingface, load
from bert_jax.interop.export import Target
from bert_jax.interop.load import GOOGLE, HF
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.tensor_names import list_names
from bert_jax.logging.console import BAD, Screen
from bert_jax.runtime.exit_codes import DONE, FAILED
from data_pipeline.cli.main import find_python
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.vocab import WORDPIECE

_PARTS = {"pooler": "pooler", "mlm": "MLM head", "nsp": "NSP head", "rtd": "replaced-token head"}
_LAYER = {"classifier": "layer of the task", "bilstm": "its LSTMs"}


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        cli.refuse_arguments(arguments, USAGE)
        if not _FROM.value or not _TO.value:
            raise Refused(f"{'--to' if _FROM.value else '--from'} is missing; {USAGE}")
        if _SEED.present and not _INITIALIZE_MISSING.value:
            raise Refused(
                f"--seed is {_SEED.value}, and nothing is initialized; give "
                "--initialize_missing=true too, or leave it out"
            )
        target = export.parse_target(_TO.value)
        if _PUBLIC.present and _PUSH_TO_HUB.value is None:
            raise Refused("--public is for what is uploaded; give --push_to_hub=ORG/NAME too")
        if _PUSH_TO_HUB.value is not None and target.scheme != HF:
            raise Refused(
                f"--push_to_hub is {_PUSH_TO_HUB.value!r}, and --to is {_TO.value!r}; only an "
                "export to hf:DIR is uploaded"
            )
        if _PUSH_TO_HUB.value is not None:
            hub.check_upload(_PUSH_TO_HUB.value, _PUBLIC.value)
        screen = Screen(is_writer=True)
        log.hold()
        with screen.spinning(f"reading {_FROM.value}"):
            loaded = load.load(_FROM.value, _PART.value)
            if _HIDDEN_ACT.value:
                config = dataclasses.replace(loaded.config, hidden_act=_HIDDEN_ACT.value)
                loaded = dataclasses.replace(loaded, config=config)
            checkpoint = export.keep_supported(loaded, target)
            export.check_exportable(checkpoint, target)
    dropped = [part for part in loaded.params if part not in checkpoint.params]
    return _convert(checkpoint, dropped, target, screen, log.say)


def _convert(
    checkpoint: Pretrained,
    dropped: Sequence[str],
    target: Target,
    screen: Screen,
    say_error: Callable[[str], None],
) -> int:
    missing = export.find_missing(checkpoint, target)
    screen.table(checkpoint.address, _describe(checkpoint))
    if missing:
        names = ", ".join(_PARTS[part] for part in missing)
        consequence = (
            "initialized at random, as before any training"
            if _INITIALIZE_MISSING.value
            else "skipped; --initialize_missing=true initializes what is missing"
        )
        screen.print(f"without {names}: {consequence}", BAD)
    if dropped:
        names = ", ".join((_PARTS | _LAYER)[part] for part in dropped)
        screen.print(f"skipped, as there is no place for it there: {names}", BAD)
    if checkpoint.unread:
        screen.print(f"no part of a BERT, and skipped: {list_names(checkpoint.unread)}", BAD)
    with screen.spinning(f"writing {target.folder}, and reading it back"):
        if _INITIALIZE_MISSING.value:
            checkpoint = export.initialize_missing(checkpoint, missing, _SEED.value)
        initialized = missing if _INITIALIZE_MISSING.value else ()
        largest = export.write(checkpoint, target, initialized)
    rows = [(name, f"differ by {difference:.1e} at most") for name, difference in largest.items()]
    screen.table(f"{_TO.value}, read back and run on the same rows", rows)
    code = DONE
    if _PUSH_TO_HUB.value is not None:
        code = _upload(target, _PUSH_TO_HUB.value, screen, say_error)
    screen.table("next", _list_next_steps(checkpoint, target))
    return code


def _upload(target: Target, name: str, screen: Screen, say_error: Callable[[str], None]) -> int:
    """Upload a finished export; if that fails the export stays, and the exit code is 1."""
    try:
        with screen.spinning(f"uploading {target.folder} to {name}"):
            page = hub.upload(target.folder, name, _PUBLIC.value)
    except OSError as error:
        private = "" if _PUBLIC.value else " --private"
        say_error(
            f"error: {name} was not uploaded: {error}; the export is complete in {target.folder}, "
            f"and hf upload {name} {shlex.quote(str(target.folder))}{private} uploads it"
        )
        return FAILED
    screen.print(f"uploaded to {page}")
    return DONE


def _describe(checkpoint: Pretrained) -> list[tuple[str, str]]:
    config, vocabulary = checkpoint.config, checkpoint.vocabulary
    parts = ["encoder", *(_PARTS[part] for part in _PARTS if part in checkpoint.params)]
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


def _list_next_steps(checkpoint: Pretrained, target: Target) -> list[tuple[str, str]]:
    if target.scheme == HF:
        kind = huggingface.choose_architecture(checkpoint)
        return [
            ("transformers", f"{kind}.from_pretrained({str(target.folder)!r})"),
            ("to publish", f"{target.folder / export.CARD} lacks the licence"),
        ]
    if target.scheme == GOOGLE:
        case = "" if checkpoint.vocabulary.lowercase else " --do_lower_case=false"
        lines = [("Google's code", f"--init_checkpoint={target.folder / target.prefix}{case}")]
        if checkpoint.vocabulary.kind != WORDPIECE:
            lines.append(("vocabulary", "its tokenization.py reads WordPiece only"))
        return lines
    command = (
        f"{find_python()} -m bert_jax.fill_mask --checkpoint={target.folder} 'A [MASK] sentence.'"
    )
    init = ("begin with it", f"--config.init=orbax:{target.folder}")
    return [init, ("try it", command)] if checkpoint.heads.mlm else [init]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "nothing was written", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
