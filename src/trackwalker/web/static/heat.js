// The heat map: hosts x time on a canvas, by pointer and by keyboard.
"use strict";
import { ask, behind, colour, cursor, left, make, moment, number, queryLinks, RIGHT, say, span, table, timeAxis, withUnit } from "./charts.js";
import { drawThrough, inView, story } from "./story.js";

const $ = (id) => document.getElementById(id);
const TOP = 20, GAP = 5;  // above the rows: the axis, then all hosts together
const VALUE = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"];  // dark to light, for every kind of eye

const rgb = (text) => {
  const hex = text.replace("#", "");
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
};
const mix = (a, b, t) => a.map((v, i) => Math.round(v + (b[i] - v) * t));
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

export class HeatMap {
  constructor(base) {
    this.base = base;
    this.box = $("heat");
    this.touched = false;  // whether the viewer chose a metric
    this.at = { row: 0, column: 0 };
    this.newest = 0;
    $("heat-metric").addEventListener("change", () => { this.touched = true; this.load(); });
    $("heat-how").addEventListener("change", () => this.load());
    $("heat-colour").addEventListener("change", () => this.draw());
    for (const event of ["themechange", "zonechange"]) document.addEventListener(event, () => this.draw());
    story.watch(() => this.draw());
    cursor.watch((t) => this.follow(t));
    span.watch(() => { this.draw(); clearTimeout(this.later); this.later = setTimeout(() => this.load(true), 300); });
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  async begin(facts) {
    const pick = $("heat-metric"), kept = this.touched ? pick.value : facts.first;
    pick.replaceChildren();
    const group = (name, list) => {
      if (!list.length) return;
      const made = make("optgroup", { label: name });
      list.forEach((metric) => made.append(make("option", { value: metric, text: metric })));
      pick.append(made);
    };
    group("from the evidence", facts.telling);
    const families = {};
    for (const metric of facts.metrics) (families[metric.split("_").slice(0, 2).join("_")] ||= []).push(metric);
    for (const [name, list] of Object.entries(families)) group(name, list);
    pick.value = kept;
    pick.disabled = false;
    await this.load();
  }

  async load(quietly = false) {
    const metric = $("heat-metric").value;
    if (!metric || $("heat-metric").disabled) return;
    const mine = ++this.newest;
    if (!quietly || !this.data) say(this.box, `Asking for ${metric}`, true);
    try {
      const data = await ask(`${this.base}/heat.json?metric=${encodeURIComponent(metric)}&how=${$("heat-how").value}${span.query()}`);
      if (mine !== this.newest) return;
      this.take(data);
      document.dispatchEvent(new CustomEvent("hostsdrawn"));
    } catch (error) { if (mine === this.newest) { this.data = null; say(this.box, error.message); } }
  }

  take(data) {
    this.data = { ...data, values: new Uint16Array(bytes(data.values).buffer), deviation: new Int8Array(bytes(data.deviation).buffer) };
    if (data.together) this.data.whole = new Int8Array(bytes(data.together.deviation).buffer);
    if (data.times.length > 1) span.learn(data.times[0], data.times.at(-1));
    this.at = { row: 0, column: 0 };
    this.draw();
    const about = $("heat-about");
    about.replaceChildren(`${data.hosts.toLocaleString("en")} host${data.hosts === 1 ? "" : "s"}${data.rows.length < data.hosts ? ` in ${data.rows.length} rows: the most unlike one by one, the rest in groups whose furthest host shows` : data.hosts > 1 ? ", the most unlike on top" : ""}; a column is ${number(data.step)} s and looks back over ${number(data.window)} s; `, queryLinks(data.queries, this.base));
    const rows = () => data.outliers.map((o) => [o.host, moment(o.time), withUnit(o.value, data.unit), withUnit(o.usual, data.unit), `${(100 * o.share).toFixed(0)} %`]);
    behind($("heat-table"), () => [table(["host", "furthest at", "value there", "others then", "time unlike"], rows(), `${data.metric}: the ${data.outliers.length} most unlike hosts`)]);
  }

  async expand(row) {
    const group = this.data.rows[row];
    const metric = this.data.metric;
    try {
      const part = await ask(`${this.base}/heat.json?metric=${encodeURIComponent(metric)}&how=${this.data.how}${span.query()}&ranks=${group.ranks.join("-")}`);
      const d = this.data;
      if (d.metric !== part.metric || d.times.length !== part.times.length) return;
      // The group's numbers have a scale of their own: bring them to the map's.
      const columns = d.times.length, inner = new Uint16Array(bytes(part.values).buffer), apart = new Int8Array(bytes(part.deviation).buffer);
      const wide = d.hi - d.lo || 1;
      const scaled = inner.map((v) => v === 65535 ? v : Math.max(0, Math.min(65534, Math.round((part.lo + v / 65534 * (part.hi - part.lo) - d.lo) / wide * 65534))));
      const splice = (all, some) => { const out = new all.constructor(all.length - columns + some.length); out.set(all.subarray(0, row * columns)); out.set(some, row * columns); out.set(all.subarray((row + 1) * columns), row * columns + some.length); return out; };
      d.values = splice(d.values, scaled);
      d.deviation = splice(d.deviation, apart);
      d.rows.splice(row, 1, ...part.rows);
      this.draw();
      this.point(row, this.at.column);
    } catch (error) { $("heat-readout").textContent = error.message; }
  }

  // Where the hosts' rows begin.
  top() { return TOP + (this.data.whole ? this.rowHeight() + GAP : 0); }
  rowHeight() { return this.data.rows.length <= 12 ? 20 : this.data.rows.length <= 32 ? 15 : 12; }
  x(t) { return left() + (this.wide - left() - RIGHT) * (t - span.from) / (span.to - span.from); }

  palette() {
    const steps = 256, out = new Uint8ClampedArray(4 * steps);
    const put = (i, c) => out.set([...c, 255], 4 * i);
    if ($("heat-colour").value === "value") {
      const stops = VALUE.map(rgb);
      for (let i = 0; i < steps; i++) { const t = i / (steps - 1) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(t)); put(i, mix(stops[k], stops[k + 1], t - k)); }
      return out;
    }
    const [calm, above, below] = ["--faint", "--bad", "--accent"].map((name) => rgb(colour(name)));
    for (let i = 0; i < steps; i++) {
      // What so many cells reach by chance stays calm.
      const d = (i - 127.5) / 127.5, calmTo = this.data.floor / this.data.full, t = Math.pow(Math.max(0, (Math.abs(d) - calmTo) / (1 - calmTo)), 0.65);
      put(i, mix(calm, d > 0 ? above : below, t));
    }
    return out;
  }

