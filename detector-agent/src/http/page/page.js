"use strict";
// Names come from untrusted pods: they are inserted as text, never as markup.

const HEARTBEAT_TIMEOUT = 25000; // the agent sends a heartbeat every 10 s
const MAX_RETRY_DELAY = 10000;
const HEALTH_INTERVAL = 5000;
const REFRESH_INTERVAL = 15000; // "last seen" of evidence changes without an event
const REFRESH_AFTER_EVENT = 1500; // picks up details that follow an event, such as a MAC
const MAX_DRAWN = 200; // conflicts, and anomalies, on the page
const MAX_RESOLVED = 50;
const MAX_PROBLEMS = 3; // lines at the top; the others are counted

const $ = (id) => document.getElementById(id);
const active = new Map(); // conflict id → conflict
const anomalies = new Map(); // anomaly id → anomaly
let resolved = []; // newest first
let health = null; // latest response of readyz
let drawn = new Map(); // conflict id → element
let token = sessionStorage.getItem("token");
let lostAt = null;
let retryDelay = 1000;
let appliedEvents = 0;
let wake = null; // ends the current wait

// ---- small helpers ----

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const fullTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function time(at) {
  const when = new Date(at);
  const sameDay = when.toDateString() === new Date().toDateString();
  const text = sameDay ? clockTime.format(when) : `${when.toLocaleDateString()} ${clockTime.format(when)}`;
  return element("time", { datetime: at, title: fullTime.format(when) }, text);
}

