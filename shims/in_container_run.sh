#!/bin/sh
# Old habit: in_container_run.sh MODEL [-- key=value …] inside the image; JOB_ID, NNODES and NODE_RANK for several nodes.
exec trackwalker run --in-container "$@"
