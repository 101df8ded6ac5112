"""Does pre-training pay? A small BERT of your own, new weights, and a published checkpoint.

    python -m bert_jax.study --config=configs/studies/does_it_pay.py:given=hf:DIR
        --config.store=runs/quickstart/store --workdir=DIR
        --task="sst2 configs/finetune/glue.py:task=sst2 data.dir=DIR"

All three are fine-tuned. BERT is configs/quickstart.py or config=FILE, and the new weights have its
sizes. given is hf:, google: or a workdir; without it there are two rows. A published model needs a
lower learning rate and fewer epochs than a small one: its row has 1e-4 and two.

Measured (row study_pays of docs/results/studies.json): 5 minutes on two cores, and 86
for a run of its own.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow


def get_config(text: str = "") -> c.ConfigDict:
    """Build the rows BERT, untrained and, if an address is given, given; three seeds."""
    places = c.arguments(text, config="configs/quickstart.py:model=bert", given="")
    rows = [
        StudyRow("BERT", config=places["config"]),
        StudyRow("untrained", kind="untrained", reads="BERT"),
    ]
    if places["given"]:
        address = f"checkpoint={places['given']}"
        own = "optim.learning_rate=1e-4 epochs=2"
        rows.append(StudyRow("given", kind="given", flags=address, finetune=own))
    return c.to_config_dict(StudyConfig(rows=tuple(rows)))