function durationText(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

function elapsed(at) {
  return element("span", { "data-since": at }, durationText(Date.now() - new Date(at)));
}

function latencyText(microseconds) {
  if (microseconds < 1000) return `${microseconds} µs`;
  if (microseconds < 1e6) return `${(microseconds / 1000).toFixed(1)} ms`;
  return `${(microseconds / 1e6).toFixed(1)} s`;
}

// ---- conflicts ----

const KINDS = { duplicate: "duplicate", host: "node address", flapping: "flapping" };
const NEWEST_BY = {
  first_sight: "by when the agent saw the claims begin",
  sandbox: "by when the sandboxes were created",
  pod: "by when the pods were created",
};
const KIND_HELP = {
  duplicate: "Two or more pods claim this address.",
  host: "A pod claims an address of the node.",
  flapping: "A shared address moves between pods too often. It is resolved when fewer moves remain within the window, or when fewer than two of the pods exist.",
};
const CONFIDENCE_HELP = {
  certain: "Two claimants have the address assigned, or a permanent neighbour entry.",
  observed: "The claims were seen in frames or in the neighbour table.",
};
const EVIDENCE = { address: "assigned", arp: "ARP sent", ndp: "NDP sent", neighbour: "neighbour entry", source: "packets sent" };
const LEFT = { device_removed: "device removed", address_removed: "address removed", expired: "claim expired" };

function newestTag(claimant) {
  if (!claimant.newest) return null;
  return element("span", { class: "tag", title: `The newest claimant, ${NEWEST_BY[claimant.newest_by] ?? claimant.newest_by}.` }, "newest");
}

function podName(claimant) {
  if (!claimant.pod) return element("h4", { class: "unknown" }, "Pod unknown", newestTag(claimant));
  return element("h4", {}, element("span", { class: "ns" }, `${claimant.pod.namespace}/`), claimant.pod.name, newestTag(claimant));
}

const DOCS = "https://github.com/ipconflict/ip-conflict-detector/blob/main/docs/";
const RUNBOOKS = {
  duplicate: "runbooks/IPAddressConflict.md#duplicate",
  host: "runbooks/IPAddressConflict.md#host",
  flapping: "runbooks/IPAddressConflict.md#flapping",
  ipam_drift: "runbooks/IPAMDrift.md",
  ipam_leak: "detection-rules.md#ipam-leak",
  gateway_unresolved: "runbooks/PodGatewayUnresolved.md",
  route_astray: "runbooks/PodRouteAstray.md",
  address_sweep: "runbooks/PodAddressSweep.md",
  source: "runbooks/IPConflictDetectorBlind.md",
  sink: "runbooks/IPConflictSinkFailing.md",
};

function runbookLink(kind) {
  if (!RUNBOOKS[kind]) return null;
  const name = RUNBOOKS[kind].startsWith("runbooks/") ? "Runbook" : "Explanation";
  return element("a", { href: DOCS + RUNBOOKS[kind], target: "_blank", rel: "noreferrer" }, name);
}

function nextLine(text, kind) {
  return element("p", { class: "next" }, element("strong", {}, "Next: "), text, " ", runbookLink(kind));
}

function claimantName(claimant) {
  return claimant.pod ? `${claimant.pod.namespace}/${claimant.pod.name}` : claimant.device;
}

function isCertain(claimant) {
  return claimant.evidence.some((one) => one.kind === "address" || (one.kind === "neighbour" && one.detail === "PERMANENT"));
}

function nextStep(conflict) {
  const present = conflict.claimants.filter((claimant) => !claimant.left);
  if (conflict.kind === "host") return "delete the pod first, whatever else is wrong: an address of the node serves every pod on it.";
  if (conflict.kind === "flapping") return "check the election between the holders (keepalived, kube-vip, MetalLB); deleting a pod does not help.";
  if (conflict.confidence === "observed") {
    // The oldest is listed first; if none has the address for certain, it counts as the owner.
    const owner = present.find(isCertain) ?? present[0];
    const names = present.filter((claimant) => claimant !== owner && !isCertain(claimant)).map(claimantName);
    return `only ARP, NDP or the neighbour table shows the claim of ${names.slice(0, 3).join(", ") || "a pod"}: check whether that pod is meant to answer for it (a VIP, a proxy); otherwise delete it.`;
  }
  const newest = present.find((claimant) => claimant.newest);
  const which = newest ? `delete ${claimantName(newest)}, the newest claimant` : "delete the pod that came last (the runbook shows how to find it)";
  return `${which}; its controller creates it again with another address.`;
}

function evidenceTable(claimant) {
  const table = element("table", { class: "evidence" });
  table.append(element("thead", {}, element("tr", {},
    element("th", { scope: "col" }, "Evidence"),
    element("th", { scope: "col" }, "First seen"),
    element("th", { scope: "col" }, "Last seen"))));
  const body = element("tbody");
  for (const evidence of claimant.evidence) {
    const kind = element("td", {}, EVIDENCE[evidence.kind] ?? evidence.kind);
    if (evidence.detail) kind.append(` ${evidence.detail}`);
    if (evidence.mac && evidence.mac !== claimant.mac) kind.append(element("span", { class: "mono" }, evidence.mac));
    body.append(element("tr", {}, kind, element("td", {}, evidence.first_seen ? time(evidence.first_seen) : "unknown"), element("td", {}, time(evidence.last_seen))));
  }
  table.append(body);
  return table;
}

function claimantCard(claimant, conflict) {
  const winner = !claimant.left && conflict.traffic_goes_to === claimant.device;
  let role = "";
  if (claimant.left) role = `Left: ${LEFT[claimant.left] ?? claimant.left}`;
  else if (conflict.state === "resolved") role = "Kept the address";
  else if (winner) role = "▶ Receives the traffic";
  else if (conflict.traffic_goes_to) role = "Does not receive the traffic";
  const facts = element("dl", { class: "facts" });
  const fact = (name, ...value) => facts.append(element("dt", {}, name), element("dd", {}, ...value));
  fact("Device", element("span", { class: "mono" }, claimant.device),
    claimant.master ? element("span", { class: "quiet" }, " on ", element("span", { class: "mono" }, claimant.master)) : null);
  fact("MAC", claimant.mac ? element("span", { class: "mono" }, claimant.mac) : "unknown");
  fact("Claimed since", claimant.since ? time(claimant.since) : `unknown: ${claimant.since_unknown_because ?? "not recorded"}`);
  if (claimant.pod) fact("Looked up via", claimant.pod.via);
  return element("div", { class: `claimant${winner ? " winner" : ""}${claimant.left ? " gone" : ""}` },
    role ? element("p", { class: "role" }, role) : null,
    podName(claimant),
    claimant.pod_unknown_because ? element("details", { class: "because" }, element("summary", {}, "Why?"), claimant.pod_unknown_because) : null,
    facts,
    claimant.evidence.length ? evidenceTable(claimant) : null);
}

function claimantGrid(conflict) {
  return element("div", { class: "claimants" }, ...conflict.claimants.map((claimant) => claimantCard(claimant, conflict)));
}

function vlanTag(conflict) {
  if (conflict.vlan === null || conflict.vlan === undefined) return null;
  return element("span", { class: "tag" }, `VLAN ${conflict.vlan}${conflict.inner_vlan ? `.${conflict.inner_vlan}` : ""}`);
}

function sweepTag(conflict) {
  if (!conflict.sweep) return null;
  return element("a", { class: "tag", href: "#anomalies-section", title: "One pod claims many addresses of others: see the address sweep among the anomalies." }, "part of a sweep");
}

function networkTag(conflict) {
  if (!conflict.network || conflict.network === "node") return null;
  return element("span", { class: "tag", title: "The network in which the address must be unique." }, conflict.network);
}

function conflictCard(conflict) {
  const id = `address-${conflict.conflict_id}`;
  const card = element("article", { class: "conflict", "aria-labelledby": id, "data-conflict": conflict.conflict_id },
    element("header", {},
      element("h3", { id }, conflict.address),
      element("span", { class: "tag alarm", title: KIND_HELP[conflict.kind] }, KINDS[conflict.kind] ?? conflict.kind),
      element("span", { class: "tag", title: CONFIDENCE_HELP[conflict.confidence] }, conflict.confidence),
      sweepTag(conflict),
      networkTag(conflict),
      vlanTag(conflict),
      element("p", { class: "when" }, "for ", elapsed(conflict.raised_at), ", since ", time(conflict.raised_at),
        element("br"), `detected in ${latencyText(conflict.latency_us)}`)),
    claimantGrid(conflict));
  const notes = [];
  if (!conflict.traffic_goes_to) notes.push("No route on this node leads to any claimant.");
  if (conflict.claimants_omitted) notes.push(`${conflict.claimants_omitted} more claimants not listed.`);
  if (notes.length) card.append(element("p", { class: "note" }, notes.join(" ")));
  if (conflict.sweep) card.append(nextLine("decide about the pod of the address sweep, not about each address.", "address_sweep"));
  else card.append(nextLine(nextStep(conflict), conflict.kind));
  return card;
}

function matchesFilter(conflict, terms) {
  if (!terms.length) return true;
  const text = [conflict.address, conflict.network, conflict.kind, ...conflict.claimants.flatMap((claimant) =>
    [claimant.device, claimant.mac, claimant.master, claimant.pod?.namespace, claimant.pod?.name])].join(" ").toLowerCase();
  return terms.every((term) => text.includes(term));
}

// Redraws changed conflicts only, so that focus and text selection elsewhere are kept.
function drawActive(changed, fresh) {
  const terms = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = [...active.values()].reverse().filter((conflict) => matchesFilter(conflict, terms));
  const shown = matching.slice(0, MAX_DRAWN);
  const place = $("active");
  const keep = new Map();
  let after = null;
  for (const conflict of shown) {
    let card = drawn.get(conflict.conflict_id);
    if (!card || changed.has(conflict.conflict_id)) {
      const replacement = conflictCard(conflict);
      if (fresh && fresh.has(conflict.conflict_id)) replacement.classList.add("fresh");
      if (card) card.replaceWith(replacement);
      card = replacement;
    }
    const next = after ? after.nextSibling : place.firstChild;
    if (next !== card) place.insertBefore(card, next);
    keep.set(conflict.conflict_id, card);
    after = card;
  }
  for (const [id, card] of drawn) if (!keep.has(id)) card.remove();
  drawn = keep;
  const count = active.size;
  drawHeadline();
  showCount("conflict-count", count, count ? "alarm" : "");
  $("filter-box").hidden = count < 4 && !terms.length;
  $("active-more").hidden = matching.length <= MAX_DRAWN && !(terms.length && !matching.length);
  $("active-more").textContent = matching.length ? `${matching.length - shown.length} more not shown; use the filter, or see api/v1/conflicts.` : "No conflict matches the filter.";
  document.title = `${count ? `(${count}) ` : ""}IP conflicts · ${$("node").textContent}`;
}

function showCount(id, text, severity = "") {
  $(id).textContent = text;
  $(id).className = `count ${severity}`;
}

// "No conflict" must look different from "unable to detect conflicts".
function drawHeadline() {
  const count = active.size;
  const impaired = (health?.parts ?? []).filter((part) => part.role === "source" && part.state !== "works");
  let title = count === 1 ? "1 IP address in conflict" : `${count} IP addresses in conflict`;
  let note = "Pods with the same address lose traffic to each other.";
  let severity = "alarm";
  if (count === 0 && health && !health.ready) {
    [title, note, severity] = ["Starting", "Conflicts are not known until the agent has read the kernel state.", "incomplete"];
  } else if (count === 0) {
    [title, note, severity] = ["No IP address conflict", "No address on this node is claimed by two pods.", "ok"];
    if (impaired.length) [note, severity] = [`Observation is incomplete (${impaired.map((part) => part.name).join(", ")}): see Health.`, "incomplete"];
  }
  $("headline").className = `headline ${severity}`;
  // Setting the same text again would make screen readers repeat it.
  if ($("active-title").textContent !== title) $("active-title").textContent = title;
  $("active-note").textContent = note;
}

function drawResolved() {
  const open = new Set([...document.querySelectorAll("#resolved > details[open]")].map((card) => card.dataset.conflict));
  $("resolved").replaceChildren(...resolved.map((conflict) => {
    const names = conflict.claimants.map((claimant) => claimant.pod ? `${claimant.pod.namespace}/${claimant.pod.name}` : claimant.device);
    return element("details", { "data-conflict": conflict.conflict_id, open: open.has(conflict.conflict_id) ? "" : null },
      element("summary", {},
        element("span", { class: "address" }, conflict.address),
        element("span", { class: "tag" }, KINDS[conflict.kind] ?? conflict.kind),
        networkTag(conflict),
        vlanTag(conflict),
        element("span", { class: "who" }, names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "")),
        element("span", { class: "when" }, "lasted ", durationText(new Date(conflict.resolved_at) - new Date(conflict.raised_at)), ", until ", time(conflict.resolved_at))),
      claimantGrid(conflict));
  }));
  $("resolved-none").hidden = resolved.length > 0;
  showCount("resolved-count", resolved.length);
}

