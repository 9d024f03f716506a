// The heat map: hosts x time on a canvas, by pointer and by keyboard.
"use strict";
import { ask, behind, clock, colour, LEFT, make, moment, number, queryLinks, RIGHT, say, span, table } from "./charts.js";

const $ = (id) => document.getElementById(id);
const TOP = 20;
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
    if (data.times.length > 1) span.learn(data.times[0], data.times.at(-1));
    this.at = { row: 0, column: 0 };
    this.draw();
    const about = $("heat-about");
    about.replaceChildren(`${data.hosts.toLocaleString("en")} host${data.hosts === 1 ? "" : "s"}${data.rows.length < data.hosts ? ` in ${data.rows.length} rows: the most unlike one by one, the rest in groups whose furthest host shows` : ", the most unlike on top"}; a column is ${number(data.step)} s; `, queryLinks(data.queries, this.base));
    const rows = () => data.outliers.map((o) => [o.host, number(o.score), moment(o.time), number(o.value), number(o.usual), `${(100 * o.share).toFixed(0)} %`]);
    behind($("heat-table"), () => [table(["host", "spreads away", "furthest at", "value there", "others then", "time unlike"], rows(), `${data.metric}: the ${data.outliers.length} most unlike hosts`)]);
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

  rowHeight() { return this.data.rows.length <= 12 ? 20 : this.data.rows.length <= 32 ? 15 : 12; }
  x(t) { return LEFT + (this.wide - LEFT - RIGHT) * (t - span.from) / (span.to - span.from); }

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
      const d = (i - 127.5) / 127.5, t = Math.pow(Math.max(0, (Math.abs(d) - 0.13) / 0.87), 0.65);  // noise stays calm
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

  draw() {
    const d = this.data;
    if (!d || !span.known()) return;
    if (!d.rows.length) { say(this.box, "No host has this metric in the time shown."); return; }
    const row = this.rowHeight(), dpr = devicePixelRatio;
    this.wide = Math.max(this.box.clientWidth, 360);
    const high = TOP + row * d.rows.length;
    if (!this.canvas || !this.canvas.isConnected) {
      this.canvas = make("canvas", { "aria-hidden": "true" });
      this.cursor = make("div", { class: "heat-cursor" });
      this.drag = make("div", { class: "heat-drag" });
      this.box.replaceChildren(make("div", { class: "heat-inner" }, this.canvas, this.cursor, this.drag));
      this.listen();
    }
    const canvas = this.canvas;
    canvas.width = this.wide * dpr; canvas.height = high * dpr;
    canvas.style.width = `${this.wide}px`; canvas.style.height = `${high}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(dpr, dpr);
    ctx.clearRect(0, 0, this.wide, high);
    this.axis(ctx, high);
    ctx.save();
    ctx.beginPath(); ctx.rect(LEFT, TOP, this.wide - LEFT - RIGHT, high - TOP); ctx.clip();
    ctx.fillStyle = this.hatch(ctx); ctx.fillRect(LEFT, TOP, this.wide - LEFT - RIGHT, high - TOP);
    ctx.imageSmoothingEnabled = false;
    const from = this.x(d.times[0] - d.step / 2), to = this.x(d.times.at(-1) + d.step / 2);
    ctx.drawImage(this.image(), from, TOP, to - from, high - TOP);
    ctx.strokeStyle = colour("--card"); ctx.lineWidth = 1;
    if (row >= 12) for (let i = 1; i < d.rows.length; i++) { ctx.beginPath(); ctx.moveTo(LEFT, TOP + i * row); ctx.lineTo(this.wide, TOP + i * row); ctx.stroke(); }
    ctx.restore();
    ctx.textBaseline = "middle"; ctx.textAlign = "right";
    d.rows.forEach((r, i) => {
      ctx.font = `${r.accused ? 700 : 400} ${Math.min(12, row - 1)}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace`;
      ctx.fillStyle = colour(r.accused ? "--bad-ink" : r.count > 1 ? "--soft" : "--fg");
      const name = r.count > 1 ? `▸ ${r.count} hosts` : `${r.accused ? "▲ " : ""}${r.hosts[0]}`;
      ctx.fillText(name.length > 19 ? `${name.slice(0, 8)}…${name.slice(-10)}` : name, LEFT - 8, TOP + (i + 0.5) * row);
    });
    $("heat-legend").className = `legend ${$("heat-colour").value}`;
    $("heat-legend").textContent = $("heat-colour").value === "value" ? `${number(d.lo)} … ${number(d.hi)}` : "below the others · like them · above";
    this.box.dataset.drawn = d.metric;
    this.place();
  }

  hatch(ctx) {
    const tile = new OffscreenCanvas(6, 6), t = tile.getContext("2d");
    t.strokeStyle = colour("--hatch"); t.globalAlpha = 0.55; t.lineWidth = 1;
    t.beginPath(); t.moveTo(0, 6); t.lineTo(6, 0); t.stroke();
    return ctx.createPattern(tile, "repeat");
  }

  axis(ctx, high) {
    const wide = span.to - span.from;
    const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800].find((s) => wide / s <= (this.wide - LEFT) / 90) || 604800;
    ctx.font = "11px system-ui, sans-serif"; ctx.fillStyle = colour("--soft"); ctx.textBaseline = "top"; ctx.textAlign = "center";
    for (let t = Math.ceil(span.from / step) * step; t <= span.to; t += step) {
      const x = this.x(t);
      if (x < LEFT + 20 || x > this.wide - 24) continue;
      ctx.fillText(step < 60 ? clock(t) : step < 86400 ? clock(t).slice(0, 5) : clock(t, true).slice(5, 10), x, 3);
      ctx.fillRect(x, TOP - 4, 1, 4);
    }
  }

  // Where a pointer is, as a cell.
  cell(event) {
    const at = this.canvas.getBoundingClientRect(), x = event.clientX - at.left, y = event.clientY - at.top;
    const row = Math.floor((y - TOP) / this.rowHeight()), t = span.from + (x - LEFT) / (this.wide - LEFT - RIGHT) * (span.to - span.from);
    return { x, row, t, column: Math.round((t - this.data.times[0]) / this.data.step) };
  }

  listen() {
    let begun = null;
    this.canvas.addEventListener("pointerdown", (event) => { begun = this.cell(event); this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointermove", (event) => {
      const here = this.cell(event);
      if (begun && Math.abs(here.x - begun.x) > 5) {
        this.drag.style.display = "block";
        this.drag.style.left = `${Math.max(LEFT, Math.min(here.x, begun.x))}px`;
        this.drag.style.width = `${Math.abs(here.x - begun.x)}px`;
      } else this.point(here.row, here.column);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const here = this.cell(event);
      this.drag.style.display = "none";
      if (begun && Math.abs(here.x - begun.x) > 5 && here.x > LEFT) span.set(Math.min(here.t, begun.t), Math.max(here.t, begun.t));
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
    $("heat-readout").textContent = `${who}${r.accused ? ", accused" : ""}, ${moment(d.times[this.at.column])}: ${v === 65535 ? "nothing recorded" : `${number(d.lo + v / 65534 * (d.hi - d.lo))}, ${Math.abs(apart) < 1 ? "like the others" : `${Math.abs(apart).toFixed(0)}${Math.abs(apart) >= d.full ? "+" : ""} spreads ${apart > 0 ? "above" : "below"} the others`}`}${r.count > 1 ? "; Enter opens the group" : ""}`;
  }

  place(scroll = false) {
    if (!this.cursor) return;
    const row = this.rowHeight(), d = this.data;
    const left = this.x(d.times[this.at.column] - d.step / 2), right = this.x(d.times[this.at.column] + d.step / 2);
    Object.assign(this.cursor.style, { top: `${TOP + this.at.row * row}px`, left: `${Math.max(LEFT, left)}px`, width: `${Math.max(3, right - left)}px`, height: `${row}px` });
    if (scroll) this.cursor.scrollIntoView({ block: "nearest" });
  }

  choose(row) {
    const r = this.data.rows[row];
    if (!r) return;
    if (r.count > 1) this.expand(row);
    else document.dispatchEvent(new CustomEvent("host", { detail: r.hosts[0] }));
  }
}
