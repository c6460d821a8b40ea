// A conflict or an anomaly as an element.

import { durationText, elapsed, element, latencyText, runbookLink, time } from "./dom.js";
import { causeTag, whyLine } from "./why.js";

const MAX_CARDS = 3; // more claimants are one table

export const KINDS = { duplicate: "duplicate", host: "node address", flapping: "flapping" };
const KIND_HELP = {
  duplicate: "Two or more pods claim this address.",
  host: "A pod claims an address of the node.",
  flapping: "A shared address moves between pods too often. It is resolved when fewer moves remain within the window, or when fewer than two of the pods exist.",
};
const CONFIDENCE_HELP = {
  certain: "Two claimants have the address assigned, or a permanent neighbour entry.",
  observed: "The claims were seen in frames or in the neighbour table.",
};
const NEWEST_BY = {
  first_sight: "its claim began last",
  sandbox: "its sandbox was created last",
  pod: "it was created last",
};
const EVIDENCE = { address: "assigned", arp: "ARP sent", ndp: "NDP sent", neighbour: "neighbour entry", source: "packets sent" };
const LEFT = { device_removed: "device removed", address_removed: "address removed", expired: "claim expired" };
export const ANOMALIES = {
  ipam_drift: "does not match IPAM",
  ipam_leak: "leaked allocation",
  gateway_unresolved: "gateway requested again and again",
  route_astray: "route leads elsewhere",
  address_sweep: "claims addresses of others",
  pod_cidr_overlap: "is a range of several nodes",
  rogue_router: "sends router advertisements",
  mac_duplicate: "shares its MAC address",
  mac_moved: "MAC address is on another port",
  address_unusable: "failed duplicate address detection",
};

// The colour of a severity.
export function severityClass({ severity }) {
  return { critical: "alarm", warning: "warn" }[severity] ?? "";
}

// What a search in the list may match.
export function searchText(item) {
  const claimants = item.claimants ?? [item];
  const parts = claimants.flatMap((one) => [one.node, one.device, one.mac, one.master, one.pod?.namespace, one.pod?.name]);
  return [item.address, item.network, item.kind, ANOMALIES[item.kind], ...(item.addresses ?? []), ...parts].join(" ").toLowerCase();
}

export function conflictCard(conflict) {
  const id = `address-${conflict.conflict_id}`;
  const notes = [];
  if (conflict.scope === "fleet") notes.push("The claimants are on several nodes.");
  else if (!conflict.traffic_goes_to) notes.push("The node sends its traffic to none of the claimants: no route or no neighbour entry leads to one.");
  if (conflict.claimants_omitted) notes.push(`${conflict.claimants_omitted} more claimants not listed.`);
  return element("article", { class: "card conflict", "aria-labelledby": id, "data-conflict": conflict.conflict_id },
    element("header", {},
      element("h3", { id }, permalink(conflict, conflict.address)),
      element("span", { class: "tag alarm", title: KIND_HELP[conflict.kind] }, KINDS[conflict.kind] ?? conflict.kind),
      element("span", { class: "tag", title: CONFIDENCE_HELP[conflict.confidence] }, conflict.confidence),
      sweepTag(conflict),
      networkTag(conflict),
      vlanTag(conflict),
      period(conflict, element("br"), `detected in ${latencyText(conflict.latency_us)}`)),
    claimants(conflict),
    notes.length ? element("p", { class: "note" }, notes.join(" ")) : null,
    whyLine(conflict, `api/v1/conflicts/${conflict.conflict_id}`),
    nextLine(conflict.guidance));
}

export function anomalyCard(anomaly) {
  const id = `address-${anomaly.anomaly_id}`;
  const subject = anomaly.kind === "address_sweep" ? "Address sweep" : (anomaly.range ?? anomaly.address);
  const pod = anomaly.pod || anomaly.device ? podName(anomaly, "span") : null;
  return element("article", { class: `card anomaly ${severityClass(anomaly)}`, "aria-labelledby": id, "data-anomaly": anomaly.anomaly_id },
    element("header", {},
      element("h3", { id }, permalink(anomaly, subject)),
      element("span", { class: `tag ${severityClass(anomaly)}` }, ANOMALIES[anomaly.kind] ?? anomaly.kind),
      pod,
      period(anomaly)),
    element("p", { class: "detail" }, `${anomaly.detail}. ${anomaly.guidance?.effect ?? ""}`),
    whyLine(anomaly, `api/v1/anomalies/${anomaly.anomaly_id}`),
    nextLine(anomaly.guidance));
}

