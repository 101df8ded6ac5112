"""launch/lib/outside_text.sh and its users: text from outside the scripts is never run."""

import re
import subprocess

import pytest

from tests.launch.scripts import LAUNCH, run, run_lines, write_command

pytestmark = pytest.mark.slow

# Evaluated as a number by bash, each of these makes a file.
CANARY = "canary"
CODE = ("HUNG_SECS[$(touch${IFS}canary)]", "a[$(touch${IFS}canary)]", "$(touch${IFS}canary)")
JUNK_NUMBERS = (
    *CODE,
    "zzz",
    "",
    "0x10",
    "-1",
    "1 2",
    "1.5",
    "9" * 16,
    "²",
    "BASH_VERSINFO",
    "10#8",
)


@pytest.fixture
def bash(tmp_path):
    """A function that runs lines of bash with the parts of watch.sh, in an empty folder."""

    def run(lines: str) -> subprocess.CompletedProcess[str]:
        ran = run_lines(
            f"""STATE_DIR={tmp_path}/state WORK_DIR=/mnt/a STATE=ACTIVE HUNG_SECS=4000
DELETE_AT_END=false
source $LAUNCH/lib/cluster.sh
TPU_NAME=my-tpu ACCELERATOR_TYPE=v5litepod-16 SPOT=false
mkdir -p "$STATE_DIR"
for part in gcloud_errors queued_resource spending watch_events watch_workers; do
    source $LAUNCH/lib/$part.sh
done
{lines}""",
            cwd=tmp_path,
        )
        assert not list(tmp_path.rglob(CANARY)), "something was run"
        return ran

    return run


@pytest.mark.fault(24, "code, letters and signs where a number belongs")
def test_only_a_number_becomes_one_and_zeros_in_front_are_decimal(bash):
    lines = [f"set_number number '{junk}' || echo $number" for junk in JUNK_NUMBERS]
    ran = bash("\n".join(["number=7", *lines, "set_number number 008; echo $number"]))
    assert (ran.stdout.split(), ran.stderr) == (["7"] * len(JUNK_NUMBERS) + ["8"], "")


@pytest.mark.parametrize(
    ("raw", "escaped"),
    [
        (b"\x1b]0;x\x07 a\r\x7f\x01", r"\x1b]0;x\x07 a\x0d\x7f\x01"),
        ("é 漢 😀 \t~".encode(), "é 漢 😀 \t~"),
        ("\u0085\u009b".encode(), r"\xc2\x85\xc2\x9b"),
        ("\u202ea\u2066\u200f\u061c\u2028".encode(), r"\xe2\x80\xae" + "a" + r"\xe2\x81\xa6"
         r"\xe2\x80\x8f\xd8\x9c\xe2\x80\xa8"),
        (b"\x9b31m \xff\xc3 \xed\xa0\x80 \xc0\x80", r"\x9b31m \xff\xc3 \xed\xa0\x80 \xc0\x80"),
        (b"a\\x1b [*] %s $(id) `id`", r"a\x1b [*] %s $(id) `id`"),
    ],
)  # fmt: skip
def test_what_a_terminal_would_obey_is_shown(raw, escaped):
    for function, end in (('escape_line "$(</dev/stdin)"', b""), ("escape_lines", b"\nb")):
        assert escape(function, raw + end) == escaped + end.decode() + "\n"


def escape(function: str, raw: bytes) -> str:
    script = f"source {LAUNCH}/lib/outside_text.sh; {function}"
    return subprocess.run(["bash", "-euc", script], input=raw, capture_output=True).stdout.decode()


def test_a_long_line_is_the_same_afterwards():
    text = "é" * 1001 + "x" * 70000 + "\n" + "y" * 65536 + "\n\n" + "z"
    assert escape("escape_lines", text.encode()) == text + "\n"


GOOD = ("running 12 3 40", "running - -1 -", "ended 1 08", "never started", "busy 9", "not set up")
BAD = (
    *(f"running 12 {junk} 40" for junk in CODE),
    f"running 12 4 {CODE[0]}",
    *(f"ended {junk} 4" for junk in (CODE[0], "", "1000", "-1")),
    *(f"busy {junk}" for junk in (CODE[0], "")),
    *("zzz", "", "running", "running 12 3", "running 12 3 40 5", "ended 2 3 4", "never", "not"),
    *("running 12 3 " + "9" * 16, "running 12 \x1b[2J 4", "running * * *", "ended 2 \u202e3"),
)


