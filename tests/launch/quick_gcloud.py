"""A stand-in for gcloud that starts at once: what launch/ asks, put to the stand-in for its API.

The real one takes one to two seconds a command. API_PORT is where the API answers, BUCKETS the
folder that holds gs://; ssh and scp on PATH are those of tpu_api.write_ssh. Run with python -I -S:
imports are most of the time that it takes.
"""

import glob
import json
import os
import re
import socket
import sys

ZONE = "/v2/projects/my-project/locations/us-central2-b/"


def ask(command, method, path, body=None):
    """Return the answer of the API, or end with the error in gcloud's words."""
    content = json.dumps(body or {}).encode()
    head = f"{method} {ZONE}{path} HTTP/1.0\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(os.environ["API_PORT"]))) as connection:
        connection.sendall(head.encode() + content)
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, content = reply.partition(b"\r\n\r\n")
    answer = json.loads(content)
    if head.split()[1] != b"200":
        words = f"{answer['error']['status']}: {answer['error']['message']}"
        sys.exit(f"ERROR: (gcloud.compute.tpus.{command}) {words}")
    return answer


def print_fields(answer, form):
    """Print the fields that --format=value[separator=" "](a.b,c[0].d,e.len()) names."""
    values = []
    for field in re.fullmatch(r'value(?:\[separator=" "\])?\((.*)\)', form)[1].split(","):
        value = answer
        for step in re.findall(r"[\w]+(?:\(\))?", field):
            if step == "len()":
                value = len(value)
            elif isinstance(value, list):
                value = value[int(step)] if int(step) < len(value) else ""
            else:
                value = value.get(step, "") if isinstance(value, dict) else ""
        values.append(str(value))
    print(" ".join(values))


def on_workers(name, command, flags, words):
    """Run ssh or scp for each worker at once, as --worker=all does."""
    node = ask(f"tpu-vm.{command}", "GET", f"nodes/{name}")
    children = []
    for endpoint in node["networkEndpoints"]:
        host = f"me@{endpoint['ipAddress']}"
        if command == "ssh":
            line = ["ssh", host, "--", flags["command"]]
        else:
            line = ["scp", words[0], f"{host}:{words[1].partition(':')[2]}"]
        children.append(os.spawnvp(os.P_NOWAIT, line[0], line))
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for worker, code in enumerate(codes):
        if code:
            print(f"##### Command execution on worker {worker} failed with exit status {code}.")
    return max(codes)


def list_objects(address):
    buckets = os.environ["BUCKETS"] + "/"
    paths = sorted(glob.glob(address.replace("gs://", buckets)))
    if not paths:
        sys.exit("ERROR: (gcloud.storage.ls) One or more URLs matched no objects.")
    for path in paths:
        print(path.replace(buckets, "gs://"))


def main(words):
    flags = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    words = [word for word in words if not word.startswith("--")]
    if words[0] == "auth":
        return print("me@example.com")
    if words[:2] == ["storage", "ls"]:
        return list_objects(words[2])
    if words[0] != "compute":
        return None
    kind, command, *words = words[2:]
    if command in ("ssh", "scp"):
        name = words[0] if command == "ssh" else words[1].partition(":")[0]
        return on_workers(name, command, flags, words)
    name = f"{kind}.{command}"
    if command == "describe":
        path = "nodes" if kind == "tpu-vm" else "queuedResources"
        return print_fields(ask(name, "GET", f"{path}/{words[0]}"), flags["format"])
    if command == "delete":
        force = "?force=true" * ("force" in flags)
        return ask(name, "DELETE", f"queuedResources/{words[0]}{force}") and None
    labels = dict([flags["labels"].split("=")])
    body = {"tpu": {"nodeSpec": [{"nodeId": words[0], "node": {"labels": labels}}]}}
    return ask(name, "POST", f"queuedResources?queuedResourceId={words[0]}", body) and None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
