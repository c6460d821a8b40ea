//! What `--help` and the manual pages have beside the options: sections, each a heading with a colon and indented lines.

/// Of the agent itself.
pub(super) const AGENT: &str = "\
Exit status:
  0  it worked; check and explain: there is no conflict
  1  check and explain: there are conflicts
  2  it failed, or the result is inconclusive

Files:
  /run/ip-conflict-detector  lock and socket of the agent in each network namespace (--run-dir)

See also:
  detector-agent-run(1), detector-agent-check(1), detector-agent-explain(1), detector-agent-watch(1), detector-agent-cleanup(1)";

pub(super) const RUN: &str = "\
Exit status:
  0  ended by SIGTERM or SIGINT
  2  it cannot run: a privilege, a file or a setting, which the message names

Examples:
  Report conflicts as JSON lines, and serve the status page at http://127.0.0.1:9842/:
    detector-agent run --events -
  Keep open conflicts and the history over restarts:
    detector-agent run --config /etc/ip-conflict-detector/config.yaml --state-dir /var/lib/ip-conflict-detector

Files:
  /run/ip-conflict-detector  lock and socket of the agent in each network namespace (--run-dir)
  state.redb, history.redb   open conflicts and undelivered events, and what ended, in --state-dir

See also:
  detector-agent-check(1), detector-agent-watch(1)";

pub(super) const CHECK: &str = "\
Exit status:
  0  there is no conflict; the first line states whether an anomaly costs traffic
  1  there are conflicts; with --strict also: there are anomalies
  2  no conflict is known, but not everything could be read, or there is no pod device

Examples:
  What is wrong on this node:
    detector-agent check
  One address:
    detector-agent check 10.244.2.12
  A line for each conflict and anomaly:
    detector-agent check -o wide
  The addresses in conflict, for a script:
    detector-agent check -o json | jq -r '.conflicts[].address'
  What ended:
    detector-agent check --history

Files:
  /run/ip-conflict-detector  socket of the agent that is asked (--run-dir)

See also:
  detector-agent-explain(1), detector-agent-watch(1)";

pub(super) const EXPLAIN: &str = "\
Exit status:
  0  there is no conflict
  1  there are conflicts
  2  no conflict is known, but not everything could be read

Examples:
  Why the address is in conflict, on what evidence, and what to repair:
    detector-agent explain 10.244.2.12

Files:
  /run/ip-conflict-detector  socket of the agent that is asked (--run-dir)

See also:
  detector-agent-check(1)";

pub(super) const WATCH: &str = "\
Exit status:
  0  ended by the user
  2  no agent answers

Examples:
  The agent of this node:
    detector-agent watch
  Another one, a line for each event:
    detector-agent watch --lines --url https://10.0.0.7:9842 --ca-file ca.pem --token-file token

Files:
  /run/ip-conflict-detector  socket of the agent that is asked (--run-dir)

See also:
  detector-agent-check(1)";

pub(super) const CLEANUP: &str = "\
Exit status:
  0  no filter of an earlier agent is left
  2  an agent runs in this network namespace, or a filter cannot be removed

Examples:
  After an agent was killed and will not be started again:
    detector-agent cleanup

Files:
  /run/ip-conflict-detector  lock of the agent in each network namespace (--run-dir)

See also:
  detector-agent-run(1)";
