#!/bin/bash
# For node-problem-detector's custom plugin monitor: prints one line and exits with 0 (no conflict), 1 (conflict) or 2
# (unknown). It asks the agent on this node, and needs nothing but bash: node-problem-detector's image has no HTTP client.
# node-problem-detector has to run in the node's network (hostNetwork).
#
# The argument `drift` asks for IPAM drift instead: a pod's address that IPAM considers free.
#
# IPCONFLICT_URL               where the agent listens, http://HOST:PORT; default http://127.0.0.1:9842
# IPCONFLICT_TOKEN_FILE        file with the token that the agent requires
# IPCONFLICT_ALLOW_NO_DEVICES  true: a node without any pod device is not unknown
# IPCONFLICT_UNKNOWN_IS_OK     true: exit with 0 instead of 2, for conditions that keep pods off the node
# DETECTOR_AGENT               executable of the agent whose `check` is run instead; that one asks at the agent's socket in
#                              /run/ip-conflict-detector, and looks at the kernel itself if no agent answers, for which it
#                              needs CAP_NET_ADMIN
set -u
# Lengths are bytes.
LC_ALL=C

finish() {
    printf '%s\n' "${2:0:80}"
    if (($1 == 2)) && [[ ${IPCONFLICT_UNKNOWN_IS_OK:-} == true ]]; then exit 0; fi
    exit "$1"
}

# More than one: `$1 $2s`.
counted() {
    if (($1 == 1)); then printf '%s %s' "$1" "$2"; else printf '%s %ss' "$1" "$2"; fi
}

case ${1:-conflict} in
conflict)
    active='ipconflict_conflicts_active\{'
    info='ipconflict_conflict_info\{'
    finding='IP address conflict'
    ;;
drift)
    active='ipconflict_anomalies_active\{kind="ipam_drift"'
    info='ipconflict_anomaly_info\{.*kind="ipam_drift".*'
    finding='IPAM drift'
    ;;
*) finish 2 "unknown argument $1; supported: drift" ;;
esac

if [[ ${DETECTOR_AGENT:-} ]]; then
    command -v "$DETECTOR_AGENT" >/dev/null || finish 2 "DETECTOR_AGENT: no executable at $DETECTOR_AGENT"
    if [[ ${1:-} == drift ]]; then
        answer=$("$DETECTOR_AGENT" check --format json --lookup-timeout 2s 2>/dev/null)
        code=$?
        entry='"kind": "ipam_drift"'
        without=${answer//"$entry"/}
        count=$(((${#answer} - ${#without}) / ${#entry}))
        ((count == 0)) || finish 1 "$(counted "$count" "$finding")"
        # Conflicts are not asked for.
        ((code <= 1)) || finish 2 "no IPAM drift known, but not everything could be read"
        [[ $answer != *'"ipam": []'* && $answer != *'no supported IPAM found'* ]] || finish 2 "no IPAM state is read"
        finish 0 "no IPAM drift"
    fi
    answer=$("$DETECTOR_AGENT" check --lookup-timeout 2s 2>&1)
    # Any code but 0 and 1, such as that of a signal, means unknown.
    finish "$?" "${answer%%$'\n'*}"
fi

url=${IPCONFLICT_URL:-http://127.0.0.1:9842}
[[ $url =~ ^http://(\[([^]]+)\]|([^]/:[]+)):([0-9]+)/?$ ]] ||
    finish 2 "IPCONFLICT_URL has to be http://HOST:PORT; for https set DETECTOR_AGENT"
host=${BASH_REMATCH[2]}${BASH_REMATCH[3]}
port=${BASH_REMATCH[4]}
authorization=
if [[ ${IPCONFLICT_TOKEN_FILE:-} ]]; then
    read -r token 2>/dev/null <"$IPCONFLICT_TOKEN_FILE" || [[ ${token:-} ]] ||
        finish 2 "cannot read the token in $IPCONFLICT_TOKEN_FILE"
    authorization="Authorization: Bearer $token"$'\r\n'
fi

# Requests the path $1; sets `status` and `body`.
get() {
    local line
    status='' body=''
    { exec 3<>"/dev/tcp/$host/$port"; } 2>/dev/null || finish 2 "no agent answers at $url"
    printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n%s\r\n' "$1" "$authorization" >&3
    IFS=' ' read -r -t 5 line status line <&3
    while IFS= read -r -t 5 line <&3 && [[ $line != $'\r' ]]; do :; done
    # Fails at the end of the body, which is what it reads to.
    IFS= read -r -d '' -t 5 body <&3
    exec 3>&-
}

get /metrics
case $status in
200) ;;
401) finish 2 "the agent requires a token: set IPCONFLICT_TOKEN_FILE" ;;
*) finish 2 "the agent at $url does not answer" ;;
esac
count=0
addresses=
while IFS= read -r line; do
    if [[ $line =~ ^$active.*\}\ ([0-9]+) ]]; then
        ((count += BASH_REMATCH[1]))
    elif [[ $line =~ ^$info && $line =~ [{,]address=\"([^\"]*)\" ]]; then
        address=${BASH_REMATCH[1]}
        # One line for each claimant.
        [[ ", $addresses," == *", $address,"* ]] || addresses+="${addresses:+, }$address"
    fi
done <<<"$body"
if ((count > 0)); then
    finish 1 "$(counted "$count" "$finding")${addresses:+: $addresses}"
fi

get /readyz
[[ $status == 200 ]] || finish 2 "the agent is not ready yet"
if [[ ${1:-} == drift ]]; then
    if [[ $body =~ \"role\":\"ipam\",\"state\":\"(starting|degraded|failed)\" ]]; then
        finish 2 "no IPAM drift known, but IPAM's state cannot be read"
    fi
    [[ $body == *'"role":"ipam","state":"works"'* && $body != *'no supported IPAM found'* ]] || finish 2 "no IPAM state is read"
    finish 0 "no IPAM drift"
fi
if [[ $body =~ \"role\":\"source\",\"state\":\"(starting|degraded|failed)\" ]]; then
    finish 2 "no conflict known, but the agent does not see everything"
fi
[[ $body =~ \"devices\":([0-9]+) ]] || finish 2 "the agent does not know its pod devices yet"
devices=${BASH_REMATCH[1]}
if ((devices == 0)) && [[ ${IPCONFLICT_ALLOW_NO_DEVICES:-} != true ]]; then
    finish 2 "there is no pod device"
fi
finish 0 "no IP address conflict on $(counted "$devices" 'pod device')"
