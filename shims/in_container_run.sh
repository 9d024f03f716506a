#!/bin/sh
# Old habit: in_container_run.sh MODEL [-- key=value …] inside the image; NNODES, NODE_RANK and JAX_COORDINATOR_* for several nodes.
exec trackwalker submit --on in-container "$@"
