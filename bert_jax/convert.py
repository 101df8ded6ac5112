"""The entry that writes a checkpoint in another layout: Hugging Face's, Google's or our own."""

import dataclasses
import functools
import shlex
from collections.abc import Callable

from absl import flags

from bert_jax import command_line, conversion, hf_export, hub, pretrained
from bert_jax.config_check import HIDDEN_ACTS
from bert_jax.conversion import Target
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.named_tensors import listed
from bert_jax.pretrained import GOOGLE, HF, Pretrained
from bert_jax.screen import BAD, Screen
from data_pipeline.interpreter import python
from data_pipeline.library_log import LibraryLog
from data_pipeline.vocab import WORDPIECE

_FROM = flags.DEFINE_string(
    "from", None, "hf:DIR, google:DIR/bert_model.ckpt, or orbax:DIR, the workdir of a run"
)
_TO = flags.DEFINE_string("to", None, "the same, of a new or an empty folder")
_INITIALIZE_MISSING = flags.DEFINE_boolean(
    "initialize_missing", False, "draw the pooler and the heads that the checkpoint has not"
)
_SEED = flags.DEFINE_integer("seed", 0, "of what is drawn")
_HIDDEN_ACT = flags.DEFINE_enum(
    "hidden_act", None, HIDDEN_ACTS, "the gelu that is meant, where the checkpoint says another"
)
_PUSH_TO_HUB = flags.DEFINE_string(
    "push_to_hub", None, "ORG/NAME on the Hugging Face hub that an export to hf: is uploaded to"
)
_PUBLIC = flags.DEFINE_boolean("public", False, "let everybody read what is uploaded")

USAGE = "python -m bert_jax.convert --from=orbax:RUN --to=hf:DIR"
_PARTS = {"pooler": "pooler", "mlm": "MLM head", "nsp": "NSP head"}


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    command_line.refuse_arguments(arguments, USAGE)
    if not _FROM.value or not _TO.value:
        raise ValueError(f"{'--to' if _FROM.value else '--from'} is missing; {USAGE}")
    if _SEED.present and not _INITIALIZE_MISSING.value:
        raise ValueError(
            f"--seed is {_SEED.value}, of what is drawn, and nothing is; give "
            "--initialize_missing=true too, or leave it out"
        )
    to = conversion.target(_TO.value)
    _check_upload(to)
    screen = Screen(is_writer=True)
    log.hold()
    with screen.spinning(f"reading {_FROM.value}"):
        held = pretrained.load(_FROM.value)
        if _HIDDEN_ACT.value:
            act = dataclasses.replace(held.config, hidden_act=_HIDDEN_ACT.value)
            held = dataclasses.replace(held, config=act)
        fitting = conversion.fitting(held, to)
        conversion.check(fitting, to)
    return functools.partial(_convert, fitting, fitting.heads != held.heads, to, screen, log.say)


def _check_upload(to: Target) -> None:
    name = _PUSH_TO_HUB.value
    if name is None:
        if _PUBLIC.present:
            raise ValueError("--public is for what is uploaded; give --push_to_hub=ORG/NAME too")
        return
    if to.scheme != HF:
        raise ValueError(
            f"--push_to_hub is {name!r}, and --to is {_TO.value!r}; only an export to hf:DIR is "
            "uploaded"
        )
    hub.check_upload(name, _PUBLIC.value)


def _convert(
    held: Pretrained, had_layer: bool, to: Target, screen: Screen, say_error: Callable[[str], None]
) -> int:
    missing = conversion.missing(held)
    screen.table(held.address, _found(held))
    if missing:
        named = ", ".join(_PARTS[part] for part in missing)
        done = (
            "drawn at random, as before any training"
            if _INITIALIZE_MISSING.value
            else ("left out; --initialize_missing=true draws what is missing")
        )
        screen.say(f"without {named}: {done}", BAD)
    if had_layer:
        screen.say("the layer of the task is left out: the encoder alone is converted", BAD)
    if held.unread:
        screen.say(f"no part of a BERT, and left out: {listed(held.unread)}", BAD)
    drawn: tuple[str, ...] = ()
    with screen.spinning(f"writing {to.folder}, and reading it back"):
        if _INITIALIZE_MISSING.value:
            held, drawn = conversion.completed(held, _SEED.value), missing
        largest = conversion.write(held, to, drawn)
    proof = [(what, f"differ by {difference:.1e} at most") for what, difference in largest.items()]
    screen.table(f"{_TO.value}, read back and run on the same rows", proof)
    code = (
        DONE if _PUSH_TO_HUB.value is None else _upload(to, _PUSH_TO_HUB.value, screen, say_error)
    )
    screen.table("next", _next(held, to))
    return code


def _upload(to: Target, name: str, screen: Screen, say_error: Callable[[str], None]) -> int:
    """Upload a finished export; where that fails it stays, and the exit code is 1."""
    try:
        with screen.spinning(f"uploading {to.folder} to {name}"):
            page = hub.upload(to.folder, name, _PUBLIC.value)
    except OSError as error:
        private = "" if _PUBLIC.value else " --private"
        say_error(
            f"error: {name} was not uploaded: {error}; the export is whole in {to.folder}, and "
            f"hf upload {name} {shlex.quote(str(to.folder))}{private} uploads it"
        )
        return FAILED
    screen.say(f"uploaded to {page}")
    return DONE


def _found(held: Pretrained) -> list[tuple[str, str]]:
    config, vocabulary = held.config, held.vocabulary
    there = [_PARTS[part] for part in _PARTS if part in held.params]
    if held.task is not None:
        there.append(f"the layer of {held.task.name}")
    case = "lowercased" if vocabulary.lowercase else "cased"
    spare = ""
    if config.vocab_size > vocabulary.size:
        spare = f"; {config.vocab_size - vocabulary.size:,} rows of the word table have none"
    return [
        (
            "layers",
            f"{config.num_hidden_layers} of width {config.hidden_size}, {config.hidden_act}",
        ),
        (
            "parameters",
            f"{held.parameter_count:,}: encoder{''.join(f', {part}' for part in there)}",
        ),
        ("vocabulary", f"{vocabulary.size:,} pieces of {vocabulary.kind}, {case}{spare}"),
    ]


def _next(held: Pretrained, to: Target) -> list[tuple[str, str]]:
    if to.scheme == HF:
        kind = hf_export.architecture(held)
        lines = [("transformers", f"{kind}.from_pretrained({str(to.folder)!r})")]
        lines.append(("to publish", f"{to.folder / conversion.CARD} lacks the licence"))
        return lines
    if to.scheme == GOOGLE:
        case = "" if held.vocabulary.lowercase else " --do_lower_case=false"
        lines = [("Google's code", f"--init_checkpoint={to.folder / to.prefix}{case}")]
        if held.vocabulary.kind != WORDPIECE:
            lines.append(("vocabulary", "its tokenisation.py reads no SentencePiece model"))
        return lines
    command = f"{python()} -m bert_jax.fill_mask --checkpoint={to.folder} 'A [MASK] sentence.'"
    init = ("begin with it", f"--config.init=orbax:{to.folder}")
    return [init, ("try it", command)] if held.heads.mlm else [init]


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="nothing was written")


if __name__ == "__main__":
    main()