// The id of a conflict or an anomaly.
export function idOf(item) {
  return item.conflict_id ?? item.anomaly_id;
}

// What ended: a line with cause and duration, which opens to the rest.
export function endedEntry(item) {
  const isConflict = item.conflict_id !== undefined;
  const holders = item.claimants ?? (item.device ? [item] : []);
  const names = holders.map(holderName);
  const more = names.length > 3 ? ` and ${names.length - 3} more` : "";
  return element("details", { "data-id": idOf(item) },
    element("summary", {},
      element("span", { class: "address" }, item.range ?? item.address),
      element("span", { class: "tag" }, KINDS[item.kind] ?? ANOMALIES[item.kind] ?? item.kind),
      isConflict ? networkTag(item) : null,
      vlanTag(item),
      element("span", { class: "who" }, names.slice(0, 3).join(", ") + more),
      item.diagnosis ? causeTag(item.diagnosis) : null,
      element("span", { class: "when" }, "lasted ", durationText(new Date(item.resolved_at) - new Date(item.raised_at)), ", until ", time(item.resolved_at))),
    element("p", { class: "detail" }, permalink(item, "Link to this one"), isConflict ? null : `: ${item.detail}.`),
    isConflict ? claimants(item) : null,
    whyLine(item, `api/v1/${isConflict ? "conflicts" : "anomalies"}/${idOf(item)}`));
}

// A link to the page that shows this one only.
export function permalink(item, text) {
  return element("a", { class: "permalink", href: `?id=${idOf(item)}`, title: "Link to this one" }, text);
}

// A claimant, or the pod of an anomaly, in a line of text.
export function holderName(holder) {
  if (holder.pod) return `${holder.pod.namespace}/${holder.pod.name}`;
  return holder.is_node ? `the node (${holder.node}, ${holder.device})` : holder.device;
}

export function period(item, ...more) {
  return element("p", { class: "when" }, "for ", elapsed(item.raised_at), ", since ", time(item.raised_at), ...more);
}

export function nextLine(guidance, beginning = "") {
  if (!guidance) return null;
  return element("p", { class: "next" }, element("strong", {}, "Next: "), beginning, guidance.next_step, " ", runbookLink(guidance.runbook_url));
}

function vlanTag(conflict) {
  if (conflict.vlan === null || conflict.vlan === undefined) return null;
  return element("span", { class: "tag" }, `VLAN ${conflict.vlan}${conflict.inner_vlan ? `.${conflict.inner_vlan}` : ""}`);
}

function sweepTag(conflict) {
  if (!conflict.sweep) return null;
  return element("a", { class: "tag", href: `?id=${conflict.sweep}`, title: "One pod claims many addresses of others: see the address sweep." }, "part of a sweep");
}

function networkTag(conflict) {
  if (!conflict.network || conflict.network === "node") return null;
  return element("span", { class: "tag", title: "The network in which the address must be unique." }, conflict.network);
}

// ---- claimants ----

function claimants(conflict) {
  if (conflict.claimants.length > MAX_CARDS) return claimantTable(conflict);
  return element("div", { class: "claimants" }, ...conflict.claimants.map((claimant) => claimantCard(claimant, conflict)));
}

function isReceiver(claimant, conflict) {
  return !claimant.left && conflict.traffic_goes_to === claimant.device;
}

function role(claimant, conflict) {
  if (claimant.left) return `Left: ${LEFT[claimant.left] ?? claimant.left}`;
  if (conflict.state === "resolved") return "Kept the address";
  if (isReceiver(claimant, conflict)) return "▶ Receives the traffic";
  return conflict.traffic_goes_to ? "Does not receive the traffic" : "";
}

function classes(base, claimant, conflict) {
  return `${base}${isReceiver(claimant, conflict) ? " winner" : ""}${claimant.left ? " gone" : ""}`;
}

function claimantCard(claimant, conflict) {
  const text = role(claimant, conflict);
  const facts = element("dl", { class: "facts" });
  const fact = (name, ...value) => facts.append(element("dt", {}, name), element("dd", {}, ...value));
  fact("Device", ...device(claimant, conflict));
  fact("MAC", mac(claimant));
  fact("Claimed since", since(claimant));
  if (claimant.pod) fact("Looked up via", claimant.pod.via);
  return element("div", { class: classes("claimant", claimant, conflict) },
    text ? element("p", { class: "role" }, text) : null,
    podName(claimant, "h4", conflict),
    because(claimant),
    facts,
    claimant.evidence.length ? evidenceTable(claimant) : null);
}

