// Hosts: the heat map on a canvas, the accused over the band of the others, the devices of one host.
"use strict";
import { ask, behind, Chart, clock, colour, LEFT, LINES, make, moment, number, queryLinks, RIGHT, roomy, say, span, table, zoomByKeys } from "./charts.js";

const $ = (id) => document.getElementById(id);
const TOP = 20;
const VALUE = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"];  // dark to light, for every kind of eye

const rgb = (text) => {
  const hex = text.replace("#", "");
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
};
const mix = (a, b, t) => a.map((v, i) => Math.round(v + (b[i] - v) * t));
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

class HeatMap {
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

// ---- chosen hosts over the band of the others
class Overlay {
  constructor(base, facts) {
    this.base = base;
    this.hosts = facts.accused.slice(0, 8);
    this.newest = 0;
    zoomByKeys($("overlay-plot"));
    span.watch(() => { this.chart?.shift(); clearTimeout(this.later); this.later = setTimeout(() => this.load(), 350); });
  }

  async load() {
    const box = $("overlay-plot"), metric = $("heat-metric").value, mine = ++this.newest;
    if (!metric) return;
    if (!this.hosts.length) { say(box, "No host is accused: choose one in the heat map above."); return; }
    const hosts = this.hosts.map((h) => `&host=${encodeURIComponent(h)}`).join("");
    try {
      const d = await ask(`${this.base}/overlay.json?metric=${encodeURIComponent(metric)}&how=${$("heat-how").value}${hosts}${span.query()}`);
      if (mine === this.newest) this.draw(box, d);
    } catch (error) { if (mine === this.newest) say(box, error.message); }
  }

  draw(box, d) {
    this.chart?.remove();
    this.chart = null;
    if (!d.lines.length) { say(box, `${this.hosts.join(", ")}: nothing recorded of ${d.metric}.`); return; }
    const names = d.lines.map((line) => line.host);
    this.chart = new Chart(box, {
      height: box.clientHeight || 220,
      reach: () => [d.times[0], d.times.at(-1)],
      data: () => [d.times, d.control.high, d.control.low, d.control.median, ...d.lines.map((line) => line.values)],
      series: () => [
        { stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } },
        { stroke: colour("--soft"), width: 1.2, dash: [4, 3], points: { show: false } },
        ...names.map((_, i) => ({ stroke: colour(LINES[i % LINES.length]), width: 1.6, points: { show: false }, dash: i >= LINES.length ? [6, 3] : undefined })),
      ],
      bands: () => [{ series: [1, 2], fill: colour("--mute-wash") }],
      range: roomy,
      pointed: (i) => { if (i !== null && i !== undefined) $("overlay-readout").textContent = `${moment(d.times[i])}: ${d.lines.map((line) => `${line.host} ${number(line.values[i])}`).join(", ")}; others ${number(d.control.median[i])} (${number(d.control.low[i])} to ${number(d.control.high[i])})`; },
    });
    const about = $("overlay-about");
    about.replaceChildren(...names.map((name, i) => make("span", { class: `key line-${i % LINES.length}`, text: name })), make("span", { class: "key line-control", text: `${d.control.hosts.toLocaleString("en")} others: median, 5–95 %` }), ` ${d.metric} `, queryLinks(d.queries, this.base));
    if (d.absent.length) about.append(` ${d.absent.join(", ")} did not report it.`);
    const every = Math.max(1, Math.ceil(d.times.length / 120));
    const rows = () => d.times.map((t, i) => [moment(t), ...d.lines.map((line) => number(line.values[i])), number(d.control.low[i]), number(d.control.median[i]), number(d.control.high[i])]).filter((_, i) => i % every === 0);
    behind($("overlay-table"), () => [table(["time", ...names, "others 5 %", "median", "95 %"], rows(), d.metric)]);
  }
}

// ---- the devices of one host
class Lanes {
  constructor(base, facts, hosts) {
    this.base = base;
    this.newest = 0;
    this.touched = false;  // whether the viewer chose a host or a metric
    this.learn(facts, hosts);
    for (const id of ["lanes-host", "lanes-metric"]) $(id).addEventListener("change", () => { this.touched = true; this.load(); });
    for (const event of ["themechange", "zonechange"]) document.addEventListener(event, () => this.draw());
    span.watch(() => { clearTimeout(this.later); this.later = setTimeout(() => this.load(), 400); });
    new ResizeObserver(() => this.draw()).observe($("lanes"));
  }

  learn(facts, hosts) {
    const ofDevices = facts.metrics.filter((m) => /gpu|rdma|net_/.test(m));
    const telling = facts.telling.find((m) => /gpu|rdma|net_/.test(m)) || facts.gpu;
    this.fill($("lanes-host"), hosts, hosts[0]);
    this.fill($("lanes-metric"), ofDevices.length ? ofDevices : facts.metrics, telling);
  }

  fill(select, names, first) {
    const kept = this.touched && names.includes(select.value) ? select.value : first;
    select.replaceChildren(...names.map((name) => make("option", { value: name, text: name })));
    if (kept) select.value = kept;
    select.disabled = !names.length;
  }

  show(host) {
    const select = $("lanes-host");
    this.touched = true;
    if (![...select.options].some((o) => o.value === host)) select.append(make("option", { value: host, text: host }));
    select.value = host;
    return this.load();
  }

