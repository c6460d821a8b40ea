// Elements, and numbers as text. Names come from untrusted pods: they are inserted as text, never as markup.

export const $ = (id) => document.getElementById(id);

// Characters that change the direction of text or take no room: with them one name looks like another. As `clean` in event/clean.rs.
const HIDDEN = /(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Mn}\p{Me}\p{Default_Ignorable_Code_Point}]/gu;

export function clean(text) {
  return typeof text === "string" ? text.replace(HIDDEN, "\u{fffd}") : text;
}

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, clean(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map(clean));
  return node;
}

const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const fullTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

export function clockText(when) {
  return clockTime.format(when);
}

export function time(at) {
  const when = new Date(at);
  const sameDay = when.toDateString() === new Date().toDateString();
  const text = sameDay ? clockText(when) : `${when.toLocaleDateString()} ${clockText(when)}`;
  return element("time", { datetime: at, title: fullTime.format(when) }, text);
}

export function durationText(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

// The time since `at`; `refreshElapsed` keeps it current.
export function elapsed(at) {
  return element("span", { "data-since": at }, durationText(Date.now() - new Date(at)));
}

export function refreshElapsed() {
  for (const cell of document.querySelectorAll("[data-since]")) {
    cell.textContent = durationText(Date.now() - new Date(cell.dataset.since));
  }
}

export function latencyText(microseconds) {
  if (microseconds < 1000) return `${microseconds} µs`;
  if (microseconds < 1e6) return `${(microseconds / 1000).toFixed(1)} ms`;
  return `${(microseconds / 1e6).toFixed(1)} s`;
}

export function counted(count, one, many) {
  return `${count} ${count === 1 ? one : many}`;
}

export function showCount(id, text, severity = "") {
  $(id).textContent = text;
  $(id).className = `count ${severity}`;
}

export function runbookLink(url) {
  if (!url) return null;
  const name = url.includes("/runbooks/") ? "Runbook" : "Explanation";
  return element("a", { href: url, target: "_blank", rel: "noreferrer" }, name);
}
