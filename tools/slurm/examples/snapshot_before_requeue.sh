#!/bin/bash
# A job of one program that saves its device memory before its time is over, and has itself requeued:
#   sbatch --stillmap --requeue --signal=B:USR1@60 --open-mode=append snapshot_before_requeue.sh python train.py
# SLURM_RESTART_COUNT tells the program that it runs again. What it does with the image, it decides: restoring writes
# the memory of a program that has it at the same addresses (stillmap task restore).
image=job-$SLURM_JOB_ID.smi

save_and_requeue() {
  stillmap task snapshot "job:$SLURM_JOB_ID" --all --output "$image" --replace &&
    scontrol requeue "$SLURM_JOB_ID" # which ends it
}
trap save_and_requeue USR1

"$@" &
program=$!
# `wait` returns when the trap has run, too.
while kill -0 "$program" 2>/dev/null; do wait "$program"; done
wait "$program"