def test_an_answer_counts(bash):
    ran = bash("\n".join(f"count_answers 'worker w-1 {answer}'; echo $ANSWERS" for answer in GOOD))
    assert (ran.stdout.split(), ran.stderr) == (["1"] * len(GOOD), "")


@pytest.mark.fault(24, "code, escapes and junk in the answer of a worker")
@pytest.mark.parametrize("answer", BAD)
def test_a_junk_answer_is_none_and_is_named(bash, answer):
    ran = bash(
        f"""count_answers 'worker w-1 {answer}
worker w-2 running 1 08 09
worker w-2 running 1 0 99'
echo "$ANSWERS $RUNNING $SILENT_SECS $SEEN '$FINAL$CODES$BUSY'" """
    )
    junk, again, counted = ran.stdout.splitlines()
    assert " worker w-1 gave no answer of on_worker_train.sh but 'worker w-1" in junk
    assert " worker w-2 gave no answer" in again  # a worker has one voice
    assert (counted, ran.stderr) == ("1 1 8 9 ''", "")
    assert "\x1b" not in ran.stdout
    assert "\u202e" not in ran.stdout


def test_a_flood_of_junk_is_counted_in_four_lines(bash):
    ran = bash('for i in {1..50}; do echo "worker w-$i ${RANDOM}x"; done >a; count_answers "$(<a)"')
    assert len(ran.stdout.splitlines()) == 4
    assert "47 more such answers" in ran.stdout


@pytest.mark.fault(24, "code in what Google Cloud says of a TPU VM")
def test_what_google_says_of_the_node_is_no_program(bash):
    time = "2026-11-22T03:00:00Z"
    for count in ("08", CODE[0], "9" * 20, "-1", ""):
        ran = bash(
            f"""describe_node() {{ printf '%s\\n' 'READY {time} {count}'; }}
ask_node; echo "$NODE_STATE $WORKER_COUNT" """
        )
        assert ran.stdout.splitlines()[-1] == ("READY 8" if count == "08" else "UNKNOWN 0")
        assert ran.stderr == ""


@pytest.mark.parametrize(
    "line",
    [
        *(f"{name}={CODE[0]}" for name in ("BORN", "SPENT_SECS", "BEST")),
        *("BORN=-", "SPENT_SECS=", "TRIES=-", "DELETION_ASKED=2", "PATH=/tmp", "a b", "\x1b[2J=1"),
    ],
)
def test_a_state_that_watch_sh_did_not_write_is_refused(bash, tmp_path, line):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state").write_text(f"RUN=/mnt/a\n{line}\n")
    ran = bash("begin_events; existed_secs")
    assert ran.returncode == 2
    sentence, cost = ran.stderr.splitlines()
    assert "state/state has the line" in sentence
    assert "may still cost money" in cost
    assert "\x1b" not in ran.stderr


def test_a_state_with_zeros_in_front_and_a_foreign_pid_are_read(bash, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "pid").write_text("-1\n")  # to kill, every process there is
    (tmp_path / "state" / "state").write_text("RUN=/mnt/a\nSPENT_SECS=08\nBEST=-\nSEEN=09\n")
    ran = bash("begin_events; trap - EXIT; existed_secs; echo $SEEN")
    assert (ran.stdout, ran.stderr) == ("8\n9\n", "")


def test_the_line_about_cost_comes_however_the_watch_ends(bash):
    ran = bash("begin_events; false; echo not reached")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.count("my-tpu may still cost money ($19.20 an hour), until: ") == 1
    ended = bash("begin_events; end 3 run over")
    assert ended.returncode == 3
    assert ended.stderr.count("may still cost money") == 1


