#!/bin/bash
# One pilot on @site: joins the pool whose connection file is named below. Submit it with: sbatch pilot.sh
# Variables such as SBATCH_PARTITION beat the lines below; without them: (unset ${!SBATCH_*}; sbatch pilot.sh)
# @notice
#SBATCH --job-name=pilot
#SBATCH --nodes=@nodes
#SBATCH --ntasks-per-node=1
#SBATCH --time=@walltime
@directives

# What the agent must know of the job, and what a shell on the node needs.
@preamble

# "exec": the script becomes the step's launcher, so a signal to the script reaches the agent too.
@step
