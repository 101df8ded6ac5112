# ruff: noqa: E501
"""Journeys of the supervisor, one line each: what looks see, and what is decided.

Looks are separated by /: a kind of slice (foreign: with another label, other: of another run), what each of two workers says (run, hung, never, busy or an exit
code), @N newest checkpoint, +N seconds since the look before (60), #N creation of the slice, !ACTION=WORDS an
action that fails then. Decided is what is done but events and waits; - is nothing.
"""

import dataclasses

import pytest

from launch.cloud import decide as module
from launch.cloud.decide import Answers, Rules, SliceSeen, State, Worker, decide
from launch.cloud.run import Answer

BUCKET = Rules("gs://b/a", is_deleted_at_end=True, usd_per_hour=3600.0)
DISK = dataclasses.replace(BUCKET, workdir="/mnt/a")
KEPT = dataclasses.replace(BUCKET, is_deleted_at_end=False)
ITSELF = dataclasses.replace(BUCKET, starts_itself=True)
DOCTOR = dataclasses.replace(BUCKET, is_examined=True)
POOR = dataclasses.replace(BUCKET, max_usd=1300.0)
TWICE = dataclasses.replace(BUCKET, max_tries=2)

UP = "absent / ready never never / "  # created, set up and started
GO = "create / set_up start / "
JOURNEYS = [
    # A run from start to end: the slice goes only once it is seen to be gone twice.
    (BUCKET, UP + "ready run run / ready 0 0 / deleting / absent / absent", GO + "- / delete / - / delete / end 0"),
    (KEPT, UP + "ready run run / ready 0 0", GO + "- / end 0"),
    # Codes after which no start helps; a slice stays where its disks may be the only trace.
    (BUCKET, UP + "ready 2 run / absent / absent", GO + "last_words stop delete / delete / end 2"),
    # The next supervisor counts anew.
    (DISK, UP + "ready run 3 / ready 3 3 / ready run run", GO + "last_words stop end 3 / set_up start / -"),
    (BUCKET, UP + "ready 134 run / ready run run / ready 143 86", GO + "stop start / - / stop start"),
    # The end of a run that was not ours to see says nothing.
    (BUCKET, "ready 2 2 / ready run run", "set_up start / -"),
    (BUCKET, UP + "ready never never", GO + "start"),
    # Preempted, lost, failed: deleted and made again; a repair is waited for, up to hung_secs.
    (BUCKET, UP + "queued / absent", GO + "delete / create"),
    (BUCKET, UP + "starting / +-9000 starting / +3900 starting / +200 starting", GO + "- / - / - / delete"),  # a clock set back
    (BUCKET, UP + "starting / +3000 ready run run / +3000 starting", GO + "- / - / -"),
    # A deletion that fails or is slow is ours, and repeated; one of somebody else ends the supervision.
    (BUCKET, UP + "lost !delete=503 / lost / deleting / absent", GO + "delete / delete / - / create"),
    (BUCKET, UP + "ready run run / +999 absent / absent / absent", GO + "- / - / - / end 1"),
    (BUCKET, UP + "ready run run / +999 absent / ready run run / absent", GO + "- / - / - / -"),
    (BUCKET, UP + "foreign", GO + "end 2"),
    (BUCKET, UP + "ready busy run", GO + "end 2"),
    # So does one that trains another run by itself: its end is not this run's.
    (ITSELF, "other 0 0", "end 2"),
    # Requests that fail: transient, permanent, for half a day; the name is taken.
    (BUCKET, "absent !create=PERMISSION_DENIED", "create end 1"),
    (BUCKET, "absent !create=ALREADY_EXISTS / ready never never", "create / set_up start"),
    (BUCKET, "absent / none" + " / +3600 none" * 12, "create" + " / -" * 12 + " / end 1"),
    (BUCKET, "absent / none / +90000 none / ready never never", "create / - / - / set_up start"),  # a laptop slept
    (BUCKET, "denied", "end 1"),
    # A login that expires at night is renewed in the morning.
    (BUCKET, UP + "denied" + " / +3600 denied" * 11 + " / ready run run / denied" + " / +3600 denied" * 12, GO + "- / " * 25 + "end 1"),
    (BUCKET, UP + "lost / absent !create=QUOTA_EXCEEDED / absent / ready #900 never never", GO + "delete / create / create / set_up start"),
    # Old answers: none after a request, one about the slice before.
    (BUCKET, "absent / absent / absent / absent / ready never never", "create / - / - / - / set_up start"),
    (BUCKET, UP + "lost / absent / lost / ready #900 never never", GO + "delete / create / - / set_up start"),
    # A slice that one false answer made newer is not passed over for ever, nor is one that was not deleted.
    (BUCKET, UP + "ready #9999999999 run run / lost / +800 lost / +40 lost", GO + "- / - / - / delete"),
    (BUCKET, UP + "lost / absent / +800 lost / +100 lost", GO + "delete / create / - / delete"),
    # Workers out of reach: five looks, hung_secs where training may go on, which a newer checkpoint shows.
    (BUCKET, "absent" + " / ready" * 5, "create / - / - / - / - / delete"),
    (BUCKET, " / ".join(["ready"] * 5), "- / - / - / - / end 1"),  # a supervisor on another machine
    (DISK, UP + "ready run 3" + " / ready" * 5, GO + "last_words stop end 3 / " + "- / " * 4 + "end 1"),
    (ITSELF, "ready / +3000 ready / +2000 ready", "- / - / delete"),  # their silence is in the bucket
    (BUCKET, UP + " / ".join(["ready 134"] * 5), GO + "- / - / - / - / delete"),
    (BUCKET, UP + "ready run" + " / ready" * 5 + " / +4000 ready", GO + "- / " * 6 + "delete"),
    (BUCKET, UP + "ready run" + " / ready" * 3 + " / +4000 ready @7 / ready", GO + "- / - / - / - / - / -"),
    (BUCKET, UP + "ready run never / ready run run / ready run never / ready run never", GO + "- / - / - / stop start"),
    (BUCKET, UP + "ready hung hung / ready hung run", GO + "stacks stop start / -"),
    # Set-up and start that fail, the doctor that finds a fault.
    (BUCKET, "ready never never !set_up=apt / ready never never", "set_up / set_up start"),
    (DOCTOR, "ready never never !examine=wrong / ready never never", "set_up examine / set_up examine start"),
    (DOCTOR, "ready never never !start=ssh / ready never never / ready 1 1", "set_up examine start / start / stop start"),
    # Tries in a row without a newer checkpoint; another one begins a new row.
    (TWICE, UP + "ready 1 1 @5 / ready 1 1 / ready 1 1 / ready 1 1 @3 / ready 1 1", GO + "stop start / stop start / delete / delete / delete"),
    (TWICE, "ready / lost / absent / lost #900 / absent", "- / delete / create / delete / end 1"),
    # Money: at most one look late, also while nobody answers.
    (POOR, UP + "ready run run / +500 none / absent / absent", GO + "- / stop delete / delete / end 1"),
    (POOR, UP + "ready run run / +-9000 ready run run / +1400 ready run run", GO + "- / - / stop delete"),
    (POOR, UP + "ready run run / lost / +9999 absent", GO + "- / delete / create"),
    # Machines that start themselves: their starts are tries; a silent or finished one is as above.
    (ITSELF, "absent / ready run run / ready 1 1 / ready run run / ready 0 0", "create / - / - / - / delete"),
    (ITSELF, "ready run run / queued / +3000 queued / +2000 queued", "- / - / - / delete"),
    (ITSELF, "ready run run / ready hung hung", "- / delete"),
]  # fmt: skip


