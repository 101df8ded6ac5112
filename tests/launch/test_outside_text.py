"""launch/outside_text.sh and its users: what workers, Google Cloud and files say is never run."""

import pathlib
import re
import subprocess

import pytest

from tests.launch.scripts import LAUNCH, refusal, run, write_command

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

    def run_lines(lines: str) -> subprocess.CompletedProcess[str]:
        script = f"""LAUNCH={LAUNCH} STATE_DIR={tmp_path}/state TPU_NAME=my-tpu WORK_DIR=/mnt/a
ACCELERATOR_TYPE=v5litepod-16 SPOT=false STATE=ACTIVE HUNG_SECS=4000 DELETE_AT_END=false
source {LAUNCH}/cluster.sh
TPU_NAME=my-tpu ACCELERATOR_TYPE=v5litepod-16 SPOT=false
mkdir -p "$STATE_DIR"
for part in gcloud_errors queued_resource spending watch_events watch_workers; do
    source {LAUNCH}/$part.sh
done
{lines}"""
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        assert not list(tmp_path.rglob(CANARY)), "something was run"
        return ran

    return run_lines


@pytest.mark.parametrize("junk", JUNK_NUMBERS)
def test_only_a_number_becomes_one(bash, junk):
    ran = bash(f"number=7; set_number number '{junk}' || echo refused; echo $number")
    assert (ran.stdout, ran.stderr) == ("refused\n7\n", "")


def test_a_number_with_zeros_in_front_is_decimal(bash):
    assert bash("set_number number 008; echo $number").stdout == "8\n"


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
        ran = subprocess.run(
            ["bash", "-euc", f"source {LAUNCH}/outside_text.sh; {function}"],
            input=raw + end,
            capture_output=True,
        )
        assert ran.stdout.decode() == escaped + end.decode() + "\n"


def test_a_long_line_is_the_same_afterwards():
    text = "é" * 1001 + "x" * 70000 + "\n" + "y" * 65536 + "\n\n" + "z"
    ran = subprocess.run(
        ["bash", "-euc", f"source {LAUNCH}/outside_text.sh; escape_lines"],
        input=text.encode(),
        capture_output=True,
    )
    assert ran.stdout.decode() == text + "\n"


GOOD = ("running 12 3 40", "running - -1 -", "ended 1 08", "never started", "busy 9", "not set up")
BAD = (
    *(f"running 12 {junk} 40" for junk in CODE),
    *(f"running 12 4 {junk}" for junk in CODE),
    *(f"ended {junk} 4" for junk in (*CODE, "", "1000", "-1")),
    *(f"busy {junk}" for junk in (*CODE, "")),
    *("zzz", "", "running", "running 12 3", "running 12 3 40 5", "ended 2 3 4", "never", "not"),
    *("running 12 3 " + "9" * 16, "running 12 \x1b[2J 4", "running * * *", "ended 2 \u202e3"),
)


@pytest.mark.parametrize("answer", GOOD)
def test_an_answer_counts(bash, answer):
    ran = bash(f"count_answers 'worker w-1 {answer}'; echo $ANSWERS")
    assert (ran.stdout, ran.stderr) == ("1\n", "")


@pytest.mark.parametrize("answer", BAD)
def test_a_junk_answer_is_none_and_is_named(bash, answer):
    ran = bash(
        f"""count_answers 'worker w-1 {answer}
worker w-2 running 1 08 09
worker w-2 running 1 0 99'
echo "$ANSWERS $RUNNING $SILENT_SECS $SEEN '$FINAL$CODES$BUSY'" """
    )
    junk, again, counted = ran.stdout.splitlines()
    assert " worker w-1 gives no answer of on_worker_train.sh but 'worker w-1" in junk
    assert " worker w-2 gives no answer" in again  # a worker has one voice
    assert (counted, ran.stderr) == ("1 1 8 9 ''", "")
    assert "\x1b" not in ran.stdout
    assert "\u202e" not in ran.stdout


def test_a_flood_of_junk_is_counted_in_four_lines(bash):
    ran = bash('for i in {1..50}; do echo "worker w-$i ${RANDOM}x"; done >a; count_answers "$(<a)"')
    assert len(ran.stdout.splitlines()) == 4
    assert "47 more such answers" in ran.stdout


@pytest.mark.parametrize("count", ["08", *CODE, "9" * 20, "-1", ""])
def test_what_google_says_of_the_node_is_no_program(bash, count):
    time = "2026-11-22T03:00:00Z"
    ran = bash(
        f"""describe_node() {{ printf '%s\\n' 'READY {time} {count}'; }}
ask_node; echo "$NODE_STATE $WORKER_COUNT" """
    )
    assert ran.stdout.splitlines()[-1] == ("READY 8" if count == "08" else "UNKNOWN 0")
    assert ran.stderr == ""


