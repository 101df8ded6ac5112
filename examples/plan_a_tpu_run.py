"""Compare TPU slices for a run, before paying for one: memory, time, cost.

    python examples/plan_a_tpu_run.py configs/base.py v5e:4x4 v6e:4x4 [FLAGS OF bert_jax.plan]

Needs x86-64 Linux and the TPU's compiler, `pip install '.[plan]'`, but no TPU. A slice takes
minutes of a core for BERT-Base. Times are the compiler's estimates. More: docs/guide/plan.md.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

if len(sys.argv) < 3:
    sys.exit(__doc__)
config, *others = sys.argv[1:]
topologies = [argument for argument in others if not argument.startswith("--")]
flags = [argument for argument in others if argument.startswith("--")]

ROW = "{:10} {:>5} {:>4} {:>12} {:>16} {:>7} {:>9}"
print(ROW.format("slice", "chips", "fits", "GiB per chip", "ms per step", "hours", "USD"))
for topology in topologies:
    with tempfile.TemporaryDirectory() as folder:
        numbers = pathlib.Path(folder) / "plan.json"
        # %% The exit code is 1 if a phase does not fit: that is an answer, too.
        planned = subprocess.run(
            [
                *(sys.executable, "-m", "bert_jax.plan", f"--config={config}"),
                *(f"--topology={topology}", f"--json_out={numbers}", *flags),
            ],
            capture_output=True,
            text=True,
        )
        if planned.returncode not in (0, 1) or not numbers.exists():
            sys.exit(f"{topology}: {planned.stdout}{planned.stderr}")
        plan = json.loads(numbers.read_text())

    # %% One number per phase; null where it does not fit or a price is unknown.
    phases, run = plan["phases"], plan["run"]
    gibibytes = f"{max(phase['needed_bytes'] for phase in phases) / 2**30:.2f}"
    steps = [phase["estimate"] for phase in phases]
    pace = " / ".join(f"{step['step_secs'] * 1e3:.2f}" if step else "-" for step in steps)
    hours = "-" if run["secs"] is None else f"{run['secs'] / 3600:.2f}"
    dollars = "-" if run["usd"] is None else f"{run['usd']:.2f}"
    fits = "yes" if all(phase["fits"] for phase in phases) else "no"
    print(ROW.format(topology, plan["chips"], fits, gibibytes, pace, hours, dollars), flush=True)
