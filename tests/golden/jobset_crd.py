"""The schema of JobSet's CRD without descriptions, written as jobset_crd.json.gz.

    python tests/golden/jobset_crd.py CLONE

where CLONE is a clone of https://github.com/kubernetes-sigs/jobset (Apache-2.0) with the tag below.
"""

import gzip
import json
import pathlib
import subprocess
import sys

import yaml

TAG = "v0.12.0"
PATH = "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"


def strip(value, names=False):
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if names or k != "description"}
        return {k: strip(v, k == "properties" and not names) for k, v in kept.items()}
    return [strip(item) for item in value] if isinstance(value, list) else value


def git(*words):
    return subprocess.run(
        ["git", "-C", sys.argv[1], *words], capture_output=True, check=True
    ).stdout


if __name__ == "__main__":
    crd = yaml.safe_load(git("show", f"{TAG}:{PATH}"))
    commit = git("rev-parse", f"{TAG}^{{commit}}").decode().strip()
    source = f"kubernetes-sigs/jobset {TAG}, {commit}, {PATH}, Apache-2.0; descriptions stripped"
    schema = strip(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    text = json.dumps({"source": source, "schema": schema}, separators=(",", ":"))
    target = pathlib.Path(__file__).with_name("jobset_crd.json.gz")
    target.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