function claimantTable(conflict) {
  const row = (claimant) => {
    const receives = isReceiver(claimant, conflict);
    const cell = (label, ...content) => element("td", { "data-label": label }, ...content);
    return element("tr", { class: classes("claimant", claimant, conflict) },
      cell("Pod", podName(claimant, "span", conflict), because(claimant),
        receives || claimant.left ? element("p", { class: "role" }, role(claimant, conflict)) : null),
      cell("Device", ...device(claimant, conflict)),
      cell("MAC", mac(claimant)),
      cell("Since", since(claimant)),
      cell("Evidence", evidenceSummary(claimant)));
  };
  const heading = (text) => element("th", { scope: "col" }, text);
  return element("table", { class: "many" },
    element("thead", {}, element("tr", {}, heading("Pod"), heading("Device"), heading("MAC"), heading("Claimed since"), heading("Evidence"))),
    element("tbody", {}, ...conflict.claimants.map(row)));
}

function device(claimant, conflict) {
  const on = conflict.scope === "fleet" ? claimant.node : claimant.master;
  const master = on ? element("span", { class: "quiet" }, " on ", element("span", { class: "mono" }, on)) : null;
  return [element("span", { class: "mono" }, claimant.device), master];
}

function mac(claimant) {
  return claimant.mac ? element("span", { class: "mono" }, claimant.mac) : "unknown";
}

function since(claimant) {
  return claimant.since ? time(claimant.since) : `unknown: ${claimant.since_unknown_because ?? "not recorded"}`;
}

function because(claimant) {
  if (!claimant.pod_unknown_because || claimant.is_node) return null;
  return element("details", { class: "because", "data-key": `because-${claimant.ifindex}` }, element("summary", {}, "Why?"), claimant.pod_unknown_because);
}

// What distinguishes a claimant from the others: that it is rightful, or else that it is the newest.
function mark(claimant, conflict) {
  if (!conflict || claimant.left) return null;
  const tag = (title, text) => element("span", { class: "tag", title }, text);
  const present = conflict.claimants.filter((one) => !one.left).map((one) => one.rightful);
  if (present.includes(false) && present.includes(true)) {
    return claimant.rightful ? tag("A record of the container runtime, the network plugin or IPAM gives the address to this pod.", "rightful") : null;
  }
  if (present.includes(false) && present.includes(undefined)) {
    return claimant.rightful === false ? tag("No record of the container runtime, the network plugin or IPAM gives the address to this pod.", "not rightful") : null;
  }
  return claimant.newest ? tag(`The newest claimant, ${NEWEST_BY[claimant.newest_by] ?? claimant.newest_by}.`, "newest") : null;
}

export function podName(subject, tag, conflict) {
  const note = mark(subject, conflict);
  if (subject.pod) return element(tag, { class: "pod" }, element("span", { class: "ns" }, `${subject.pod.namespace}/`), subject.pod.name, note);
  if (subject.is_node) return element(tag, { class: "pod" }, holderName(subject), note);
  // An anomaly shows no device elsewhere.
  const name = subject.anomaly_id ? subject.device : "Pod unknown";
  return element(tag, { class: "pod unknown" }, name, note);
}

function evidenceName(evidence) {
  const name = EVIDENCE[evidence.kind] ?? evidence.kind;
  return evidence.detail ? `${name} ${evidence.detail}` : name;
}

function evidenceSummary(claimant) {
  if (!claimant.evidence.length) return "none";
  const names = new Set(claimant.evidence.map(evidenceName));
  return element("details", { "data-key": `evidence-${claimant.ifindex}` }, element("summary", {}, [...names].join(", ")), evidenceTable(claimant));
}

function evidenceTable(claimant) {
  const heading = (text) => element("th", { scope: "col" }, text);
  const row = (evidence) => element("tr", {},
    element("td", {}, evidenceName(evidence),
      evidence.mac && evidence.mac !== claimant.mac ? element("span", { class: "mono" }, evidence.mac) : null),
    element("td", {}, evidence.first_seen ? time(evidence.first_seen) : "unknown"),
    element("td", {}, time(evidence.last_seen)));
  return element("table", { class: "evidence" },
    element("thead", {}, element("tr", {}, heading("Evidence"), heading("First seen"), heading("Last seen"))),
    element("tbody", {}, ...claimant.evidence.map(row)));
}
