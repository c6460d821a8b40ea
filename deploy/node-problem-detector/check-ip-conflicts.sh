#!/bin/sh
# For node-problem-detector's custom plugin monitor: one line on stdout, exit code 0 (no conflict), 1 (conflict) or 2 (could
# not tell). node-problem-detector has to run in the node's network (hostNetwork) with CAP_NET_ADMIN, and DETECTOR_AGENT
# names the agent's executable if it is not in PATH.
agent=${DETECTOR_AGENT:-detector-agent}
if ! command -v "$agent" >/dev/null; then
    printf '%s\n' "no detector-agent here: set DETECTOR_AGENT to its path"
    exit 2
fi
answer=$("$agent" check --lookup-timeout 2s 2>&1)
code=$?
# Anything else, such as a signal: nothing is known then.
[ "$code" -le 2 ] || code=2
printf '%s\n' "$answer" | head -n 1 | cut -c 1-80
exit "$code"
