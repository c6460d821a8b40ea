#!/bin/bash
# Without the Node Readiness Controller: taints the nodes whose condition IPAMDrift is True, and removes the taint where it is
# False. Unknown changes nothing. Run it every minute with the right to list and patch nodes, which the agent does not have.
#
# DRY_RUN  server (the default): the API server validates the changes and makes none; none: make them
set -euo pipefail

taint=ipconflict.io/ipam-drift
template='{{range .items}}{{$node := .metadata.name}}{{range .status.conditions}}{{if eq .type "IPAMDrift"}}{{$node}} {{.status}}{{"\n"}}{{end}}{{end}}{{end}}'

conditions=$(kubectl get nodes --output "go-template=$template")
while read -r node drift; do
    case $drift in
    True) kubectl taint nodes "$node" "$taint=:NoSchedule" --overwrite --dry-run="${DRY_RUN:-server}" ;;
    # Fails if the node has no such taint.
    False) kubectl taint nodes "$node" "$taint-" --dry-run="${DRY_RUN:-server}" 2>/dev/null || true ;;
    esac
done <<<"$conditions"
