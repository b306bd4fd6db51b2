export PILOT_WALLTIME_END=$(( $(date +%s) + 3600 ))
export PILOT_JOB=$PPID
export JOBNAME=pilot-0123456789.TIME
exec /opt/venv/bin/python -P -m pilot agent --connection /run/connection.json --interface lo