let refreshAt = null;

// Skipped while text is selected: redrawing would clear the selection.
async function refresh() {
  if (lostAt !== null || document.hidden || active.size === 0 || !getSelection().isCollapsed) return;
  try {
    const before = appliedEvents;
    const response = await request("api/v1/conflicts");
    if (response.ok) show(await response.json(), () => before === appliedEvents);
  } catch {
    // The event stream reports the lost connection.
  }
}

function refreshSoon() {
  clearTimeout(refreshAt);
  refreshAt = setTimeout(refresh, REFRESH_AFTER_EVENT);
}

// ---- anomalies ----

const ANOMALIES = {
  ipam_drift: "not allocated in IPAM",
  ipam_leak: "leaked allocation",
  gateway_unresolved: "gateway does not answer",
  route_astray: "route leads elsewhere",
  address_sweep: "claims addresses of others",
};

const NEXT_STEPS = {
  ipam_drift: (anomaly, pod) => `keep new pods off the node (kubectl cordon ${anomaly.node}), then restore the allocation or recreate ${pod}.`,
  ipam_leak: () => "nothing is broken; release the address in IPAM if the pool runs short.",
  gateway_unresolved: (_, pod) => `delete ${pod}, so that the network plugin sets it up again; if several pods are affected, restart the plugin first.`,
  route_astray: (_, pod) => `delete ${pod}, so that the network plugin creates its route again; if several pods are affected, restart the plugin first.`,
  address_sweep: (_, pod) => `check whether ${pod} is meant to answer for these addresses (a VIP, a proxy); otherwise cut it off or delete it.`,
};

