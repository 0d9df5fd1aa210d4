#!/bin/sh
# The same with kcat: sh missed.sh BOOTSTRAP_SERVERS [TOPIC_PREFIX] [kcat options, such as -e].
servers=$1 prefix=${2:-retrofill.}
shift $(($# > 2 ? 2 : $#))
exec kcat -b "$servers" -C -t "${prefix}deadline-missed" -X isolation.level=read_committed -o beginning -q -u -f '%k %s\n' "$@"
