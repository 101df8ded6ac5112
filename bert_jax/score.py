"""Score a file of predictions as the task's official script does.

    python -m bert_jax.score --task=squad --data=dev-v2.0.json --predictions=predictions.json
    python -m bert_jax.score --task=ner --predictions=dev.conll
    python -m bert_jax.score --task=swag --predictions=dev.csv

squad: the numbers of evaluate-v1.1.py or evaluate-v2.0.py (the data decide which) under their
names, as JSON in per cent; with --null_odds=null_odds.json also those of the best threshold. Files
may be compressed. ner: conlleval's lines, for a file whose last two columns are the gold and the
predicted tags. swag and codah: accuracy, for a file with the columns pred and label.
"""

import json
import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

_TASK = flags.DEFINE_string("task", None, "whose predictions: squad, ner, swag or codah")
_DATA = flags.DEFINE_string("data", None, "squad only: its own file, with the right answers")
_PREDICTIONS = flags.DEFINE_string("predictions", None, "the file to score")
_NULL_ODDS = flags.DEFINE_string(
    "null_odds", None, "SQuAD 2.0 only: file of the null odds of each question"
)
_NULL_THRESHOLD = flags.DEFINE_float(
    "null_threshold", None, "SQuAD 2.0 only: questions of higher null odds get no answer (1.0)"
)

USAGE = "python -m bert_jax.score --task=TASK --predictions=FILE [--data=FILE] [--null_odds=FILE]"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.tasks import multiple_choice
from bert_jax.tasks.ner import conlleval, data
from bert_jax.tasks.ner.conlleval import OUTSIDE, EntityScore, score_entities, split_tag
from bert_jax.tasks.squad import metrics
from data_pipeline.cli.stderr_log import LibraryLog


def read_score(path: pathlib.Path) -> EntityScore:
    """Score a file as conlleval does; its columns may also be separated by tabs.

    A -DOCSTART- line is not a word here, but is for conlleval; entities are the same.
    """
    gold: list[list[str]] = [[]]
    predicted: list[list[str]] = [[]]
    for number, row in data.read_columns(path):
        if not row:
            gold.append([])
            predicted.append([])
            continue
        if len(row) < 3:
            raise Refused(
                f"{path} row {number} has {len(row)} columns; a file to score has a word and, in "
                "the last two, its gold tag and the predicted one, as predictions/dev.conll of a "
                "run of ner"
            )
        for tag, tags in zip(row[-2:], (gold, predicted), strict=True):
            if tag != OUTSIDE and (split_tag(tag)[0] not in ("B", "I") or not split_tag(tag)[1]):
                raise Refused(
                    f"{path} row {number} has the tag {tag!r:.60}; conlleval's rules are for O, "
                    "and B- or I- and a type, in the last two columns"
                )
            tags[-1].append(tag)
    score = score_entities(gold, predicted)
    if not score.words:
        raise Refused(f"{path} has no words to score")
    return score


SQUAD, NER, CHOICES = "squad", "ner", ("swag", "codah")
_OFFICIAL_THRESHOLD = 1.0  # the default of evaluate-v2.0.py


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        cli.refuse_arguments(arguments, USAGE)
        text = _score(log)
    print(text)
    return 0


def _score(log: LibraryLog) -> str:
    """Check the flags and return the text to print."""
    task = _TASK.value
    if task not in (SQUAD, NER, *CHOICES):
        raise Refused(
            f"--task is {task!r}; it must be {', '.join((SQUAD, NER, *CHOICES))}; {USAGE}"
        )
    if _NULL_THRESHOLD.value is not None and not _NULL_ODDS.value:
        raise Refused(
            f"--null_threshold is {_NULL_THRESHOLD.value}, but there are no odds to "
            "compare it with; give --null_odds=FILE of SQuAD 2.0 too, or leave it out"
        )
    if not _PREDICTIONS.value:
        raise Refused(f"--predictions is missing: the file to score; {USAGE}")
    predictions = pathlib.Path(_PREDICTIONS.value)
    if task == SQUAD:
        return _squad(log, predictions)
    if _DATA.value or _NULL_ODDS.value:
        raise Refused(
            f"--data and --null_odds are for {SQUAD}; a file of {task} has the answers itself"
        )
    if not predictions.is_file():
        raise Refused(f"{predictions} is not a file; give the path of one")
    if task == NER:
        return conlleval.format_report(read_score(predictions))
    return json.dumps(multiple_choice.read_accuracy(predictions), indent=2)


def _squad(log: LibraryLog, predictions: pathlib.Path) -> str:
    if not _DATA.value:
        raise Refused(f"--data is missing: the file of SQuAD with the right answers; {USAGE}")
    odds = pathlib.Path(_NULL_ODDS.value) if _NULL_ODDS.value else None
    threshold = _OFFICIAL_THRESHOLD if _NULL_THRESHOLD.value is None else _NULL_THRESHOLD.value
    numbers, notes = metrics.score_file(pathlib.Path(_DATA.value), predictions, odds, threshold)
    for note in notes:
        log.say(note)
    return json.dumps(numbers, indent=2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "nothing was changed", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