function anomalyNextLine(anomaly) {
  const pod = anomaly.pod ? `${anomaly.pod.namespace}/${anomaly.pod.name}` : "the pod";
  const step = NEXT_STEPS[anomaly.kind];
  return step ? nextLine(step(anomaly, pod), anomaly.kind) : null;
}

function anomalyRow(anomaly) {
  const owner = anomaly.pod ? `${anomaly.pod.namespace}/${anomaly.pod.name}` : anomaly.device;
  return element("li", { "data-anomaly": anomaly.anomaly_id },
    anomaly.kind === "address_sweep" ? null : element("span", { class: "mono" }, anomaly.address), " ",
    element("span", { class: "tag" }, ANOMALIES[anomaly.kind] ?? anomaly.kind), " ",
    owner ? element("span", { class: "who" }, owner) : null,
    element("p", { class: "detail" }, anomaly.detail, ". For ", elapsed(anomaly.raised_at), ", since ", time(anomaly.raised_at), "."),
    anomalyNextLine(anomaly));
}

function drawAnomalies() {
  const all = [...anomalies.values()];
  $("anomalies-title").textContent = all.length === 0 ? "No anomaly" : all.length === 1 ? "1 anomaly" : `${all.length} anomalies`;
  $("anomalies-note").hidden = all.length === 0;
  showCount("anomaly-count", all.length, all.length ? "warn" : "");
  $("anomalies").replaceChildren(...all.slice(0, MAX_DRAWN).map(anomalyRow));
  $("anomalies-more").hidden = all.length <= MAX_DRAWN;
  $("anomalies-more").textContent = `${all.length - MAX_DRAWN} more not shown; see api/v1/anomalies.`;
}