def read_look(look: str, before: Answers | None) -> tuple[Answers, dict[str, str]]:
    now = (before.now if before else 1000.0) + 60
    created, checkpoint, words, fails = 100.0, None, [], {}
    for word in look.split():
        if word[0] in "+#@":
            number = float(word[1:])
            now += (number - 60) * (word[0] == "+")
            created = number if word[0] == "#" else created
            checkpoint = int(number) if word[0] == "@" else checkpoint
        elif word[0] == "!":
            kind, _, error = word[1:].partition("=")
            fails[kind] = error
        else:
            words.append(word)
    kind, *workers = words
    if kind in ("none", "denied"):
        return Answers(now, error="503", is_permanent=kind == "denied"), fails
    label = "her" if kind == "foreign" else "bert_jax"
    workdir = "gs://b/other" if kind == "other" else ""
    kind = "READY" if kind in ("foreign", "other") else kind.upper()
    seen = SliceSeen(kind)
    if kind != "ABSENT":
        has_machines = kind in ("READY", "STARTING")
        seen = SliceSeen(kind, kind, label, created, has_machines, 2, workdir)
    said = []
    for number, word in enumerate(workers):
        code = int(word) if word.isdigit() else 0
        named = "ended" if word.isdigit() else word
        status = {"run": "running", "hung": "running"}.get(word, named)
        said.append(Worker(f"w-{number}", status, 4000 if word == "hung" else 5, code, 1))
    return Answers(now, seen, workers=tuple(said), checkpoint=checkpoint), fails


