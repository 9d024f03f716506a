#!/bin/bash
# Written by trackwalker: one agent on each node. What it runs stands in order.json beside this file.
unset @stale@
folder=@folder@
told=0
attempt=${SLURM_RESTART_COUNT:-0}
# Slurm tells the agents itself when it ends a job, so we only stay until they are done. What reaches this script alone
# is left as a note for the first node: srun would answer SIGTERM by killing every task at once and hand SIGUSR1 (the
# time limit is near) to ranks that do not expect it; scancel from here could hit the next attempt of a requeued job.
trap 'told=1; : > "$folder/stop-$attempt"' TERM
# The log has it as well, from whom Slurm told: agents may not live to say it.
near="TIME_LIMIT_NEAR: Slurm ends job $SLURM_JOB_ID at its time limit"
trap 'told=1; : > "$folder/time-limit-$attempt"; echo "$near"' USR1
# --kill-on-bad-exit=0 --wait=0: the agents agree on the end among themselves, and each has its last word.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --mpi=none \
  --cpu-bind=none --input=none --kill-on-bad-exit=0 --wait=0 \
  @python@ @agent@ node @order@ &
srun=$!
while :; do
  wait "$srun"
  code=$?
  [ "$told" = 0 ] && break # else a signal may have ended wait, not srun: what it says the second time is true
  told=0
done
exit "$code"
