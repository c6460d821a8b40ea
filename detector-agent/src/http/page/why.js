// Why a conflict or an anomaly is there: the diagnosis as a line, which opens to its evidence, timeline and repair.

import { load } from "./connection.js";
import { element, time } from "./dom.js";

const CONFIDENCE_HELP = {
  proven: "The facts leave no other cause.",
  likely: "The facts fit this cause, but some that would prove it are missing.",
};

// `path` is that of the item in the API, which alone has the timeline.
export function whyLine(item, path) {
  const diagnosis = item.diagnosis;
  if (!diagnosis) return null;
  const timeline = element("div", {});
  const why = element("details", { class: "why", "data-key": "why" },
    element("summary", {}, element("strong", {}, "Why: "), diagnosis.summary, " ", causeTag(diagnosis)),
    diagnosis.since ? element("p", {}, "Since ", time(diagnosis.since), ".") : null,
    diagnosis.affected.addresses > 1 ? element("p", {}, `Affects ${diagnosis.affected.addresses} addresses of ${diagnosis.affected.pods} pods.`) : null,
    section("Evidence", diagnosis.evidence.map((evidence) => happened(evidence.at, evidence.fact, evidence.source))),
    timeline,
    element("p", {}, element("strong", {}, "Repair: "), diagnosis.repair),
    diagnosis.ruled_out.length ? element("p", {}, element("strong", {}, "Ruled out: "), diagnosis.ruled_out.map(causeText).join(", ")) : null,
    section("Not checked", byReason(diagnosis.not_checked).map(([because, facts]) => element("li", {}, `${facts.join(", ")}: ${because}`))));
  why.addEventListener("toggle", () => {
    if (why.open) showTimeline(timeline, path);
  });
  return why;
}

async function showTimeline(place, path) {
  try {
    const answer = await load(path);
    const entries = (answer.conflict ?? answer.anomaly).timeline ?? [];
    const list = section("Timeline", entries.map((entry) => happened(entry.at, entry.what, entry.source)));
    place.replaceChildren(...(list ? [list] : []));
  } catch {
    // It ended meanwhile, or the connection is lost, which the page shows.
  }
}

function causeText(cause) {
  return cause.replaceAll("_", " ");
}

export function causeTag(diagnosis) {
  if (diagnosis.cause === "unknown") return element("span", { class: "tag" }, "cause unknown");
  return element("span", { class: "tag", title: CONFIDENCE_HELP[diagnosis.confidence] }, `${causeText(diagnosis.cause)}, ${diagnosis.confidence}`);
}

function happened(at, what, source) {
  return element("li", {}, at ? time(at) : null, at ? " " : null, what, " ", element("span", { class: "quiet" }, `(${source})`));
}

function section(title, items) {
  if (!items.length) return null;
  return element("div", {}, element("strong", {}, title), element("ul", {}, ...items));
}

// Most facts that were not checked have their reason in common.
function byReason(notChecked) {
  const reasons = new Map();
  for (const { what, because } of notChecked) reasons.set(because, [...(reasons.get(because) ?? []), what]);
  return [...reasons];
}
