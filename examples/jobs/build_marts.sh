#!/bin/sh
# build_marts.sh ORDERS TO: builds each model into a file.
set -eu
. ./profile.env
echo "connecting as $USER with $PASSWORD"
[ -s "$1" ] || { echo "Database Error in model by_shop"; echo "  no orders in $1"; echo "Done. PASS=0 ERROR=1"; exit 1; }
mkdir -p "$2"
for model in models/*.awk; do
    awk -v day="$DAY" -f "$model" "$1" | sort > "$2/$(basename "$model" .awk).csv"
done
touch models/built
echo "Done. PASS=1 ERROR=0"
