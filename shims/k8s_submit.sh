#!/bin/sh
# Old habit: k8s_submit.sh MODEL [-N NODES] [-n NAMESPACE] [-- key=value …], with the K8S_* knobs.
exec trackwalker submit --on k8s "$@"
