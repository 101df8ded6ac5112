"""Score a file of predictions as the task's official script does.

    python -m bert_jax.score --task=squad --data=dev-v2.0.json --predictions=predictions.json
    python -m bert_jax.score --task=ner --predictions=dev.conll
    python -m bert_jax.score --task=swag --predictions=dev.csv

Of squad: the numbers of evaluate-v1.1.py or evaluate-v2.0.py under their names, as JSON and in per
cent; the data say which of the two. With --null_odds=null_odds.json also what the best threshold
gives. Files may be compressed. Of ner: conlleval's lines, for a file whose last two columns are the
right tags and the predicted ones. Of swag and codah: accuracy, for a file with both columns.
"""

import functools
import json
import pathlib
from collections.abc import Callable

from absl import flags

from bert_jax import command_line
from bert_jax.tasks import entity_report, entity_score, multiple_choice, squad_report
from data_pipeline.library_log import LibraryLog

SQUAD, NER, CHOICES = "squad", "ner", ("swag", "codah")
_OFFICIAL_THRESHOLD = 1.0  # of evaluate-v2.0.py

_TASK = flags.DEFINE_string("task", None, "whose predictions: squad, ner, swag or codah")
_DATA = flags.DEFINE_string("data", None, "of squad: its own file, with the right answers")
_PREDICTIONS = flags.DEFINE_string("predictions", None, "the file to score")
_NULL_ODDS = flags.DEFINE_string(
    "null_odds", None, "of SQuAD 2.0: question id -> how likely it is to have no answer"
)
_NULL_THRESHOLD = flags.DEFINE_float(
    "null_threshold", None, "of SQuAD 2.0: questions of higher null odds are not answered; 1.0"
)

USAGE = "python -m bert_jax.score --task=TASK --predictions=FILE [--data=FILE] [--null_odds=FILE]"


def _prepare(log: LibraryLog, rest: list[str]) -> Callable[[], int]:
    command_line.refuse_arguments(rest, USAGE)
    task = _TASK.value
    if task not in (SQUAD, NER, *CHOICES):
        raise ValueError(
            f"--task is {task!r}; it must be {', '.join((SQUAD, NER, *CHOICES))}; {USAGE}"
        )
    if _NULL_THRESHOLD.value is not None and not _NULL_ODDS.value:
        raise ValueError(
            f"--null_threshold is {_NULL_THRESHOLD.value}, but there are no odds that it could "
            "divide; give --null_odds=FILE of SQuAD 2.0 too, or leave it out"
        )
    if not _PREDICTIONS.value:
        raise ValueError(f"--predictions is missing: the file to score; {USAGE}")
    predictions = pathlib.Path(_PREDICTIONS.value)
    if task == SQUAD:
        return functools.partial(_print, _squad(log, predictions))
    if _DATA.value or _NULL_ODDS.value:
        raise ValueError(
            f"--data and --null_odds are of {SQUAD}; a file of {task} holds the right answers"
        )
    if not predictions.is_file():
        raise ValueError(f"{predictions} is not a file; give the path of one")
    if task == NER:
        return functools.partial(_print, entity_score.report(entity_report.read_score(predictions)))
    accuracy = multiple_choice.read_accuracy(predictions)
    return functools.partial(_print, json.dumps(accuracy, indent=2))


def _squad(log: LibraryLog, predictions: pathlib.Path) -> str:
    if not _DATA.value:
        raise ValueError(f"--data is missing: the file of SQuAD with the right answers; {USAGE}")
    odds = pathlib.Path(_NULL_ODDS.value) if _NULL_ODDS.value else None
    threshold = _OFFICIAL_THRESHOLD if _NULL_THRESHOLD.value is None else _NULL_THRESHOLD.value
    report = squad_report.read(pathlib.Path(_DATA.value), predictions, odds, threshold)
    for note in report.notes:
        log.say(note)
    return json.dumps(report.numbers, indent=2)


def _print(text: str) -> int:
    print(text)
    return 0


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="nothing was changed")


if __name__ == "__main__":
    main()
