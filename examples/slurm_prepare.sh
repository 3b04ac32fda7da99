#!/bin/bash
# Prepares text on a Slurm cluster, and waits for it: examples/slurm_prepare.sh OUTPUT TOKENIZER INPUT...
#
# Run it on a host that submits jobs. OUTPUT and the inputs lie in folders that all nodes share. The variables PARTITION,
# TIME, CPUS and SETUP describe the jobs. If anything dies, or Ctrl-C ends this script, run it again: it continues.
set -euo pipefail

output=$1
tokenizer=$2
shift 2

jobs="slurm,time=${TIME:-4:00:00},cpus_per_job=${CPUS:-1}"
jobs+="${PARTITION:+,partition=$PARTITION}"
jobs+="${SETUP:+,setup=$SETUP}" # as 'source /shared/env.sh'

# Plans the run, and submits an array of jobs that do the tasks, and a job behind it that completes the output.
headrace prepare text "$@" --tokenizer "$tokenizer" --output "$output" --append-eod --executor "$jobs"

# This script is not needed any more: the jobs complete the output. It only shows how far they are.
while [ ! -e "$output/headrace.json" ]; do
    headrace job status "$output" || true # the output may be complete by now
    if [ -z "$(squeue --noheader --name=headrace-task,headrace-finish --user="$(id -un)")" ]; then
        sleep 5 # a shared folder may show files late
        [ -e "$output/headrace.json" ] && break
        echo "no job is left, and the output is not complete: see the logs in $output/.headrace/slurm" >&2
        exit 1
    fi
    sleep 5
done
headrace check "$output"
