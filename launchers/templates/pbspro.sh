#!/bin/bash
# One pilot on @site: joins the pool whose connection file is named below. Submit it with: qsub pilot.sh
# @notice
#PBS -N pilot
#PBS -S @shell
#PBS -l walltime=@walltime
#PBS -l select=@select
@directives

# What the agent must know of the job, and what a shell on the node needs.
@preamble

# "exec": the script becomes the step's launcher, so a signal to the script reaches the agent too.
@step
