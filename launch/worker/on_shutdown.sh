#!/usr/bin/env bash
# Shutdown script of each machine of a group (ROAD=compute_engine): lets the training save. Compute Engine gives
# 90 s, and a Spot machine 30 s, before it deletes, stops or preempts a machine.
cd "${HOME_DIR-/var/lib/bert_jax}/bert_jax" && exec bash launch/worker/on_worker_train.sh --stop logs/train.log
