"""Write class_defaults.json: what transformers' classes take for settings that a file lacks.

    PYTHON tests/golden/class_defaults.py

PYTHON has transformers; what its version gives is kept beside other versions' (4.57.6 and 5.24.0).
"""

import json
import pathlib

FILE = pathlib.Path(__file__).with_suffix(".json")
KINDS = ("bert", "roberta", "albert", "electra", "distilbert", "xlnet", "modernbert")
KINDS += ("xlm-roberta", "camembert", "deberta-v2")


def main() -> None:
    """Entry point."""
    import transformers

    shared = transformers.PretrainedConfig().to_dict().keys()  # by all classes
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known[transformers.__version__] = {
        kind: {name: value for name, value in sorted(of_kind.items()) if name not in shared}
        for kind in KINDS
        for of_kind in [transformers.AutoConfig.for_model(kind).to_dict()]
    }
    FILE.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
