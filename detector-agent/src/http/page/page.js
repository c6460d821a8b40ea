// The state of the page, and when it is drawn.

import { CardList } from "./page/card_list.js";
import { anomalyCard, conflictCard, endedEntry, idOf, searchText, severityClass } from "./page/cards.js";
import { follow, isLost, load, request, retryNow } from "./page/connection.js";
import { $, counted, refreshElapsed, showCount } from "./page/dom.js";
import { byGroup, groupCard, isFirst } from "./page/groups.js";
import { drawHealth } from "./page/health.js";

const HEALTH_INTERVAL = 5000;
const REFRESH_INTERVAL = 15000; // "last seen" of evidence changes without an event
const REFRESH_AFTER_EVENT = 1500; // picks up details that follow an event, such as a MAC
const DRAW_AFTER_EVENT = 50; // many conflicts or anomalies raised at once are drawn together
const MAX_ENDED = 50;
const SEVERITIES = ["info", "warning", "critical"];
const KIND_EFFECT = {
  duplicate: "Pods with the same address lose traffic to each other.",
  host: "A pod claims an address of the node, which serves every pod on it.",
  flapping: "A shared address moves between pods too often.",
};

const active = new Map(); // conflict id → conflict
const anomalies = new Map(); // anomaly id → anomaly
let ended = []; // conflicts and anomalies, newest first
let health = null; // latest response of readyz
let appliedEvents = 0;

const cardId = (item) => item.group ?? idOf(item);
const card = (item) => (item.members ? groupCard(item) : item.conflict_id ? conflictCard(item) : anomalyCard(item));
const conflictCards = new CardList($("active"), cardId, card, isFirst);
const anomalyCards = new CardList($("anomalies"), cardId, card);

// ---- what the URL selects: one conflict or anomaly, or what matches the filter ----

const selected = new URLSearchParams(location.search);
const selectedId = selected.get("id");
$("filter").value = selected.get("q") ?? "";
$("selected").hidden = !selectedId;

function keepFilterInUrl() {
  const url = new URL(location.href);
  if ($("filter").value) url.searchParams.set("q", $("filter").value);
  else url.searchParams.delete("q");
  history.replaceState(null, "", url);
}

// ---- drawing ----

let drawTimer = null;
const fresh = new Set(); // ids of conflicts raised since the last draw

function drawSoon() {
  drawTimer ??= setTimeout(draw, DRAW_AFTER_EVENT);
}

// Conflicts, then anomalies, each newest first.
function draw() {
  clearTimeout(drawTimer);
  drawTimer = null;
  const terms = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const isWanted = (item) => (selectedId ? idOf(item) === selectedId : terms.every((term) => searchText(item).includes(term)));
  const matching = (items) => [...items.values()].filter(isWanted);
  const [conflicts, others] = [matching(active), matching(anomalies)];
  // A sweep is the card of the conflicts that it stands for.
  const isSweep = (item) => item.kind === "address_sweep" && conflicts.some((conflict) => conflict.sweep === item.anomaly_id);
  const rest = others.filter((item) => !isSweep(item));
  const lists = [[conflictCards, [...conflicts, ...others.filter(isSweep)], "active-more", "conflicts"], [anomalyCards, rest, "anomalies-more", "anomalies"]];
  for (const [cards, items, more, name] of lists) {
    const grouped = selectedId ? items : byGroup(items);
    grouped.filter((item) => item.members).forEach((item) => cards.mark(item));
    showMore(more, cards.draw(grouped, fresh), name);
  }
  fresh.clear();
  drawHeadline();
  $("anomalies-section").hidden = rest.length === 0;
  $("anomalies-title").textContent = counted(rest.length, "anomaly", "anomalies");
  showCount("conflict-count", active.size, active.size ? "alarm" : "");
  showCount("anomaly-count", anomalies.size, severityClass({ severity: SEVERITIES.findLast((one) => [...anomalies.values()].some((item) => item.severity === one)) }));
  $("filter-box").hidden = active.size + anomalies.size < 4 && !terms.length;
  $("no-match").hidden = !(terms.length || selectedId) || conflicts.length + others.length > 0;
  $("no-match").textContent = selectedId ? "It is not open; see the history below." : "Nothing matches the filter.";
  document.title = `${active.size ? `(${active.size}) ` : ""}IP conflicts · ${$("node").textContent}`;
}

function showMore(id, count, name) {
  $(id).hidden = count === 0;
  $(id).textContent = `${count} more not shown; use the filter, or see api/v1/${name}.`;
}

// "No conflict" must look different from "unable to detect conflicts", and from an anomaly by which pods lose traffic.
function drawHeadline() {
  const count = active.size;
  const impaired = (health?.parts ?? []).filter((part) => part.role === "source" && part.state !== "works");
  const kinds = new Set([...active.values()].map((conflict) => conflict.kind));
  const worst = [...anomalies.values()].sort((a, b) => SEVERITIES.indexOf(b.severity) - SEVERITIES.indexOf(a.severity))[0];
  let title = counted(count, "IP address in conflict", "IP addresses in conflict");
  let note = kinds.size === 1 ? KIND_EFFECT[[...kinds][0]] : KIND_EFFECT.duplicate;
  let severity = "alarm";
  if (count > 0 && [...active.values()].every((conflict) => conflict.sweep) && worst?.kind === "address_sweep") {
    const sweeps = [...anomalies.values()].filter((item) => item.kind === "address_sweep");
    const contested = sweeps.reduce((sum, sweep) => sum + sweep.contested, 0); // as on their cards
    title = `${counted(sweeps.length, "pod claims", "pods claim")} ${counted(contested, "address", "addresses")} of others`;
    note = worst.guidance.effect;
  } else if (count === 0 && health && !health.ready) {
    [title, note, severity] = ["Starting", "Conflicts are not known until the agent has read the kernel state.", "incomplete"];
  } else if (count === 0) {
    [title, note, severity] = ["No IP address conflict", "No address on this node is claimed by two pods.", "ok"];
    if (worst && worst.severity !== "info") {
      title = `No IP address conflict, but ${counted(anomalies.size, "anomaly", "anomalies")}`;
      [note, severity] = [worst.guidance.effect, worst.severity === "critical" ? "alarm" : "incomplete"];
    } else if (impaired.length) {
      [note, severity] = [`Observation is incomplete (${impaired.map((part) => part.name).join(", ")}): see Health.`, "incomplete"];
    }
  }
  $("headline").className = `headline ${severity}`;
  // Setting the same text again would make screen readers repeat it.
  if ($("active-title").textContent !== title) $("active-title").textContent = title;
  $("active-note").textContent = note;
}

