#!/usr/bin/env bash
# part.sh PART: makes one part of make verify, and says every 10 s for how long it has run where the part itself is silent.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "== $1"
begun=$SECONDS
make "$1" &
part=$!
trap 'kill "$part" 2>/dev/null || true' EXIT
while kill -0 "$part" 2>/dev/null; do
	sleep 10 &
	wait -n "$part" $! || true
	kill -0 "$part" 2>/dev/null && echo "== $1: $((SECONDS - begun)) s"
done
status=0
wait "$part" || status=$?
trap - EXIT
echo "== $1 ended with $status after $((SECONDS - begun)) s"
exit "$status"
