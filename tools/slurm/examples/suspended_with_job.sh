#!/bin/bash
# A job whose device memory leaves the device while Slurm suspends it (scontrol suspend, PreemptMode=SUSPEND), and comes
# back when it goes on:
#   sbatch suspended_with_job.sh python train.py
#SBATCH --ntasks=2
#SBATCH --stillmap
#SBATCH --stillmap-limit=60GiB
srun "$@"