let drawAnomaliesAt = null;

function anomalyChanged(anomaly) {
  if (anomaly.state === "resolved") anomalies.delete(anomaly.anomaly_id);
  else anomalies.set(anomaly.anomaly_id, anomaly);
  // Deleted IPAM state raises hundreds of anomalies at once; draw them together.
  drawAnomaliesAt ??= setTimeout(() => {
    drawAnomaliesAt = null;
    drawAnomalies();
  }, 50);
}

async function loadAnomalies() {
  const response = await request("api/v1/anomalies");
  if (!response.ok) return;
  const all = await response.json();
  anomalies.clear();
  for (const anomaly of all.anomalies) anomalies.set(anomaly.anomaly_id, anomaly);
  drawAnomalies();
}

function apply(event) {
  appliedEvents += 1;
  if (event.type.startsWith("io.ipconflict.anomaly.")) {
    anomalyChanged(event.data);
    return;
  }
  refreshSoon();
  const conflict = event.data;
  if (!event.type.startsWith("io.ipconflict.conflict.")) return;
  if (conflict.state === "resolved") {
    active.delete(conflict.conflict_id);
    resolved = [conflict, ...resolved.filter((other) => other.conflict_id !== conflict.conflict_id)].slice(0, MAX_RESOLVED);
    drawResolved();
    drawActive(new Set());
  } else {
    const fresh = active.has(conflict.conflict_id) ? null : new Set([conflict.conflict_id]);
    active.set(conflict.conflict_id, conflict);
    drawActive(new Set([conflict.conflict_id]), fresh);
  }
}

// ---- health ----

const STATES = { works: "Works", degraded: "Degraded", failed: "Failed", starting: "Starting", off: "Off" };

