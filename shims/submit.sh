#!/bin/sh
# Old habit: submit.sh MODEL[[:ALIAS]:TAG] [sbatch words] [-- key=value _env_K=V …], with RAY, JOB_WORKSPACE and the other knobs.
exec trackwalker submit "$@"
