// What a person reads as one, as one card: an address sweep with its victims, findings of one cause, those of the same claimants, and
// many that have nothing in common but their kind.

import { ANOMALIES, KINDS, holderName, idOf, nextLine, period, permalink, podName, severityClass } from "./cards.js";
import { counted, element } from "./dom.js";
import { whyLine } from "./why.js";

const MAX_LISTED = 200;
const FIRST_FEW = 8;
const MAX_UNRELATED = 20; // more cards of one kind are one card

const isSweep = (item) => item.kind === "address_sweep";
const byAddress = (a, b) => a.address.localeCompare(b.address, "en", { numeric: true });
const devicesOf = (item) => item.claimants.filter((one) => !one.left).map((one) => one.device).sort();

// As `Key` in event/group.rs.
function keyOf(item) {
  const sweep = item.sweep ?? (isSweep(item) ? item.anomaly_id : null);
  if (sweep) return `sweep ${sweep}`;
  const { kind, diagnosis } = item;
  const devices = item.claimants ? devicesOf(item) : [item.device];
  const pods = [item.claimants ? item.network : "", ...devices].join(" ");
  if (!diagnosis || diagnosis.cause === "unknown") return ["unexplained", kind, diagnosis?.cause, pods].join(" ");
  const { cause, confidence, since, affected } = diagnosis;
  return [cause, confidence, affected.addresses < 2 ? pods : since ?? JSON.stringify(affected)].join(" ");
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) {
    const group = key(item);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(item);
  }
  return [...groups];
}

function asItem([group, members]) {
  if (members.length === 1) return members[0];
  return { group, members: [...members].sort((a, b) => isSweep(b) - isSweep(a) || byAddress(a, b)), raised_at: members.map((member) => member.raised_at).sort()[0] };
}

// The items, those of one group as one item with `members`, a sweep as their first.
export function byGroup(items) {
  const grouped = groupBy(items, keyOf).map(asItem);
  const single = grouped.filter((item) => !item.members);
  const unrelated = groupBy(single, (item) => `unrelated ${item.kind}`).filter(([, members]) => members.length > MAX_UNRELATED);
  const folded = new Set(unrelated.flatMap(([, members]) => members));
  return [...grouped.filter((item) => !folded.has(item)), ...unrelated.map(asItem)];
}

// Whether a card comes before all others.
export function isFirst({ members = [] }) {
  return members.some(isSweep);
}

export function groupCard({ group, members, raised_at }) {
  const [first] = members;
  const id = `group-${idOf(first)}`;
  const listed = members.filter((member) => !isSweep(member));
  const title = isSweep(first) ? "Address sweep" : counted(listed.length, "address", "addresses");
  const more = listed.length - MAX_LISTED;
  const path = `api/v1/${first.conflict_id ? "conflicts" : "anomalies"}`;
  const isOne = isSweep(first) || !group.startsWith("unrelated ");
  const isOfFirst = first.claimants && !first.sweep && members.some((member) => devicesOf(member).join() !== devicesOf(first).join());
  return element("article", { class: `card ${first.conflict_id ? "conflict" : "anomaly"} ${severityClass(first)}`, "aria-labelledby": id, "data-group": group },
    element("header", {},
      element("h3", { id }, isSweep(first) ? permalink(first, title) : title),
      element("span", { class: `tag ${severityClass(first)}` }, KINDS[first.kind] ?? ANOMALIES[first.kind] ?? first.kind),
      isSweep(first) ? podName(first, "span") : null,
      period({ raised_at })),
    isSweep(first) ? element("p", { class: "detail" }, `${first.detail}. ${first.guidance?.effect ?? ""}`) : null,
    element("details", { class: "why", "data-key": "members" },
      element("summary", {}, `${isSweep(first) ? counted(listed.length, "victim", "victims") : "Addresses and pods"}: ${firstFew(listed)}`),
      element("ul", {}, ...listed.slice(0, MAX_LISTED).map(row)),
      more > 0 ? element("p", {}, `${more} more: see ${path}.`) : null),
    isOne ? whyLine(first, `${path}/${idOf(first)}`) : null,
    isOne ? nextLine(first.guidance, isOfFirst ? "Begin with the first one: " : "") : null);
}

function firstFew(items) {
  const addresses = items.slice(0, FIRST_FEW).map((item) => item.range ?? item.address);
  const more = items.length - addresses.length;
  return addresses.join(", ") + (more > 0 ? ` and ${more} more` : "");
}

// An address with its claimants, of which ▶ marks the receiver of the traffic, or with the pod.
function row(item) {
  const name = (claimant) => (item.traffic_goes_to === claimant.device ? `▶ ${holderName(claimant)}` : holderName(claimant));
  const holders = item.claimants ? item.claimants.filter((one) => !one.left).map(name) : [item.device ? holderName(item) : item.range ?? ""];
  return element("li", {}, permalink(item, item.range ?? item.address), " ", holders.join(", "));
}