const PART_LABELS = { cri: "container runtime (CRI)", "cni-cache": "CNI result cache", kube: "Kubernetes API", "name-hash": "device names" };
const ROLES = { source: "Observation: ", names: "Pod lookups: ", ipam: "IPAM source: ", sink: "" };
const PROBLEM_ORDER = ["source", "sink", "ipam", "names"];

function partName(part) {
  return `${ROLES[part.role] ?? ""}${PART_LABELS[part.name] ?? part.name}`;
}

// What does not work comes before everything else on the page.
function drawProblems(report) {
  const problems = (report.parts ?? [])
    .filter((part) => part.state === "failed" || part.state === "degraded")
    .sort((a, b) => PROBLEM_ORDER.indexOf(a.role) - PROBLEM_ORDER.indexOf(b.role));
  const lines = problems.slice(0, MAX_PROBLEMS).map((part) => element("li", {},
    element("span", { class: `state ${part.state}` }, STATES[part.state]),
    element("a", { href: "#health" }, partName(part)),
    `: ${part.detail} `, runbookLink(part.role)));
  if (problems.length > MAX_PROBLEMS) lines.push(element("li", {}, element("a", { href: "#health" }, `and ${problems.length - MAX_PROBLEMS} more`)));
  const text = (nodes) => nodes.map((node) => node.textContent).join("\n");
  // Replacing the same text would make screen readers repeat it.
  if (text(lines) !== text([...$("problems").children])) $("problems").replaceChildren(...lines);
  $("problems").hidden = lines.length === 0;
  const severity = problems.some((part) => part.state === "failed") ? "alarm" : "warn";
  $("problems").className = `problems ${severity}`;
  if (problems.length) showCount("problem-count", problems.length === 1 ? "1 problem" : `${problems.length} problems`, severity);
  else showCount("problem-count", report.ready ? "ok" : "starting", report.ready ? "" : "warn");
}

function drawHealth(report) {
  health = report;
  drawHeadline();
  drawProblems(report);
  const row = (part) => element("li", {},
    element("span", { class: `state ${part.state}` }, element("span", { class: "dot", "aria-hidden": "true" }), STATES[part.state] ?? part.state),
    element("div", {}, element("div", {}, PART_LABELS[part.name] ?? part.name), element("div", { class: "detail" }, part.detail)));
  const parts = report.parts ?? [];
  $("sources").replaceChildren(...parts.filter((part) => part.role === "source").map(row));
  $("names").replaceChildren(...parts.filter((part) => part.role === "names").map(row));
  const ipam = parts.filter((part) => part.role === "ipam").map(row);
  $("ipam").replaceChildren(...(ipam.length ? ipam : [element("li", {}, element("span", { class: "state off" }, "None"))]));
  const sinks = parts.filter((part) => part.role === "sink").map(row);
  $("sinks").replaceChildren(...(sinks.length ? sinks : [element("li", {}, element("span", { class: "state off" }, "None"),
    element("div", { class: "detail" }, "Events are available on this page, in the metrics and through the API. Add sinks with --events or in the configuration file."))]));
  $("version").textContent = report.version ? `· version ${report.version}` : "";
}

async function loadHealth() {
  if (lostAt !== null || document.hidden) return;
  try {
    const response = await request("readyz");
    drawHealth(await response.json());
  } catch {
    // The event stream reports the lost connection.
  }
}

// ---- the connection ----

function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { ...options, headers, cache: "no-store" });
}

function showLink(state, text) {
  $("link").className = `link ${state}`;
  $("link-text").textContent = text;
}

function showDisconnected(reason) {
  lostAt ??= new Date();
  showLink("lost", "Disconnected");
  $("banner").hidden = false;
  $("banner").textContent = `Disconnected since ${clockTime.format(lostAt)} (${reason}). Data may be out of date; reconnecting.`;
  $("main").classList.add("stale");
}

function showConnected() {
  lostAt = null;
  retryDelay = 1000;
  showLink("live", "Live");
  $("banner").hidden = true;
  $("main").classList.remove("stale");
  $("main").hidden = false;
  $("nav").hidden = false;
  $("token-prompt").hidden = true;
}

