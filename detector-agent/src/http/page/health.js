// The state of the agent's parts.

import { $, counted, element, runbookLink, showCount } from "./dom.js";

const MAX_PROBLEMS = 3; // lines at the top; the others are counted
const STATES = { works: "Works", degraded: "Degraded", failed: "Failed", starting: "Starting", off: "Off" };
const PART_LABELS = { cri: "container runtime (CRI)", "cni-cache": "CNI result cache", kube: "Kubernetes API", "name-hash": "device names", fleet: "Registry of addresses" };
const ROLES = { source: "Observation: ", names: "Pod lookups: ", ipam: "IPAM source: ", fleet: "", sink: "" };
const PROBLEM_ORDER = ["source", "sink", "fleet", "ipam", "names"];

export function drawHealth(report) {
  drawProblems(report);
  const parts = report.parts ?? [];
  const rows = (role) => parts.filter((part) => part.role === role).map((part) => row(part));
  const without = (state, ...more) => [element("li", {}, element("span", { class: "state off" }, state), ...more)];
  $("sources").replaceChildren(...rows("source"));
  $("names").replaceChildren(...rows("names"));
  const ipam = rows("ipam");
  $("ipam").replaceChildren(...(ipam.length ? ipam : without("None")));
  const fleet = rows("fleet");
  $("fleet").replaceChildren(...(fleet.length ? fleet : without(STATES.off,
    element("div", { class: "detail" }, "An address that two nodes have is not found. Turn it on with --fleet kubernetes."))));
  const sinks = rows("sink");
  $("sinks").replaceChildren(...(sinks.length ? sinks : without("None",
    element("div", { class: "detail" }, "Events are available on this page, in the metrics and through the API. Add sinks with --events or in the configuration file."))));
  $("docs").hidden = !report.runbooks;
  if (report.runbooks) $("docs").href = report.runbooks;
  $("version").textContent = report.version ? `· version ${report.version}` : "";
}

function row(part) {
  return element("li", {},
    element("span", { class: `state ${part.state}` }, element("span", { class: "dot", "aria-hidden": "true" }), STATES[part.state] ?? part.state),
    element("div", {}, element("div", {}, PART_LABELS[part.name] ?? part.name), element("div", { class: "detail" }, part.detail)));
}

// What does not work comes before everything else on the page.
function drawProblems(report) {
  const problems = (report.parts ?? [])
    .filter((part) => part.state === "failed" || part.state === "degraded")
    .sort((a, b) => PROBLEM_ORDER.indexOf(a.role) - PROBLEM_ORDER.indexOf(b.role));
  const lines = problems.slice(0, MAX_PROBLEMS).map((part) => element("li", {},
    element("span", { class: `state ${part.state}` }, STATES[part.state]),
    element("a", { href: "#health" }, `${ROLES[part.role] ?? ""}${PART_LABELS[part.name] ?? part.name}`),
    `: ${part.detail} `, runbookLink(part.runbook_url)));
  if (problems.length > MAX_PROBLEMS) lines.push(element("li", {}, element("a", { href: "#health" }, `and ${problems.length - MAX_PROBLEMS} more`)));
  const text = (nodes) => nodes.map((node) => node.textContent).join("\n");
  // Replacing the same text would make screen readers repeat it.
  if (text(lines) !== text([...$("problems").children])) $("problems").replaceChildren(...lines);
  $("problems").hidden = lines.length === 0;
  const severity = problems.some((part) => part.state === "failed") ? "alarm" : "warn";
  $("problems").className = `problems ${severity}`;
  if (problems.length) showCount("problem-count", counted(problems.length, "problem", "problems"), severity);
  else showCount("problem-count", report.ready ? "ok" : "starting", report.ready ? "" : "warn");
}
