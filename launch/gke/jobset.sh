#!/usr/bin/env bash
# Write the manifest of a JobSet that trains on the TPU slice of cluster.env in a GKE cluster.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=../lib/gke_machine.sh
source "$LAUNCH/lib/gke_machine.sh"

usage() {
    cat <<'USAGE'
usage: launch/gke/jobset.sh [--cluster=FILE] [--max_restarts=N] --config=FILE --workdir=gs://BUCKET/DIR
                            [TRAIN_FLAG ...]

Writes to standard output a JobSet (jobset.x-k8s.io/v1alpha2), named TPU_NAME, that runs
`python -m bert_jax.train --multihost` with the flags from --config on, one pod for each host of the
slice. Review it, then pipe it into `kubectl apply --filename=-`. The cluster needs JobSet's controller
and a node pool of that slice.

  --cluster=FILE     TPU_NAME, PRESET or ACCELERATOR_TYPE and RUNTIME_VERSION, SPOT, COORDINATOR_PORT,
                     LABEL, GKE_IMAGE and GKE_SERVICE_ACCOUNT (default: cluster.env)
  --max_restarts=N   restart all pods at most so often (default: 100); preemptions count too
  --dry-run          the same: nothing is ever sent

The config is resolved here first (BERT_JAX_PYTHON as in launch/train.sh); the image has its own copy.
Once one pod fails, all are recreated and resume from the newest checkpoint, except after exit codes 2 and 3
(bert_jax/runtime/exit_codes.py), which a restart would repeat: they end the JobSet. Everybody can read the
flags in the manifest: put no secret into them.
Exit code: 0; 2 if this script refuses.
Not yet run on a cluster.
USAGE
}

# replaced TEXT CHARACTER BY; what ${TEXT//...} makes of a backslash differs between versions of bash.
replaced() {
    local rest=$1 text=''
    while [[ $rest == *"$2"* ]]; do
        text+=${rest%%"$2"*}$3
        rest=${rest#*"$2"}
    done
    printf '%s' "$text$rest"
}

# The words of the command, one a line, each as YAML and JSON write a string; Kubernetes takes $$ for $.
write_command() {
    local word
    for word in python -u -m bert_jax.train --multihost "$@"; do
        word=$(replaced "$word" \\ \\\\)
        word=$(replaced "$word" '"' '\"')
        printf '                    - "%s"\n' "$(replaced "$word" '$' '$$')"
    done
}

write_optional() {
    if [[ $SPOT == true ]]; then echo '                cloud.google.com/gke-spot: "true"'; fi
    if [[ -n $GKE_SERVICE_ACCOUNT ]]; then echo "              serviceAccountName: $GKE_SERVICE_ACCOUNT"; fi
}

write_environment() {
    [[ -n $COORDINATOR_PORT ]] || return 0
    cat <<YAML
                  env:
                    - name: JAX_COORDINATOR_PORT
                      value: "$COORDINATOR_PORT"
YAML
}

# write_manifest MAX_RESTARTS FLAG ...: the headless service is made by JobSet from network.
write_manifest() {
    local max_restarts=$1
    shift
    cat <<YAML
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $TPU_NAME
  labels:
    launched_by: $LABEL
  annotations:
    # One slice holds all pods, and no other job's.
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  network:
    enableDNSHostnames: true
    subdomain: $TPU_NAME
  failurePolicy:
    maxRestarts: $max_restarts
    rules:
      # The exit codes of podFailurePolicy below; whatever else fails starts all pods anew.
      - name: final
        action: FailJobSet
        onJobFailureReasons:
          - PodFailurePolicy
  replicatedJobs:
    - name: slice
      replicas: 1
      template:
        spec:
          parallelism: $HOSTS
          completions: $HOSTS
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  containerName: train
                  operator: In
                  values: [${FINAL_CODES// /, }]
          template:
            metadata:
              labels:
                launched_by: $LABEL
            spec:
              restartPolicy: Never
              # A save on SIGTERM has so long; a spot node itself leaves 25 s.
              terminationGracePeriodSeconds: 60
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $ACCELERATOR
                cloud.google.com/gke-tpu-topology: $TOPOLOGY
$(write_optional)
              tolerations:
                - key: google.com/tpu
                  operator: Exists
              containers:
                - name: train
                  image: $GKE_IMAGE
                  command:
$(write_command "$@")
$(write_environment)
                  resources:
                    requests:
                      google.com/tpu: $CHIPS_A_HOST
                    limits:
                      google.com/tpu: $CHIPS_A_HOST
YAML
}

main() {
    read_flags "$@"
    read_cluster
    check_settings TPU_NAME ACCELERATOR_TYPE SPOT COORDINATOR_PORT LABEL GKE_IMAGE GKE_SERVICE_ACCOUNT
    find_machine
    check_workload ${flags[@]+"${flags[@]}"}
    check_config '' "${flags[@]}"
    write_manifest "$max_restarts" "${flags[@]}" | sed '/^$/d'
}

main "$@"