class Unauthorized extends Error {}

// Loads all conflicts and anomalies; redraws only what changed.
async function loadAll() {
  const response = await request("api/v1/conflicts");
  if (response.status === 401) throw new Unauthorized();
  if (!response.ok) throw new Error(`the agent answered ${response.status}`);
  show(await response.json(), () => true);
  await loadAnomalies();
}

function show(all, isNewest) {
  // An event that arrived meanwhile may be newer than the response.
  if (!isNewest()) {
    refreshSoon();
    return;
  }
  $("node").textContent = all.node;
  const changed = new Set();
  const before = new Map(active);
  active.clear();
  for (const conflict of all.conflicts) {
    const id = conflict.conflict_id;
    active.set(id, conflict);
    if (JSON.stringify(before.get(id)) !== JSON.stringify(conflict)) changed.add(id);
  }
  const ids = (list) => list.map((conflict) => conflict.conflict_id).join();
  const moved = ids(resolved) !== ids(all.resolved);
  resolved = all.resolved;
  drawActive(changed);
  if (moved || !$("resolved-count").textContent) drawResolved();
}

// Reads the event stream until it ends. Uses fetch because EventSource cannot send the token.
async function followEvents() {
  const stop = new AbortController();
  let watchdog = setTimeout(() => stop.abort(), HEARTBEAT_TIMEOUT);
  try {
    const response = await request("api/v1/events", { signal: stop.signal, headers: { Accept: "text/event-stream" } });
    if (response.status === 401) throw new Unauthorized();
    if (response.status === 503) throw new Error("the agent has too many open event streams");
    if (!response.ok) throw new Error(`the agent answered ${response.status}`);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    // Events that arrive during the load are applied after it, so none is lost or overwritten.
    await loadAll();
    showConnected();
    void loadHealth();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the agent closed the connection");
      clearTimeout(watchdog);
      watchdog = setTimeout(() => stop.abort(), HEARTBEAT_TIMEOUT);
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const block = text.slice(0, end);
        text = text.slice(end + 2);
        await handleBlock(block);
      }
    }
  } catch (error) {
    if (stop.signal.aborted) throw new Error("the agent stopped responding");
    throw error;
  } finally {
    clearTimeout(watchdog);
    stop.abort();
  }
}

async function handleBlock(block) {
  let kind = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (kind === "message") apply(JSON.parse(data));
  else if (kind === "reset") await loadAll();
}

function promptForToken() {
  $("main").hidden = true;
  $("nav").hidden = true;
  $("problems").hidden = true;
  $("banner").hidden = true;
  $("token-prompt").hidden = false;
  $("token-error").hidden = !token;
  showLink("connecting", "Token required");
  $("token").focus();
  return new Promise((resolve) => { wake = resolve; });
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("token", token);
  $("token").value = "";
  wake?.();
});

$("filter").addEventListener("input", () => drawActive(new Set()));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) {
    void loadHealth();
    if (lostAt !== null) wake?.();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !$("filter-box").hidden && !(event.target instanceof HTMLInputElement)) {
    event.preventDefault();
    $("filter").focus();
  }
});

setInterval(() => {
  if (lostAt !== null) return;
  for (const cell of document.querySelectorAll("[data-since]")) {
    cell.textContent = durationText(Date.now() - new Date(cell.dataset.since));
  }
}, 1000);
setInterval(loadHealth, HEALTH_INTERVAL);
setInterval(refresh, REFRESH_INTERVAL);

async function run() {
  for (;;) {
    try {
      await followEvents();
    } catch (error) {
      if (error instanceof Unauthorized) {
        await promptForToken();
        continue;
      }
      showDisconnected(error instanceof TypeError ? "the agent cannot be reached" : error.message);
    }
    await new Promise((resolve) => {
      wake = resolve;
      setTimeout(resolve, retryDelay);
    });
    wake = null;
    retryDelay = Math.min(retryDelay * 2, MAX_RETRY_DELAY);
  }
}

void run();