@pytest.mark.parametrize(
    "line",
    [
        *(f"{name}={junk}" for name in ("BORN", "SPENT_SECS", "BEST") for junk in CODE),
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
# Every variable that is computed with -> the text in launch/ by which it is a number.
NUMBERS = {
    **dict.fromkeys(("status", "code"), "status=0"),  # $?, or set_number
    **dict.fromkeys(("WORKER_COUNT", "silent", "first", "second"), "set_number "),
    **dict.fromkeys(("SPENT_SECS", "TRIES", "BORN"), 'set_number "$name" "$value"'),
    "SEEN": 'see "$newest"',
    "UNREACHED_AT": "UNREACHED_AT=$SEEN",
    "until": "local until=${1:-$(now)}",
    "POLL_SECS": "[[ $POLL_SECS =~ ^",
    "HUNG_SECS": "[[ $HUNG_SECS =~ ^",
    "MAX_TRIES": "[[ $MAX_TRIES =~ ^",
    "ACCELERATOR_TYPE": "form='(v|tpu)[0-9]+[a-z]*-[1-9][0-9]{0,4}'",
    "size": "local size=${ACCELERATOR_TYPE#*-}",
    "chips": "chips=$((size / 2))",
    "CHIPS_A_HOST": "readonly CHIPS_A_HOST=4",
    "number": "local number=${1%?}",  # in_seconds, after check_duration
    "limit": 'wait_until_active "$(in_seconds "$wait")" "$poll"',
    "poll": "[[ $poll =~ ^[1-9][0-9]{0,3}$ ]]",
    "BASH_REMATCH": "[[ $1 =~ ^([0-9]{4})-([0-9]{2})-([0-9]{2})T",
    "name": "[[ $name =~ ^[0-9]{1,15}$ ]]",
    "newest": "newest=$((10#$name))",
    "caught": r"\([0-9a-f]\{1,16\}\)$",
    "LOG": "stat -c %Y",
    "STOP_GRACE_SECS": "STOP_GRACE_SECS=${STOP_GRACE_SECS-60}",  # the worker's own environment
    "KILL_SECS": "KILL_SECS=${KILL_SECS-30}",
    "NOT_READY_SINCE": "NOT_READY_SINCE:-$(now)",
    "UNANSWERED_SINCE": "UNANSWERED_SINCE:-$(now)",
    "WAITING_SINCE": "WAITING_SINCE=$(now)",
    "SILENT_SECS": "SILENT_SECS=$silent",
    "said_at": "said_at=$SECONDS",
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
    texts = {path: path.read_text() for path in LAUNCH.rglob("*.sh")}
    everything = "\n".join(texts.values())
    assert [text for text in NUMBERS.values() if text not in everything] == []
    unknown = set()
    for path, text in texts.items():
        for name in computed_variables(text) - NUMBERS.keys() - {"SECONDS"}:
            values = re.findall(rf"(?<![\w${{]){name}\+?(=\S*(?:\s|;|$))", text, re.MULTILINE)
            if not values or not all(COUNTERS.match(value) for value in values):
                unknown.add(f"{path.name}: {name}")
    assert unknown == set(), "take them through set_number, and add them to NUMBERS"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("if ((answer < 3)); then", "answer"),
        ("a=$((b + 1))", "b"),
        ("[[ $answer -lt 3 ]]", "answer"),
        ("echo ${text:answer:2}", "answer"),
        ('eval "$answer"', "answer"),
        ("let answer=3", "answer"),
    ],
)
def test_the_search_sees_what_is_computed(line, name):
    assert name in computed_variables(line)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("REMOTE_DIR", v) for v in ("/", "~", "..", ".", "./", "//", "/./", "a b", "$(id)", "")),
        *(("REMOTE_PYTHON", v) for v in ("/", ".", "$(touch canary)/bin/python")),
        ("REMOTE_DIR", "a\x1b[2Jb"),
        ("PROJECT", "\u202emy-project"),
        ("ACCELERATOR_TYPE", "v4-08"),
        ("ACCELERATOR_TYPE", "v4-" + "9" * 20),
    ],
)
def test_a_value_is_refused_with_its_file_line_and_key(cluster, name, value):
    option = cluster(**{name: value})
    path = option.partition("=")[2]
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    number = 1 + [line.startswith(f"{name}=") for line in lines].index(True)
    flags = ("--config=configs/tiny.py", "--workdir=/mnt/a", "--revision=HEAD")
    said = refusal("watch.sh", "--dry-run", option, *flags)
    assert f"{path}, line {number}: {name} is " in said
    assert "\x1b" not in said
    assert "\u202e" not in said


@pytest.mark.parametrize(
    "line",
    ["PROJECT ZONE=foo", " ZONE=a", "zone=a", "=a", "ZONE", "PATH=/tmp", "ZONE+=a", "a\x1b[2J=b"],
)
def test_a_line_with_another_name_is_refused(cluster, line):
    said = refusal("delete.sh", "--yes", "--dry-run", cluster(line))
    assert re.search(r", line 13: '.*' is not NAME=VALUE", said)
    assert "\x1b" not in said


def test_a_setting_that_stands_twice_is_refused(cluster):
    assert "line 13: ZONE is given a second time" in refusal(
        "delete.sh", "--yes", "--dry-run", cluster("ZONE=us-east1-d")
    )


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("train.sh", ("--config=a\x1b[2J.py", "--workdir=/mnt/a")),
        ("train.sh", ("--config=a.py\nid", "--workdir=/mnt/a")),
        ("watch.sh", ("--config=a.py", "--workdir=/mnt/\u202ea")),
        ("pod.sh", ("a.py", "--state_dir=/tmp/\r")),
        ("gke/jobset.sh", ("--config=a.py", "--workdir=gs://a/b", "--x=\x9b")),
        ("ssh.sh", ("echo \x1b]0;x\x07",)),
        ("create.sh", ("--cluster=/tmp/\x1b",)),
    ],
)
def test_arguments_that_a_terminal_would_obey_are_refused(cluster, script, flags):
    said = refusal(script, "--dry-run", cluster(), *flags)
    assert "control character" in said or "line break" in said
    assert not set(said) & set("\x1b\u202e\r\x9b\x07")


ANSWER = r"printf '\033]0;owned\007w-1: step 7 \302\233 \377\n' | tee /dev/stderr"
SAFE = r"\x1b]0;owned\x07w-1: step 7 \xc2\x9b \xff"


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
