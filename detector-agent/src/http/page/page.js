"use strict";
// Everything shown comes from pods, which nobody has to trust: it is put in as text, never as markup.

const BEAT_WITHIN = 25000; // the agent beats every 10 s
const RETRY_AT_MOST = 10000;
const HEALTH_EVERY = 5000;
const REFRESH_EVERY = 15000; // evidence is seen again without an event
const REFRESH_AFTER_EVENT = 1500; // what was not known yet when it was raised, such as a MAC
const SHOWN = 200; // conflicts drawn at once
const HISTORY = 50;

const $ = (id) => document.getElementById(id);
const active = new Map(); // conflict id → conflict
const anomalies = new Map(); // anomaly id → anomaly
let resolved = []; // newest first
let health = null; // the last answer of readyz
let drawn = new Map(); // conflict id → its element
let token = sessionStorage.getItem("token");
let lostAt = null;
let retryIn = 1000;
let events = 0; // applied so far
let wake = null; // ends the pause before the next try

// ---- small helpers ----

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const fullTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function time(at) {
  const when = new Date(at);
  const sameDay = when.toDateString() === new Date().toDateString();
  const text = sameDay ? clockTime.format(when) : `${when.toLocaleDateString()} ${clockTime.format(when)}`;
  return element("time", { datetime: at, title: fullTime.format(when) }, text);
}

