"""BERT paper, figure 5: BERT and left to right, fine-tuned from five checkpoints of each run.

    python -m bert_jax.study --config=configs/studies/steps.py
        --config.store=runs/quickstart/store --workdir=DIR
        --task="mnli configs/finetune/glue.py:task=mnli data.dir=DIR"

The row BERT trains; BERT_320 and others read its checkpoints. Loss curves are in the workdirs of
the runs (curves.png). A run has rows of 64 tokens and a single learning-rate schedule, so that its
checkpoints differ in steps only. Not measured with this code.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow

_STEPS, _LAST = (320, 640, 960, 1280), 1600  # each fifth of the run, like 200k of 1M
_FLAGS = (
    f"phases[0].seq_len=64 phases[0].batch_size=48 phases[0].steps={_STEPS[-1]} "
    f"phases[1].steps={_LAST - _STEPS[-1]} phases[1].restart_learning_rate=0 "
    "phases[1].restart_warmup_steps=0 "
    f"eval.every_steps={_STEPS[0]} checkpoint.every_steps={_STEPS[0]} "
    f"checkpoint.keep_every_steps={_STEPS[0]}"
)
# MNLI dev after 200k, 400k, 600k, 800k and 1M steps. Source: read off the paper's figure 5.
_MODELS = {
    "BERT": ("bert", ("82.2", "83.2", "84.0", "84.3", "84.4")),
    "LTR": ("left_to_right", ("81.0", "81.7", "81.9", "82.1", "82.2")),
}
_PAPER = "paper, figure 5: MNLI"


def get_config() -> c.ConfigDict:
    """Build two rows that train and four checkpoints of each; three seeds."""
    rows = []
    for name, (model, figures) in _MODELS.items():
        place = f"configs/quickstart.py:model={model}"
        rows.append(StudyRow(name, config=place, flags=_FLAGS, paper=figures[-1]))
        rows += [
            StudyRow(f"{name}_{step}", "checkpoint", "", f"step={step}", figure, reads=name)
            for step, figure in zip(_STEPS, figures, strict=False)
        ]
    return c.to_config_dict(StudyConfig(rows=tuple(rows), paper=_PAPER))
