// What the charts of a job share: one span of time, colours of the theme, numbers in words, and uPlot dressed for them.
"use strict";

export const LEFT = 150, RIGHT = 14;  // the timeline and the heat map stand exactly below each other
const LEAST_S = 5;  // no closer than this

// The span of time that every chart shows. `whole` grows as charts learn how far their data reach.
export const span = {
  whole: null, from: null, to: null, watchers: [],
  watch(tell) { this.watchers.push(tell); },
  known() { return this.whole !== null; },
  zoomed() { return this.whole !== null && (this.from > this.whole[0] || this.to < this.whole[1]); },
  learn(from, to) {
    if (!(to > from)) return;
    const all = !this.zoomed();
    const before = this.whole;
    this.whole = before ? [Math.min(before[0], from), Math.max(before[1], to)] : [from, to];
    if (all && (!before || before[0] !== this.whole[0] || before[1] !== this.whole[1])) this.set(...this.whole);
  },
  set(from, to) {
    if (!this.whole) return;
    const [low, high] = this.whole;
    const wide = Math.min(Math.max(to - from, LEAST_S), high - low);
    const begin = Math.min(Math.max(from, low), high - wide);
    if (begin === this.from && begin + wide === this.to) return;
    this.from = begin; this.to = begin + wide;
    this.watchers.forEach((tell) => tell());
  },
  zoom(by, at = 0.5) {
    if (!this.whole) return;
    const wide = this.to - this.from, middle = this.from + at * wide;
    this.set(middle - at * wide * by, middle + (1 - at) * wide * by);
  },
  move(share) { if (this.whole) { const by = share * (this.to - this.from); this.set(this.from + by, this.to + by); } },
  all() { if (this.whole) this.set(...this.whole); },
  act(what) {
    ({ in: () => this.zoom(0.5), out: () => this.zoom(2), left: () => this.move(-0.3), right: () => this.move(0.3), reset: () => this.all() })[what]?.();
  },
  query() { return this.zoomed() ? `&from=${this.from.toFixed(1)}&to=${this.to.toFixed(1)}` : ""; },
};

// Keys on a chart: plus and minus zoom, arrows move, 0 shows everything.
export const ZOOM_KEYS = { "+": "in", "=": "in", "-": "out", "_": "out", ArrowLeft: "left", ArrowRight: "right", "0": "reset" };
export function zoomByKeys(element) {
  element.addEventListener("keydown", (event) => {
    const what = ZOOM_KEYS[event.key];
    if (!what || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    span.act(what);
  });
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Okabe-Ito, the accused's vermillion first; blue is the measured line's own.
export const LINES = ["--bad", "--ask", "--warn", "--good", "--accent", "--soft"];

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toPrecision(3);
  for (const [unit, of] of [["T", 1e12], ["G", 1e9], ["M", 1e6]]) if (size >= of) return `${(value / of).toPrecision(4)} ${unit}`;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : size >= 10 ? value.toFixed(1) : String(Number(value.toPrecision(3)));
}

const two = (n) => String(n).padStart(2, "0");
export function clock(seconds, date = false) {
  const t = new Date(1000 * seconds), local = window.trackwalker.local();
  const get = (what) => local ? t[`get${what}`]() : t[`getUTC${what}`]();
  const time = `${two(get("Hours"))}:${two(get("Minutes"))}:${two(get("Seconds"))}`;
  return date ? `${get("FullYear")}-${two(get("Month") + 1)}-${two(get("Date"))} ${time}` : time;
}
export const moment = (seconds) => `${clock(seconds, true)} ${window.trackwalker.local() ? "here" : "UTC"}`;

export function make(name, facts = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(facts)) {
    if (key === "class") element.className = value;
    else if (key === "text") element.textContent = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export function table(head, rows, caption) {
  const cells = (kind, row) => row.map((value, i) => {
    const cell = make(kind === "td" && i === 0 ? "th" : kind, { scope: kind === "th" ? "col" : "row" });
    if (kind === "td" && i > 0) cell.removeAttribute("scope");
    if (value instanceof Node) cell.append(value); else cell.textContent = value;
    if (i > 0 && (typeof value === "string" && /^[–+-]?[\d.,–]/.test(value) || kind === "th" && rows.length && /^[–+-]?[\d.,–]/.test(String(rows[0][i])))) cell.className = "num";
    return cell;
  });
  const made = make("table", { class: "grid compact" });
  if (caption) made.append(make("caption", { text: caption }));
  made.append(make("thead", {}, make("tr", {}, ...cells("th", head))), make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells("td", row)))));
  return make("div", { class: "scroll table-box", tabindex: "0", role: "region", "aria-label": caption || "Numbers" }, made);
}

