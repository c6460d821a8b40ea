#!/bin/sh
# For node-problem-detector's custom plugin monitor: prints one line and exits with 0 (no conflict), 1 (conflict) or 2
# (unknown). node-problem-detector has to run in the node's network (hostNetwork) with CAP_NET_ADMIN. Set DETECTOR_AGENT
# to the agent's executable if it is not in PATH. A node without any pod device is unknown, unless
# IPCONFLICT_ALLOW_NO_DEVICES=true is set.
agent=${DETECTOR_AGENT:-detector-agent}
if ! command -v "$agent" >/dev/null; then
    printf '%s\n' "no detector-agent here: set DETECTOR_AGENT to its path"
    exit 2
fi
answer=$("$agent" check --lookup-timeout 2s 2>&1)
code=$?
# Any other code, such as that of a signal, means unknown.
[ "$code" -le 2 ] || code=2
printf '%s\n' "$answer" | head -n 1 | cut -c 1-80
exit "$code"
