// A list of cards, newest first. Only changed cards are replaced, so that focus and text selection elsewhere are kept.

const MAX_DRAWN = 200;

export class CardList {
  #place;
  #id;
  #card;
  #isFirst;
  #drawn = new Map(); // id → element
  #changed = new Set();

  // `id` and `card` return the id of an item and its element, `isFirst` whether it comes before all others.
  constructor(place, id, card, isFirst = () => false) {
    this.#isFirst = isFirst;
    this.#place = place;
    this.#id = id;
    this.#card = card;
  }

  // The item differs from what is drawn.
  mark(item) {
    this.#changed.add(this.#id(item));
  }

  // Returns how many items are not drawn.
  draw(items, fresh = new Set()) {
    const newer = (a, b) => (a.raised_at < b.raised_at ? 1 : -1); // RFC 3339 with microseconds, always UTC
    const newestFirst = [...items].sort((a, b) => this.#isFirst(b) - this.#isFirst(a) || (a.raised_at === b.raised_at ? 0 : newer(a, b)));
    const keep = new Map();
    let after = null;
    for (const item of newestFirst.slice(0, MAX_DRAWN)) {
      const id = this.#id(item);
      let card = this.#drawn.get(id);
      if (!card || this.#changed.has(id)) {
        const replacement = this.#card(item);
        if (fresh.has(id)) replacement.classList.add("fresh");
        if (card) replace(card, replacement);
        card = replacement;
      }
      const next = after ? after.nextSibling : this.#place.firstChild;
      if (next !== card) this.#place.insertBefore(card, next);
      keep.set(id, card);
      after = card;
    }
    for (const [id, card] of this.#drawn) if (!keep.has(id)) card.remove();
    this.#drawn = keep;
    this.#changed.clear();
    return Math.max(0, newestFirst.length - MAX_DRAWN);
  }
}

// Details that were open stay open.
function replace(before, after) {
  for (const open of before.querySelectorAll("details[open][data-key]")) {
    after.querySelector(`details[data-key=${CSS.escape(open.dataset.key)}]`)?.setAttribute("open", "");
  }
  before.replaceWith(after);
}