  image() {
    const d = this.data, columns = d.times.length, rows = d.rows.length;
    const image = new ImageData(columns, rows), palette = this.palette(), byValue = $("heat-colour").value === "value";
    for (let i = 0; i < columns * rows; i++) {
      if (d.values[i] === 65535) continue;  // absent: the hatched ground shows
      const k = byValue ? Math.round(d.values[i] / 65534 * 255) : Math.max(0, Math.min(255, Math.round(127.5 + d.deviation[i] / 127 * 127.5)));
      image.data.set(palette.subarray(4 * k, 4 * k + 4), 4 * i);
    }
    const canvas = new OffscreenCanvas(columns, rows);
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  // All hosts as one row, against what they had while steps were done; absent columns stay clear.
  together() {
    const d = this.data, columns = d.times.length, image = new ImageData(columns, 1), palette = this.palette(), byValue = $("heat-colour").value === "value";
    for (let i = 0; i < columns; i++) {
      const v = d.together.values[i];
      if (v === null) continue;
      const k = byValue ? Math.round((v - d.lo) / ((d.hi - d.lo) || 1) * 255) : Math.round(127.5 + d.whole[i] / 127 * 127.5);
      image.data.set(palette.subarray(4 * Math.max(0, Math.min(255, k)), 4 * Math.max(0, Math.min(255, k)) + 4), 4 * i);
    }
    const canvas = new OffscreenCanvas(columns, 1);
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  draw() {
    const d = this.data;
    if (!d || !span.known()) return;
    if (!d.rows.length) { say(this.box, "No host has this metric in the time shown."); return; }
    const row = this.rowHeight(), dpr = devicePixelRatio;
    this.wide = Math.max(this.box.clientWidth, 240);
    const top = this.top(), high = top + row * d.rows.length;
    if (!this.canvas || !this.canvas.isConnected) {
      this.canvas = make("canvas", { "aria-hidden": "true" });
      this.cursor = make("div", { class: "heat-cursor" });
      this.drag = make("div", { class: "heat-drag" });
      this.line = make("div", { class: "cursor-line" });
      this.box.replaceChildren(make("div", { class: "heat-inner" }, this.canvas, this.cursor, this.drag, this.line));
      this.listen();
    }
    const canvas = this.canvas;
    canvas.width = this.wide * dpr; canvas.height = high * dpr;
    canvas.style.width = `${this.wide}px`; canvas.style.height = `${high}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(dpr, dpr);
    ctx.clearRect(0, 0, this.wide, high);
    timeAxis(ctx, span.from, span.to, left(), this.wide - RIGHT, 0);
    const ground = this.wide - left() - RIGHT;
    ctx.save();
    ctx.beginPath(); ctx.rect(left(), TOP, ground, high - TOP); ctx.clip();
    ctx.fillStyle = this.hatch(ctx); ctx.fillRect(left(), top, ground, high - top);
    ctx.imageSmoothingEnabled = false;
    // A column tells of the time before its moment.
    const from = this.x(d.times[0] - d.step), to = this.x(d.times.at(-1));
    if (d.whole) { ctx.fillRect(left(), TOP, ground, row); ctx.drawImage(this.together(), from, TOP, to - from, row); }
    ctx.drawImage(this.image(), from, top, to - from, high - top);
    ctx.strokeStyle = colour("--card"); ctx.lineWidth = 1;
    if (row >= 12) for (let i = 1; i < d.rows.length; i++) { ctx.beginPath(); ctx.moveTo(left(), top + i * row); ctx.lineTo(this.wide, top + i * row); ctx.stroke(); }
    ctx.restore();
    drawThrough(ctx, (t) => this.x(t), left(), TOP, ground, high - TOP);
    ctx.textBaseline = "middle"; ctx.textAlign = "right";
    d.rows.forEach((r, i) => {
      ctx.font = `${r.accused ? 700 : 400} ${Math.min(12, row - 1)}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace`;
      ctx.fillStyle = colour(r.accused ? "--bad-ink" : r.count > 1 ? "--soft" : "--fg");
      const name = r.count > 1 ? `▸ ${r.count} hosts` : `${r.accused ? "▲ " : ""}${r.hosts[0]}`, most = Math.floor((left() - 8) / ctx.measureText("0").width);
      ctx.fillText(name.length > most ? `${name.slice(0, Math.floor(0.42 * most))}…${name.slice(-Math.ceil(0.5 * most))}` : name, left() - 8, top + (i + 0.5) * row);
    });
    if (d.whole) {
      ctx.font = `600 ${Math.min(12, row - 1)}px system-ui, sans-serif`; ctx.fillStyle = colour("--soft");
      ctx.fillText(left() < 100 ? "all" : "all together", left() - 8, TOP + 0.5 * row);
    }
    this.legend();
    this.box.dataset.drawn = d.metric;
    this.box.dataset.rows = String(top);
    this.place();
  }

  hatch(ctx) {
    const tile = new OffscreenCanvas(6, 6), t = tile.getContext("2d");
    t.strokeStyle = colour("--hatch"); t.globalAlpha = 0.55; t.lineWidth = 1;
    t.beginPath(); t.moveTo(0, 6); t.lineTo(6, 0); t.stroke();
    return ctx.createPattern(tile, "repeat");
  }

  // Colours in numbers: how far from the others' median is full, and what counts as noise.
  legend() {
    const d = this.data, legend = $("heat-legend"), value = $("heat-colour").value === "value";
    legend.className = `legend ${value ? "value" : "deviation"}`;
    const full = withUnit(d.full * d.spread, d.unit), floor = withUnit(d.floor * d.spread, d.unit);
    legend.textContent = value ? `${number(d.lo)} … ${withUnit(d.hi, d.unit)}` : `−${full} … +${full} from the hosts' median at that time; within ±${floor} is noise and has no colour`;
    $("heat-together").textContent = d.together && !value ? `Top row: the median of all, against its usual ${withUnit(d.together.usual, d.unit)}; colour from ±${withUnit(d.floor * d.together.spread, d.unit)}.` : "";
  }

  follow(t) {
    if (!this.line) return;
    const shown = t !== null && this.data && inView(t);
    this.line.style.display = shown ? "block" : "none";
    if (shown) this.line.style.left = `${this.x(t)}px`;
  }

  // Where a pointer is, as a cell.
  cell(event) {
    const at = this.canvas.getBoundingClientRect(), x = event.clientX - at.left, y = event.clientY - at.top;
    const row = Math.floor((y - this.top()) / this.rowHeight()), t = span.from + (x - left()) / (this.wide - left() - RIGHT) * (span.to - span.from);
    return { x, row, t, column: Math.ceil((t - this.data.times[0]) / this.data.step) };
  }

  listen() {
    let begun = null;
    this.canvas.addEventListener("pointerdown", (event) => { begun = this.cell(event); this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointermove", (event) => {
      const here = this.cell(event);
      if (begun && Math.abs(here.x - begun.x) > 5) {
        this.drag.style.display = "block";
        this.drag.style.left = `${Math.max(left(), Math.min(here.x, begun.x))}px`;
        this.drag.style.width = `${Math.abs(here.x - begun.x)}px`;
      } else { this.point(here.row, here.column); cursor.set(here.x > left() ? here.t : null); }
    });
    this.canvas.addEventListener("pointerleave", () => cursor.set(null));
    this.canvas.addEventListener("pointerup", (event) => {
      const here = this.cell(event);
      this.drag.style.display = "none";
      if (begun && Math.abs(here.x - begun.x) > 5 && here.x > left()) span.set(Math.min(here.t, begun.t), Math.max(here.t, begun.t));
      else if (begun && here.row >= 0) this.choose(here.row);
      begun = null;
    });
    this.canvas.addEventListener("dblclick", () => span.all());
  }

  key(event) {
    if (!this.data || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [-1e6, 0], End: [1e6, 0] };
    if (event.key in moves) this.point(this.at.row + moves[event.key][0], this.at.column + moves[event.key][1], true);
    else if (event.key === "Enter") this.choose(this.at.row);
    else if ("+=-_0".includes(event.key)) span.act({ "+": "in", "=": "in", "-": "out", "_": "out", "0": "reset" }[event.key]);
    else return;
    event.preventDefault();
  }

  point(row, column, scroll = false) {
    const d = this.data;
    if (!d || !d.rows.length) return;
    this.at = { row: Math.max(0, Math.min(d.rows.length - 1, row)), column: Math.max(0, Math.min(d.times.length - 1, column)) };
    this.place(scroll);
    const r = d.rows[this.at.row], i = this.at.row * d.times.length + this.at.column, v = d.values[i];
    const who = r.count > 1 ? `${r.count} hosts (${r.hosts.slice(0, 3).join(", ")}…), the furthest` : r.hosts[0];
    const apart = d.deviation[i] / 127 * d.full;
    $("heat-readout").textContent = `${who}${r.accused ? ", suspect" : ""}, ${moment(d.times[this.at.column])}: ${v === 65535 ? "nothing recorded" : `${withUnit(d.lo + v / 65534 * (d.hi - d.lo), d.unit)}, ${Math.abs(apart) < d.floor ? "like the others" : `${Math.abs(apart) >= d.full ? "at least " : ""}${withUnit(Math.abs(apart) * d.spread, d.unit)} ${apart > 0 ? "above" : "below"} the others`}`}${r.count > 1 ? "; Enter opens the group" : ""}`;
  }

  place(scroll = false) {
    if (!this.cursor) return;
    const row = this.rowHeight(), d = this.data;
    const begin = this.x(d.times[this.at.column] - d.step), end = this.x(d.times[this.at.column]);
    Object.assign(this.cursor.style, { top: `${this.top() + this.at.row * row}px`, left: `${Math.max(left(), begin)}px`, width: `${Math.max(3, end - begin)}px`, height: `${row}px` });
    if (scroll) this.cursor.scrollIntoView({ block: "nearest" });
  }

  choose(row) {
    const r = this.data.rows[row];
    if (!r) return;
    if (r.count > 1) this.expand(row);
    else document.dispatchEvent(new CustomEvent("host", { detail: r.hosts[0] }));
  }
}