  async load() {
    const host = $("lanes-host").value, metric = $("lanes-metric").value, mine = ++this.newest;
    if (!host || !metric) { say($("lanes"), "Nothing about devices was recorded."); return; }
    try {
      const data = await ask(`${this.base}/lanes.json?host=${encodeURIComponent(host)}&metric=${encodeURIComponent(metric)}${span.query()}`);
      if (mine !== this.newest) return;
      this.data = data;
      this.draw();
      $("lanes-about").replaceChildren(`${data.lanes.length} of ${host}${data.left_out ? `, ${data.left_out} more left out` : ""}, one scale for all; a dashed line is their median; `, queryLinks(data.queries, this.base));
      const rows = () => data.lanes.map((lane) => { const known = lane.values.filter((v) => v !== null); return [lane.name, number(Math.min(...known)), number(known.reduce((a, b) => a + b, 0) / known.length), number(Math.max(...known)), number(known.at(-1))]; });
      behind($("lanes-table"), () => [table(["device", "lowest", "mean", "highest", "last"], rows(), `${metric} of ${host}`)]);
    } catch (error) { if (mine === this.newest) { this.data = null; say($("lanes"), error.message); } }
  }

  draw() {
    const d = this.data, box = $("lanes");
    if (!d) return;
    if (!d.lanes.length) { say(box, `${d.host} has nothing of ${d.metric} in the time shown.`); return; }
    const dpr = devicePixelRatio, wide = Math.max(box.clientWidth, 260), row = d.lanes.length > 12 ? 20 : 27, high = row * d.lanes.length + 4, left = 110, right = 64;
    const canvas = make("canvas", { role: "img", "aria-label": `${d.metric} of ${d.lanes.length} devices of ${d.host}; the table below has the numbers` });
    canvas.width = wide * dpr; canvas.height = high * dpr;
    canvas.style.width = `${wide}px`; canvas.style.height = `${high}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(dpr, dpr);
    const known = d.lanes.flatMap((lane) => lane.values.filter((v) => v !== null));
    const hi = Math.max(...known), lo = Math.min(...known), floor = lo > 0 && lo < 0.6 * hi ? 0 : lo - 0.1 * ((hi - lo) || 1);
    const from = d.times[0], to = d.times.at(-1);
    const x = (t) => left + (wide - left - right) * (t - from) / ((to - from) || 1);
    const middle = d.times.map((_, i) => { const v = d.lanes.map((lane) => lane.values[i]).filter((n) => n !== null).sort((a, b) => a - b); return v.length ? v[v.length >> 1] : null; });
    d.lanes.forEach((lane, k) => {
      const top = 2 + k * row, y = (v) => top + row - 3 - (row - 6) * (v - floor) / ((hi - floor) || 1);
      ctx.fillStyle = colour("--faint"); ctx.fillRect(left, top, wide - left - right, row - 3);
      const line = (values, token, dash) => {
        ctx.strokeStyle = colour(token); ctx.setLineDash(dash); ctx.lineWidth = dash.length ? 1 : 1.3; ctx.beginPath();
        let open = false;
        values.forEach((v, i) => { if (v === null) { open = false; return; } if (open) ctx.lineTo(x(d.times[i]), y(v)); else ctx.moveTo(x(d.times[i]), y(v)); open = true; });
        ctx.stroke(); ctx.setLineDash([]);
      };
      if (d.lanes.length > 2) line(middle, "--soft", [3, 3]);
      line(lane.values, "--accent", []);
      ctx.font = "11px ui-monospace, Menlo, Consolas, \"DejaVu Sans Mono\", monospace"; ctx.textBaseline = "middle";
      ctx.fillStyle = colour("--fg"); ctx.textAlign = "right"; ctx.fillText(lane.name.length > 16 ? `…${lane.name.slice(-15)}` : lane.name, left - 8, top + row / 2);
      const last = lane.values.filter((v) => v !== null).at(-1);
      ctx.fillStyle = colour("--soft"); ctx.textAlign = "left"; ctx.fillText(number(last), wide - right + 6, top + row / 2);
    });
    box.replaceChildren(canvas);
  }
}

// Everything about hosts: begun when it comes into view, begun anew where the verdict changes what is telling.
export function setUpHosts(base) {
  const map = new HeatMap(base);
  let overlay = null, lanes = null, begun = false;
  const begin = async () => {
    begun = true;
    try {
      const facts = await ask(`${base}/metrics.json`);
      span.learn(facts.start, facts.end);
      await map.begin(facts);
      overlay ||= new Overlay(base, facts);
      overlay.hosts = facts.accused.length ? facts.accused.slice(0, 8) : map.data?.outliers.slice(0, 1).map((o) => o.host) || [];
      const hosts = [...new Set([...facts.accused, ...(map.data?.outliers.map((o) => o.host) || [])])];
      if (lanes) lanes.learn(facts, hosts); else lanes = new Lanes(base, facts, hosts);
      near.observe($("overlay"));
      near.observe($("devices"));
    } catch (error) { say($("heat"), error.message); say($("overlay-plot"), error.message); say($("lanes"), error.message); }
  };
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      ({ hosts: begin, overlay: () => overlay.load(), devices: () => lanes.load() })[entry.target.id]();
    }
  }, { rootMargin: "200px" });
  for (const box of document.querySelectorAll("[data-waiting]")) if (!box.childNodes.length) say(box, box.dataset.waiting, true);
  near.observe($("hosts"));
  document.addEventListener("verdict", () => { if (begun) begin(); });
  document.addEventListener("hostsdrawn", () => { if (overlay?.chart) overlay.load(); });
  const show = (host) => {
    if (!overlay || !lanes) return;
    overlay.hosts = [host, ...overlay.hosts.filter((h) => h !== host)].slice(0, 8);
    overlay.load();
    lanes.show(host);
  };
  document.addEventListener("host", (event) => show(event.detail));
  document.addEventListener("click", async (event) => {
    const chip = event.target.closest("[data-host]");
    if (!chip) return;
    if (!begun) await begin();
    show(chip.dataset.host);
    $("overlay").scrollIntoView({ block: "start" });
  });
}