function drawEnded() {
  const open = new Set([...document.querySelectorAll("#ended > details[open]")].map((entry) => entry.dataset.id));
  $("ended").replaceChildren(...ended.map((item) => {
    const entry = endedEntry(item);
    entry.open = open.has(idOf(item)) || idOf(item) === selectedId;
    return entry;
  }));
  $("ended-none").hidden = ended.length > 0;
  $("ended-more").hidden = ended.length < MAX_ENDED;
}

// ---- state ----

// Loads everything. Events that arrive meanwhile are newer, and are applied afterwards.
async function loadAll() {
  showConflicts(await load("api/v1/conflicts"));
  replaceAll(anomalies, (await load("api/v1/anomalies")).anomalies, "anomaly_id", anomalyCards);
  draw();
  await loadHistory();
}

async function loadHistory() {
  try {
    ended = (await load(`api/v1/history?limit=${MAX_ENDED}`)).history;
    if (selectedId) ended = await selectEnded();
    $("ended-none").textContent = "Nothing has ended.";
  } catch {
    // The rest of the page works without a disk.
    $("ended-none").textContent = "The history cannot be read; see Health.";
  }
  drawEnded();
}

// The selected one if it ended, which may be older than those that the page lists.
async function selectEnded() {
  const known = ended.filter((item) => idOf(item) === selectedId);
  if (known.length || active.has(selectedId) || anomalies.has(selectedId)) return known;
  const found = await Promise.allSettled(["conflicts", "anomalies"].map((list) => load(`api/v1/${list}/${encodeURIComponent(selectedId)}`)));
  return found.filter((answer) => answer.value).map((answer) => answer.value.conflict ?? answer.value.anomaly);
}

function showConflicts(all) {
  $("node").textContent = all.node;
  replaceAll(active, all.conflicts, "conflict_id", conflictCards);
}

// Marks only what changed, so that nothing else is drawn again.
function replaceAll(known, items, id, cards) {
  const before = new Map(known);
  known.clear();
  for (const item of items) {
    known.set(item[id], item);
    if (JSON.stringify(before.get(item[id])) !== JSON.stringify(item)) cards.mark(item);
  }
}

function apply(event) {
  appliedEvents += 1;
  const item = event.data;
  // What begins again is not over.
  const others = ended.filter((other) => idOf(other) !== idOf(item));
  const isEnded = item.state === "resolved";
  if ((isEnded && (!selectedId || idOf(item) === selectedId)) || others.length < ended.length) {
    ended = isEnded ? [item, ...others].slice(0, MAX_ENDED) : others;
    drawEnded();
  }
  if (event.type.startsWith("io.ipconflict.anomaly.")) {
    anomalyCards.mark(item);
    if (isEnded) anomalies.delete(item.anomaly_id);
    else anomalies.set(item.anomaly_id, item);
  } else if (event.type.startsWith("io.ipconflict.conflict.")) {
    refreshSoon();
    conflictCards.mark(item);
    if (isEnded) {
      active.delete(item.conflict_id);
    } else {
      if (!active.has(item.conflict_id)) fresh.add(item.conflict_id);
      active.set(item.conflict_id, item);
    }
  }
  drawSoon();
}

let refreshTimer = null;

function refreshSoon() {
  clearTimeout(refreshTimer);
  refreshTimer = setTimeout(refresh, REFRESH_AFTER_EVENT);
}

// Skipped while text is selected: redrawing would clear the selection.
async function refresh() {
  if (isLost() || document.hidden || active.size === 0 || !getSelection().isCollapsed) return;
  const before = appliedEvents;
  try {
    const all = await load("api/v1/conflicts");
    // An event that arrived meanwhile may be newer than the response.
    if (before !== appliedEvents) {
      refreshSoon();
      return;
    }
    showConflicts(all);
    draw();
  } catch {
    // The event stream reports the lost connection.
  }
}

async function loadHealth() {
  if (isLost() || document.hidden) return;
  try {
    const response = await request("readyz");
    health = await response.json();
    drawHealth(health);
    drawHeadline();
  } catch {
    // The event stream reports the lost connection.
  }
}

// ---- input and timers ----

$("filter").addEventListener("input", () => {
  keepFilterInUrl();
  draw();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  void loadHealth();
  retryNow();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !$("filter-box").hidden && !(event.target instanceof HTMLInputElement)) {
    event.preventDefault();
    $("filter").focus();
  }
});

setInterval(() => {
  if (!isLost()) refreshElapsed();
}, 1000);
setInterval(loadHealth, HEALTH_INTERVAL);
setInterval(refresh, REFRESH_INTERVAL);

void follow({ loadAll, connected: loadHealth, apply });
