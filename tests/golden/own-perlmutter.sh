#!/bin/bash
# One pilot on perlmutter: joins the pool whose connection file is named below. Submit it with: sbatch pilot.sh
# Variables such as SBATCH_PARTITION beat the lines below; without them: (unset ${!SBATCH_*}; sbatch pilot.sh)
# When preempted, the agent leaves within the grace period of 300 s.
#SBATCH --job-name=pilot
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=48:00:00
#SBATCH --qos=preempt
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@300
#SBATCH --constraint=gpu
#SBATCH --gpus-per-node=4

# What the agent must know of the job, and what a shell on the node needs.
# srun takes options from variables, and the shell that submitted this may have left some here.
for name in ${!SLURM_*} ${!SRUN_*}; do
  case $name in
    SLURM_CONF|SLURM_CLUSTER*|SLURM_WORKING_CLUSTER|SLURM_JWT|SLURM_SACK_*) ;;  # the cluster
    SLURM_JOB*|SLURM_HET_*|SLURM_ARRAY_*|SLURM_NODELIST|SLURM_NNODES|SLURM_RESTART_COUNT|SLURM_SUBMIT_*) ;;  # the job
    SLURM_CPUS_ON_NODE|SLURM_GPUS_ON_NODE|SLURM_TASKS_PER_NODE|SLURM_TOPOLOGY_*) ;;  # its nodes
    *) unset "$name" ;;
  esac
done
export PILOT_WALLTIME_END=$(( $(date +%s) + 172800 ))

# "exec": the script becomes the step's launcher, so a signal to the script reaches the agent too.
exec srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --export=ALL --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none --kill-on-bad-exit=0 --wait=0 python -P -m pilot agent --connection /shared/run/connection.json --interface hsn0
