// The accused over the band of the others, the devices of one host, and when each of them is drawn.
"use strict";
import { ask, behind, Chart, colour, LINES, make, moment, number, queryLinks, roomy, say, span, table, zoomByKeys } from "./charts.js";
import { HeatMap } from "./heat.js";

const $ = (id) => document.getElementById(id);

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
    if (!this.hosts.length) { say(box, "No host is suspect: choose one in the heat map above."); return; }
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