def play(rules: Rules, looks: str, state: State | None = None):
    """Return the state at the end, what was done in each look, and what was said."""
    state, answers, done, said = state or State(rules), None, [], []
    for look in looks.split(" / "):
        answers, fails = read_look(look, answers)
        turn, kinds = answers, []
        while turn is not None:
            kept = dataclasses.replace(state)
            before, (state, actions) = state, decide(state, turn)
            assert before == kept  # a pure function
            outcomes = []
            for action in actions:
                said += [action.words] * (action.kind == "event")
                kinds += [f"end {action.code}" if action.kind == "end" else action.kind]
                if action.kind in module.REPORTED:
                    error = fails.get(action.kind, "")
                    outcomes.append((action.kind, Answer(bool(error), "", error)))
                    if error:
                        break
            turn = Answers(turn.now, outcomes=tuple(outcomes)) if outcomes else None
        done.append(" ".join(kind for kind in kinds if kind not in ("event", "wait")) or "-")
    return state, done, said


@pytest.mark.parametrize(("rules", "looks", "decided"), JOURNEYS)
def test_journey(rules, looks, decided):
    assert " / ".join(play(rules, looks)[1]) == decided


def test_a_pause_doubles_while_requests_fail_and_ends_with_an_answer():
    fails = "absent !create=503 / +120 absent !create=503 / +240 none / +480 none / +600 none"
    state, _, said = play(BUCKET, fails)
    pauses = [words.rpartition("in ")[2] for words in said if "retrying" in words]
    assert pauses == ["120 s", "240 s", "480 s", "600 s", "600 s"]
    assert play(BUCKET, "queued", state)[0].failed == 0


def test_dollars_never_count_too_little_nor_twice():
    begin = "queued #1000 / +60 ready #1000 never never / +60 ready #1000 run run"
    state, _, _ = play(BUCKET, begin)
    assert state.count_usd(1180 + 40) == 160  # from the last look without machines
    again = "lost #1000 / +4000 absent / ready #5000 run run / +40 ready #5000 run run"
    state, _, _ = play(BUCKET, again, state)
    assert state.spent_secs >= 0 and state.billed_since == 5000


def test_a_slice_that_waited_for_days_before_this_supervisor_came_costs_from_its_machines_on():
    seen = SliceSeen("READY", "", "bert_jax", 1000, True, 2, started=90_000)
    state, actions = decide(State(POOR), Answers(90_060, seen))
    assert state.count_usd(90_060) == 60 and state.end_code is None
    assert not any(action.kind == "delete" for action in actions)


def test_what_may_be_ours_alone_is_said_to_cost_money():
    answers = ("503", "PERMISSION_DENIED", "ALREADY_EXISTS", "ALREADY_EXISTS / foreign")
    found = [play(BUCKET, f"absent !create={answer}")[0].is_there for answer in answers]
    assert found == [True, False, True, False]


def test_what_is_waited_for_is_said_once_in_ten_minutes():
    said = play(BUCKET, "queued / queued / queued / +600 queued")[2]
    assert said == ["QUEUED", "QUEUED"]
