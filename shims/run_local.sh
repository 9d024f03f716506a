#!/bin/sh
# Old habit: run_local.sh MODEL [-- key=value …] on this machine; without words a shell in the container.
[ "$#" -gt 0 ] || exec trackwalker shell
exec trackwalker run "$@"
