// What the charts of a job share: one span of time, colours of the theme, numbers in words, and uPlot dressed for them.
"use strict";

export const RIGHT = 24;  // half a label of the last tick
export const left = () => innerWidth < 640 ? 84 : 150;  // all charts stand exactly below each other
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

// The moment that the pointer, or Shift with an arrow, stands on: one for all charts.
export const cursor = {
  t: null, watchers: new Set(),
  watch(tell) { this.watchers.add(tell); },
  set(t) { if (t !== this.t) { this.t = t; this.watchers.forEach((tell) => tell(t)); } },
  step(share) { if (span.known()) this.set(Math.min(span.to, Math.max(span.from, (this.t ?? (span.from + span.to) / 2) + share * (span.to - span.from)))); },
};
// What lies behind a moment is shown by moment.js: the log there, the stored samples, the query.
export const openMoment = (t, more = {}) => document.dispatchEvent(new CustomEvent("moment", { detail: { t, ...more } }));

// Keys on a chart: plus and minus zoom, arrows move, 0 shows everything; Shift and arrows move the cursor, Enter opens it.
export const ZOOM_KEYS = { "+": "in", "=": "in", "-": "out", "_": "out", ArrowLeft: "left", ArrowRight: "right", "0": "reset" };
export function zoomByKeys(element) {
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== element) return;
    const what = ZOOM_KEYS[event.key];
    if (event.shiftKey && event.key.startsWith("Arrow")) cursor.step(event.key === "ArrowLeft" ? -0.01 : 0.01);
    else if (event.key === "Enter" && span.known()) openMoment(cursor.t ?? (span.from + span.to) / 2);
    else if (what) span.act(what);
    else return;
    event.preventDefault();
  });
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Okabe-Ito. Vermillion and its neighbours are for suspects; who was only selected, or asked for, has the others.
export const SUSPECTS = ["--bad", "--ask", "--warn"];
export const LINES = ["--accent", "--good", "--soft"];

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

// A span of time in words, as the pages write it.
export function duration(seconds) {
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  let rest = Math.round(seconds);
  const parts = [];
  for (const [unit, of] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(rest / of);
    rest -= count * of;
    if (count || parts.length) parts.push([count, unit]);
    if (parts.length === 2) break;
  }
  return parts.filter(([count], i) => i === 0 || count).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

export const withUnit = (value, unit) => `${number(value)}${unit ? ` ${unit}` : ""}`;

// Where a time axis may have its ticks, drawn by hand or by uPlot, whose own list jumps from one minute to five.
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
const TICK_ROOM = 70;  // pixels

// The time axis of a chart that is drawn by hand.
export function timeAxis(ctx, from, to, x0, x1, y, tick = 4) {
  const wide = to - from, room = x1 - x0;
  const step = TIME_STEPS.find((s) => wide / s <= room / TICK_ROOM) || TIME_STEPS.at(-1);
  ctx.font = "11px system-ui, sans-serif"; ctx.fillStyle = colour("--soft"); ctx.textBaseline = "top"; ctx.textAlign = "center";
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
    const x = x0 + room * (t - from) / wide;
    if (x < x0 + 20 || x > x1 - 10) continue;
    ctx.fillText(step < 60 ? clock(t) : step < 86400 ? clock(t).slice(0, 5) : clock(t, true).slice(5, 10), x, y + 3);
    if (tick) ctx.fillRect(x, y + (tick < 0 ? 0 : 17 - tick), 1, Math.abs(tick));
  }
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
  const fill = () => { if (details.open && !place.childNodes.length) place.replaceChildren(...write()); };
  place.anew = () => { place.replaceChildren(); fill(); };
  details.ontoggle = fill;
  place.anew();
  written.add(place);
}
const written = new Set();
document.addEventListener("zonechange", () => written.forEach((place) => place.anew()));