// The numbers behind a chart are written down when somebody opens them.
export function behind(place, write) {
  const details = place.closest("details");
  place.replaceChildren();
  const fill = () => { if (details.open && !place.childNodes.length) place.replaceChildren(...write()); };
  details.ontoggle = fill;
  fill();
}

export function queryLinks(queries, base) {
  const out = make("span");
  queries.forEach((query, i) => out.append(make("a", { class: "cite", href: `${base}/query?q=${encodeURIComponent(query)}`, "data-query": query, text: queries.length > 1 ? `query ${i + 1}` : "query" }), " "));
  return out;
}

export async function ask(url, signal) {
  const answer = await fetch(url, { signal, headers: { Accept: "application/json" } });
  const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok && answer.status !== 202) throw new Error(body.error || `the server answered ${answer.status}`);
  return body;
}

export function say(box, text, waiting = false) {
  box.replaceChildren(make("p", { class: waiting ? "soft spinner" : "soft", text }));
}

// From zero where that costs little, else a little around what is there.
export function roomy(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const wide = (high - low) || Math.abs(high) || 1;
  return [low >= 0 && low < 0.6 * high ? 0 : low - 0.08 * wide, high + 0.08 * wide];
}

// One uPlot in a box; `facts` gives series, data, bands, draw hooks; the span of the page decides what is seen.
export class Chart {
  constructor(box, facts) {
    this.box = box;
    this.facts = facts;
    this.make();
    this.redraw = () => { if (this.plot) { this.plot.destroy(); this.make(); } };
    document.addEventListener("themechange", this.redraw);
    document.addEventListener("zonechange", this.redraw);
    this.sized = new ResizeObserver(() => {
      if (this.plot && Math.abs(this.plot.width - box.clientWidth) > 1 && box.clientWidth) this.plot.setSize({ width: box.clientWidth, height: facts.height });
    });
    this.sized.observe(box);
  }

  make() {
    const { facts, box } = this;
    const soft = colour("--soft"), rule = colour("--rule");
    const axis = { stroke: soft, font: "11px system-ui, sans-serif", grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1, size: 4 } };
    box.replaceChildren();
    this.plot = new uPlot({
      width: Math.max(box.clientWidth, 200),
      height: facts.height,
      padding: facts.padding || [8, 14, 0, 0],
      tzDate: (t) => window.trackwalker.local() ? new Date(1000 * t) : uPlot.tzDate(new Date(1000 * t), "Etc/UTC"),
      legend: { show: false },
      cursor: {
        drag: { x: true, y: false, setScale: false },
        // The crosshair is shared; a drag is not, or every chart would zoom once more.
        sync: facts.alone ? undefined : { key: "job", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        points: { size: 6 },
        bind: { dblclick: () => () => { if (!facts.alone) span.all(); return null; } },
      },
      scales: { x: { time: true, range: () => facts.alone || !span.known() ? facts.reach() : [span.from, span.to] }, y: { range: facts.range } },
      axes: [
        { ...axis, space: 70, size: 40, values: [[86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1], [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1], [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1]] },
        { ...axis, size: facts.left || 58, values: (_, ticks) => ticks.map((t) => t === null ? "" : number(t)) },
      ],
      series: [{}, ...facts.series()],
      bands: facts.bands ? facts.bands() : [],
      hooks: {
        drawClear: facts.behind ? [facts.behind] : [],
        draw: facts.above ? [facts.above] : [],
        setCursor: [(plot) => facts.pointed && facts.pointed(plot.cursor.idx)],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width > 3 && !facts.alone) span.set(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    }, facts.data(), box);
  }

  shift() { this.plot.setScale("x", { min: span.from, max: span.to }); }
  remove() {
    document.removeEventListener("themechange", this.redraw);
    document.removeEventListener("zonechange", this.redraw);
    this.sized.disconnect();
    this.plot.destroy();
    this.plot = null;
  }
}