# Words in which bash computes, and so would run code that stands in a variable.
ARITHMETIC = re.compile(
    r"\(\((?P<both>.+?)\)\)(?!\))|\[\[ (?P<test>[^]]*? -(?:lt|le|gt|ge|eq|ne) [^]]*?) \]\]"
    r"|\$\{\w+:(?P<part>[^-+=?}][^}]*)\}|\b(?:let|eval|declare|typeset)\b(?P<other>.*)"
    r"|printf -v \"(?P<into>\S*)"
)
# Variables that are computed with: from set_number, $?, now or arithmetic, or matched by a pattern
# of digits before. Think before you add one: bash runs code that stands in it.
NUMBERS = {
    *("status", "code", "WORKER_COUNT", "silent", "first", "second", "SPENT_SECS", "TRIES", "BORN"),
    *("SEEN", "UNREACHED_AT", "until", "POLL_SECS", "HUNG_SECS", "MAX_TRIES", "ACCELERATOR_TYPE"),
    *("size", "chips", "CHIPS_A_HOST", "number", "limit", "poll", "BASH_REMATCH", "name", "newest"),
    *("caught", "LOG", "STOP_GRACE_SECS", "KILL_SECS", "NOT_READY_SINCE", "UNANSWERED_SINCE"),
    *("WAITING_SINCE", "SILENT_SECS", "said_at", "SECONDS"),
}
# Counters and constants: nothing but numbers and arithmetic is ever assigned to them.
COUNTERS = re.compile(r"=(\$\(\(|['\"]?\d*['\"]?(\s|;|$))")


def computed_variables(text: str) -> set[str]:
    """Names in what bash would compute; functions, digits and lengths are no variables."""
    names = set()
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        for match in ARITHMETIC.finditer(line):
            inside = next(part for part in match.groups() if part is not None)
            inside = re.sub(
                r"\$\{?#\{?[\w@[\]]+\}?|\$\(now\)|0x|10#|'[^']*'|(?<= )-\w\w\b", " ", inside
            )
            names |= set(re.findall(r"[A-Za-z_]\w*", inside)) - {"date", "s", "stat", "c", "Y"}
    return names


def test_every_variable_that_bash_computes_with_is_known_for_a_number():
    unknown = set()
    for path in LAUNCH.rglob("*.sh"):
        text = path.read_text()
        for name in computed_variables(text) - NUMBERS:
            values = re.findall(rf"(?<![\w${{]){name}\+?(=\S*(?:\s|;|$))", text, re.MULTILINE)
            if not values or not all(COUNTERS.match(value) for value in values):
                unknown.add(f"{path.name}: {name}")
    assert unknown == set(), "take them through set_number, and add them to NUMBERS"


def test_the_search_sees_what_is_computed():
    for line in (
        *("if ((answer < 3)); then", "a=$((answer + 1))", "[[ $answer -lt 3 ]]", "let answer=3"),
        *("echo ${text:answer:2}", 'eval "$answer"'),
    ):
        assert "answer" in computed_variables(line), line


ANSWER = r"printf '\033]0;owned\007w-1: step 7 \302\233 \377\n' | tee /dev/stderr"
SAFE = r"\x1b]0;owned\x07w-1: step 7 \xc2\x9b \xff"


@pytest.mark.fault(24, "escapes in the log of a worker, in its name and in the bucket")
@pytest.mark.parametrize(
    ("script", "flags"),
    [("logs.sh", ()), ("train.sh", ("--stop",)), ("logs.sh", ("--bucket",))],
)
def test_what_workers_write_reaches_the_terminal_escaped(cluster, tmp_path, script, flags):
    write_command(
        tmp_path / "bin" / "gcloud",
        '[[ "$1 $2" != "auth list" ]] || { echo me; exit; }',
        '[[ "$1 $2" != "storage ls" ]] || {',
        "    echo '  1  2026-11-22T03:04:05Z  gs://my-bucket/logs/my-tpu/w-1-20261122T020000Z.log'",
        r"    printf '  1  2026-11-23T03:04:05Z  gs://my-bucket/logs/my-tpu/\033[2J.log\n'",
        "    exit",
        "}",
        ANSWER + ("" if "--bucket" not in flags else " 2>/dev/null"),
        "exit 7",
    )
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    ran = run(script, cluster(BUCKET="gs://my-bucket"), *flags, PATH=path)
    assert ran.returncode == 7
    assert SAFE in ran.stdout.splitlines()
    assert "--bucket" in flags or SAFE in ran.stderr.splitlines()
    assert "\x1b" not in ran.stdout + ran.stderr