// Words of the server with their UTC moments as <time>, so that they follow the zone of the page.
export function timed(text) {
  const box = make("span");
  let at = 0;
  for (const found of text.matchAll(/\b(20\d\d-\d\d-\d\d)[T ](\d\d:\d\d:\d\d) UTC/g)) {
    box.append(text.slice(at, found.index), make("time", { datetime: `${found[1]}T${found[2]}Z`, text: found[0] }));
    at = found.index + found[0].length;
  }
  box.append(text.slice(at));
  window.trackwalker.showTimes(box);
  return box;
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
    this.leading = false;  // whether the pointer is on this one
    this.make();
    this.redraw = () => { if (this.plot) { this.plot.destroy(); this.make(); } };
    document.addEventListener("themechange", this.redraw);
    document.addEventListener("zonechange", this.redraw);
    this.follow = (t) => {
      if (!this.plot || this.leading) return;
      const x = t === null ? -10 : this.plot.valToPos(t, "x");
      this.plot.setCursor({ left: x, top: x < 0 ? -10 : 4 }, false);
    };
    if (!facts.alone) cursor.watch(this.follow);
    this.sized = new ResizeObserver(() => {
      if (!this.plot || !box.clientWidth || Math.abs(this.plot.width - box.clientWidth) <= 1) return;
      if (this.left !== left()) this.redraw(); else this.plot.setSize({ width: box.clientWidth, height: facts.height });
    });
    this.sized.observe(box);
  }

  make() {
    const { facts, box } = this;
    const soft = colour("--soft"), rule = colour("--rule");
    this.left = left();
    const axis = { stroke: soft, font: "11px system-ui, sans-serif", grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1, size: 4 } };
    const time = { ...axis, space: TICK_ROOM, incrs: TIME_STEPS };
    box.replaceChildren();
    this.plot = new uPlot({
      width: Math.max(box.clientWidth, 200),
      height: facts.height,
      padding: facts.padding || [8, RIGHT, 0, 0],
      tzDate: (t) => window.trackwalker.local() ? new Date(1000 * t) : uPlot.tzDate(new Date(1000 * t), "Etc/UTC"),
      legend: { show: false },
      cursor: {
        drag: { x: true, y: false, setScale: false },
        y: false,
        points: { size: 6 },
        bind: { dblclick: () => () => { if (!facts.alone) span.all(); return null; } },
      },
      scales: { x: { time: true, range: () => facts.alone || !span.known() ? facts.reach() : [span.from, span.to] }, y: { range: facts.range } },
      axes: [
        facts.bare ? { ...time, size: 5, values: (_, ticks) => ticks.map(() => "") } : { ...time, size: 40, values: [[86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1], [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1], [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1]] },
        { ...axis, size: facts.alone ? 58 : this.left, space: facts.bare ? 24 : 30, values: (_, ticks) => ticks.map((t) => t === null ? "" : number(t)) },
      ],
      series: [{}, ...facts.series()],
      bands: facts.bands ? facts.bands() : [],
      hooks: {
        drawClear: facts.behind ? [facts.behind] : [],
        draw: facts.above ? [facts.above] : [],
        setCursor: [(plot) => {
          this.leading = plot.cursor.left >= 0;
          if (facts.pointed) facts.pointed(plot.cursor.idx);
          if (!facts.alone) cursor.set(this.leading ? plot.posToVal(plot.cursor.left, "x") : null);
          this.leading = false;
        }],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width > 3 && !facts.alone) span.set(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    }, facts.data(), box);
    let down = null;
    this.plot.over.addEventListener("mousedown", (event) => { down = event.clientX; });
    this.plot.over.addEventListener("click", (event) => {
      if (facts.alone || down === null || Math.abs(event.clientX - down) > 3) return;
      openMoment(this.plot.posToVal(event.clientX - this.plot.over.getBoundingClientRect().left, "x"), facts.about ? facts.about() : {});
    });
  }

  shift() { this.plot.setScale("x", { min: span.from, max: span.to }); }
  remove() {
    document.removeEventListener("themechange", this.redraw);
    document.removeEventListener("zonechange", this.redraw);
    cursor.watchers.delete(this.follow);
    this.sized.disconnect();
    this.plot.destroy();
    this.plot = null;
  }
}