function span(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

function since(at) {
  return element("span", { "data-since": at }, span(Date.now() - new Date(at)));
}

function latency(microseconds) {
  if (microseconds < 1000) return `${microseconds} µs`;
  if (microseconds < 1e6) return `${(microseconds / 1000).toFixed(1)} ms`;
  return `${(microseconds / 1e6).toFixed(1)} s`;
}

// ---- conflicts ----

const KINDS = { duplicate: "duplicate", host: "address of the node", flapping: "flapping" };
const KIND_HELP = {
  duplicate: "Two or more pods claim this address.",
  host: "A pod claims an address of the node itself.",
  flapping: "A shared address moves too often between pods.",
};
const CONFIDENCE_HELP = {
  certain: "Two claimants hold the address, or have a permanent neighbour entry.",
  observed: "The claims were seen on the wire or in the neighbour table.",
};
const EVIDENCE = { address: "assigned", arp: "ARP sent", ndp: "NDP sent", neighbour: "neighbour entry", source: "packets sent" };
const LEFT = { device_removed: "device removed", address_removed: "address removed", expired: "claim expired" };

function podName(claimant) {
  if (!claimant.pod) return element("h4", { class: "unknown" }, "Pod unknown");
  const name = element("h4", {});
  name.append(element("span", { class: "ns" }, `${claimant.pod.namespace}/`), claimant.pod.name);
  return name;
}

function evidenceTable(claimant) {
  const table = element("table", { class: "evidence" });
  table.append(element("thead", {}, element("tr", {},
    element("th", { scope: "col" }, "Evidence"),
    element("th", { scope: "col" }, "First seen"),
    element("th", { scope: "col" }, "Last seen"))));
  const body = element("tbody");
  for (const one of claimant.evidence) {
    const what = element("td", {}, EVIDENCE[one.kind] ?? one.kind);
    if (one.detail) what.append(` ${one.detail}`);
    if (one.mac && one.mac !== claimant.mac) what.append(element("span", { class: "mono" }, one.mac));
    body.append(element("tr", {}, what, element("td", {}, time(one.first_seen)), element("td", {}, time(one.last_seen))));
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
  fact("Claims it since", time(claimant.since));
  if (claimant.pod) fact("Known by", claimant.pod.via);
  return element("div", { class: `claimant${winner ? " winner" : ""}${claimant.left ? " gone" : ""}` },
    role ? element("p", { class: "role" }, role) : null,
    podName(claimant),
    claimant.pod_unknown_because ? element("details", { class: "because" }, element("summary", {}, "Why?"), claimant.pod_unknown_because) : null,
    facts,
    claimant.evidence.length ? evidenceTable(claimant) : null);
}

function claimantGrid(conflict) {
  return element("div", { class: "claimants" }, ...conflict.claimants.map((one) => claimantCard(one, conflict)));
}

function vlanTag(conflict) {
  if (conflict.vlan === null || conflict.vlan === undefined) return null;
  return element("span", { class: "tag" }, `VLAN ${conflict.vlan}${conflict.inner_vlan ? `.${conflict.inner_vlan}` : ""}`);
}

function conflictCard(conflict) {
  const id = `address-${conflict.conflict_id}`;
  const card = element("article", { class: "conflict", "aria-labelledby": id, "data-conflict": conflict.conflict_id },
    element("header", {},
      element("h3", { id }, conflict.address),
      element("span", { class: "tag alarm", title: KIND_HELP[conflict.kind] }, KINDS[conflict.kind] ?? conflict.kind),
      element("span", { class: "tag", title: CONFIDENCE_HELP[conflict.confidence] }, conflict.confidence),
      vlanTag(conflict),
      element("p", { class: "when" }, "for ", since(conflict.raised_at), ", since ", time(conflict.raised_at),
        element("br"), `detected in ${latency(conflict.latency_us)}`)),
    claimantGrid(conflict));
  const notes = [];
  if (!conflict.traffic_goes_to) notes.push("No route of this node leads to any of them.");
  if (conflict.claimants_omitted) notes.push(`${conflict.claimants_omitted} more claimants are not listed.`);
  if (notes.length) card.append(element("p", { class: "note" }, notes.join(" ")));
  return card;
}

function matches(conflict, words) {
  if (!words.length) return true;
  const text = [conflict.address, conflict.kind, ...conflict.claimants.flatMap((one) =>
    [one.device, one.mac, one.master, one.pod?.namespace, one.pod?.name])].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

// Draws what changed; elements of other conflicts stay as they are, and so do focus and selection.
function drawActive(changed, fresh) {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = [...active.values()].reverse().filter((one) => matches(one, words));
  const shown = wanted.slice(0, SHOWN);
  const place = $("active");
  const keep = new Map();
  let after = null;
  for (const conflict of shown) {
    let card = drawn.get(conflict.conflict_id);
    if (!card || changed.has(conflict.conflict_id)) {
      const made = conflictCard(conflict);
      if (fresh && fresh.has(conflict.conflict_id)) made.classList.add("fresh");
      if (card) card.replaceWith(made);
      card = made;
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
  $("filter-box").hidden = count < 4 && !words.length;
  $("active-more").hidden = wanted.length <= SHOWN && !(words.length && !wanted.length);
  $("active-more").textContent = wanted.length ? `${wanted.length - shown.length} more are not drawn; filter, or see api/v1/conflicts.` : "None of them matches the filter.";
  document.title = `${count ? `(${count}) ` : ""}IP conflicts · ${$("node").textContent}`;
}

// No conflict and not able to see one must not look the same.
function drawHeadline() {
  const count = active.size;
  const blind = (health?.parts ?? []).filter((part) => part.role === "source" && part.state !== "works");
  let title = count === 1 ? "1 IP address in conflict" : `${count} IP addresses in conflict`;
  let note = "Pods that share an address lose traffic to each other.";
  let look = "alarm";
  if (count === 0 && health && !health.ready) {
    [title, note, look] = ["Starting", "The agent has not looked at everything yet: it cannot tell.", "unsure"];
  } else if (count === 0) {
    [title, note, look] = ["No IP address conflict", "No address on this node is claimed by two pods.", "calm"];
    if (blind.length) [note, look] = [`Not everything is observed (${blind.map((part) => part.name).join(", ")}): see Health below.`, "unsure"];
  }
  $("headline").className = `headline ${look}`;
  // Written only where it differs: a screen reader says it again otherwise.
  if ($("active-title").textContent !== title) $("active-title").textContent = title;
  $("active-note").textContent = note;
}

function drawResolved() {
  const open = new Set([...document.querySelectorAll("#resolved > details[open]")].map((one) => one.dataset.conflict));
  $("resolved").replaceChildren(...resolved.map((conflict) => {
    const names = conflict.claimants.map((one) => one.pod ? `${one.pod.namespace}/${one.pod.name}` : one.device);
    return element("details", { "data-conflict": conflict.conflict_id, open: open.has(conflict.conflict_id) ? "" : null },
      element("summary", {},
        element("span", { class: "address" }, conflict.address),
        element("span", { class: "tag" }, KINDS[conflict.kind] ?? conflict.kind),
        vlanTag(conflict),
        element("span", { class: "who" }, names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "")),
        element("span", { class: "when" }, "lasted ", span(new Date(conflict.resolved_at) - new Date(conflict.raised_at)), ", until ", time(conflict.resolved_at))),
      claimantGrid(conflict));
  }));
  $("resolved-none").hidden = resolved.length > 0;
}

let refreshAt = null;

// Not while a person marks text: what is drawn anew loses the selection.
async function refresh() {
  if (lostAt !== null || document.hidden || active.size === 0 || !getSelection().isCollapsed) return;
  try {
    const seen = events;
    const answer = await ask("api/v1/conflicts");
    if (answer.ok) show(await answer.json(), () => seen === events);
  } catch {
    // The stream tells that the connection is lost.
  }
}

function refreshSoon() {
  clearTimeout(refreshAt);
  refreshAt = setTimeout(refresh, REFRESH_AFTER_EVENT);
}

// ---- anomalies ----

const ANOMALIES = {
  ipam_drift: "free in IPAM's books",
  ipam_leak: "held for nobody",
  gateway_unresolved: "gateway does not answer",
  route_astray: "route leads elsewhere",
};

function anomalyRow(one) {
  const who = one.pod ? `${one.pod.namespace}/${one.pod.name}` : one.device;
  return element("li", { "data-anomaly": one.anomaly_id },
    element("span", { class: "mono" }, one.address), " ",
    element("span", { class: "tag" }, ANOMALIES[one.kind] ?? one.kind), " ",
    who ? element("span", { class: "who" }, who) : null,
    element("p", { class: "detail" }, one.detail, ". For ", since(one.raised_at), ", since ", time(one.raised_at), "."));
}

function drawAnomalies() {
  const all = [...anomalies.values()];
  $("anomalies-section").hidden = all.length === 0;
  $("anomalies-title").textContent = all.length === 1 ? "1 anomaly" : `${all.length} anomalies`;
  $("anomalies").replaceChildren(...all.slice(0, SHOWN).map(anomalyRow));
  $("anomalies-more").hidden = all.length <= SHOWN;
  $("anomalies-more").textContent = `${all.length - SHOWN} more are not drawn; see api/v1/anomalies.`;
}

let drawAnomaliesAt = null;

function anomalyChanged(one) {
  if (one.state === "resolved") anomalies.delete(one.anomaly_id);
  else anomalies.set(one.anomaly_id, one);
  // A wipe raises hundreds at once: they are drawn together.
  drawAnomaliesAt ??= setTimeout(() => {
    drawAnomaliesAt = null;
    drawAnomalies();
  }, 50);
}

async function loadAnomalies() {
  const answer = await ask("api/v1/anomalies");
  if (!answer.ok) return;
  const all = await answer.json();
  anomalies.clear();
  for (const one of all.anomalies) anomalies.set(one.anomaly_id, one);
  drawAnomalies();
}

function apply(event) {
  events += 1;
  if (event.type.startsWith("io.ipconflict.anomaly.")) {
    anomalyChanged(event.data);
    return;
  }
  refreshSoon();
  const conflict = event.data;
  if (!event.type.startsWith("io.ipconflict.conflict.")) return;
  if (conflict.state === "resolved") {
    active.delete(conflict.conflict_id);
    resolved = [conflict, ...resolved.filter((one) => one.conflict_id !== conflict.conflict_id)].slice(0, HISTORY);
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

function drawHealth(report) {
  health = report;
  drawHeadline();
  const labels = { cri: "container runtime (CRI)", "cni-cache": "CNI result cache", kube: "Kubernetes API", "name-hash": "device names" };
  const row = (part) => element("li", {},
    element("span", { class: `state ${part.state}` }, element("span", { class: "dot", "aria-hidden": "true" }), STATES[part.state] ?? part.state),
    element("div", {}, element("div", {}, labels[part.name] ?? part.name), element("div", { class: "detail" }, part.detail)));
  const parts = report.parts ?? [];
  $("sources").replaceChildren(...parts.filter((part) => part.role === "source").map(row));
  $("names").replaceChildren(...parts.filter((part) => part.role === "names").map(row));
  const ipam = parts.filter((part) => part.role === "ipam").map(row);
  $("ipam").replaceChildren(...(ipam.length ? ipam : [element("li", {}, element("span", { class: "state off" }, "None"))]));
  const sinks = parts.filter((part) => part.role === "sink").map(row);
  $("sinks").replaceChildren(...(sinks.length ? sinks : [element("li", {}, element("span", { class: "state off" }, "None"),
    element("div", { class: "detail" }, "Only this page, the metrics and the API; --events and sinks in the configuration add more."))]));
  $("version").textContent = report.version ? `· version ${report.version}` : "";
}

async function lookAtHealth() {
  if (lostAt !== null || document.hidden) return;
  try {
    const answer = await ask("readyz");
    drawHealth(await answer.json());
  } catch {
    // The stream tells that the connection is lost.
  }
}

// ---- the connection ----

function ask(path, more = {}) {
  const headers = { ...more.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { ...more, headers, cache: "no-store" });
}

function showLink(state, text) {
  $("link").className = `link ${state}`;
  $("link-text").textContent = text;
}

function lost(why) {
  lostAt ??= new Date();
  showLink("lost", "Disconnected");
  $("banner").hidden = false;
  $("banner").textContent = `Disconnected since ${clockTime.format(lostAt)} (${why}). What is shown may be out of date; trying again.`;
  $("main").classList.add("stale");
}

function found() {
  lostAt = null;
  retryIn = 1000;
  showLink("live", "Live");
  $("banner").hidden = true;
  $("main").classList.remove("stale");
  $("main").hidden = false;
  $("ask-token").hidden = true;
}

class TokenWanted extends Error {}

// All conflicts as they are now; only what differs is drawn anew.
async function loadAll() {
  const answer = await ask("api/v1/conflicts");
  if (answer.status === 401) throw new TokenWanted();
  if (!answer.ok) throw new Error(`the agent answered ${answer.status}`);
  show(await answer.json(), () => true);
  await loadAnomalies();
}

function show(all, isNewest) {
  // An event that came meanwhile may be newer than the answer.
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
  const ids = (list) => list.map((one) => one.conflict_id).join();
  const moved = ids(resolved) !== ids(all.resolved);
  resolved = all.resolved;
  drawActive(changed);
  if (moved) drawResolved();
}

// Reads the stream until it ends; server-sent events over fetch, because EventSource sends no token.
async function follow() {
  const stop = new AbortController();
  let watchdog = setTimeout(() => stop.abort(), BEAT_WITHIN);
  try {
    const answer = await ask("api/v1/events", { signal: stop.signal, headers: { Accept: "text/event-stream" } });
    if (answer.status === 401) throw new TokenWanted();
    if (answer.status === 503) throw new Error("too many pages are open");
    if (!answer.ok) throw new Error(`the agent answered ${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    // What happens while everything is loaded waits, so that nothing is missed and nothing is undone.
    await loadAll();
    found();
    void lookAtHealth();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the agent closed the connection");
      clearTimeout(watchdog);
      watchdog = setTimeout(() => stop.abort(), BEAT_WITHIN);
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const block = text.slice(0, end);
        text = text.slice(end + 2);
        await handle(block);
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

async function handle(block) {
  let kind = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (kind === "message") apply(JSON.parse(data));
  else if (kind === "reset") await loadAll();
}

function wantToken() {
  $("main").hidden = true;
  $("banner").hidden = true;
  $("ask-token").hidden = false;
  $("token-wrong").hidden = !token;
  showLink("connecting", "Token wanted");
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
    void lookAtHealth();
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
  for (const one of document.querySelectorAll("[data-since]")) {
    one.textContent = span(Date.now() - new Date(one.dataset.since));
  }
}, 1000);
setInterval(lookAtHealth, HEALTH_EVERY);
setInterval(refresh, REFRESH_EVERY);

async function run() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      if (error instanceof TokenWanted) {
        await wantToken();
        continue;
      }
      lost(error instanceof TypeError ? "the agent cannot be reached" : error.message);
    }
    await new Promise((resolve) => {
      wake = resolve;
      setTimeout(resolve, retryIn);
    });
    wake = null;
    retryIn = Math.min(retryIn * 2, RETRY_AT_MOST);
  }
}

void run();
