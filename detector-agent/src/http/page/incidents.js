// Anomalies that have one cause, as one card: after a wipe of IPAM's state, hundreds of pods have the same finding.

import { ANOMALIES, nextLine, period, podName, severityClass } from "./cards.js";
import { element } from "./dom.js";
import { whyLine } from "./why.js";

const MAX_LISTED = 200;

// As `Key` in event/explain.rs.
function incidentKey({ kind, diagnosis }) {
  if (!diagnosis || diagnosis.cause === "unknown" || diagnosis.affected.addresses < 2) return null;
  return [kind, diagnosis.cause, diagnosis.confidence, diagnosis.since ?? JSON.stringify(diagnosis.affected)].join(" ");
}

// The anomalies, with those of one incident as one item with `members`.
export function byIncident(anomalies) {
  const incidents = new Map();
  const items = [];
  for (const anomaly of anomalies) {
    const key = incidentKey(anomaly);
    if (key === null) items.push(anomaly);
    else incidents.set(key, [...(incidents.get(key) ?? []), anomaly]);
  }
  for (const [incident, members] of incidents) {
    if (members.length === 1) items.push(members[0]);
    else items.push({ incident, members, raised_at: members.map((member) => member.raised_at).sort()[0] });
  }
  return items;
}

export function incidentCard({ incident, members, raised_at }) {
  const id = `incident-${members[0].anomaly_id}`;
  const row = (anomaly) => element("li", {}, element("span", { class: "mono" }, anomaly.address), " ", podName(anomaly, "span"));
  const more = members.length - MAX_LISTED;
  return element("article", { class: `card anomaly ${severityClass(members[0])}`, "aria-labelledby": id, "data-incident": incident },
    element("header", {},
      element("h3", { id }, `${members.length} addresses`),
      element("span", { class: `tag ${severityClass(members[0])}` }, ANOMALIES[members[0].kind] ?? members[0].kind),
      period({ raised_at })),
    element("details", { class: "why", "data-key": "members" },
      element("summary", {}, "Addresses and pods"),
      element("ul", {}, ...members.slice(0, MAX_LISTED).map(row)),
      more > 0 ? element("p", {}, `${more} more: see api/v1/anomalies.`) : null),
    whyLine(members[0], `api/v1/anomalies/${members[0].anomaly_id}`),
    nextLine(members[0].guidance));
}
