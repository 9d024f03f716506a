// Suspects or selected hosts over the band of the others, and when each chart of hosts is drawn.
"use strict";
import { ask, behind, Chart, colour, LINES, make, moment, number, queryLinks, RIGHT, roomy, say, span, SUSPECTS, table, zoomByKeys } from "./charts.js";
import { HeatMap } from "./heat.js";
import { Lanes } from "./lanes.js";
import { drawBehind, drawThrough, onPlot, story } from "./story.js";

const $ = (id) => document.getElementById(id);

// ---- chosen hosts over the band of the others
class Overlay {
  constructor(base, facts) {
    this.base = base;
    this.hosts = facts.accused.slice(0, 8);
    this.newest = 0;
    zoomByKeys($("overlay-plot"));
    story.watch(() => this.chart?.plot.redraw());
    span.watch(() => { this.chart?.shift(); clearTimeout(this.later); this.later = setTimeout(() => this.load(), 350); });
  }

  async load() {
    const box = $("overlay-plot"), metric = $("heat-metric").value, mine = ++this.newest;
    if (!metric) return;
    const hosts = this.hosts.map((h) => `&host=${encodeURIComponent(h)}`).join("") || "&host=";
    try {
      const d = await ask(`${this.base}/overlay.json?metric=${encodeURIComponent(metric)}&how=${$("heat-how").value}${hosts}${span.query()}`);
      if (mine === this.newest) this.draw(box, d);
    } catch (error) { if (mine === this.newest) say(box, error.message); }
  }

  draw(box, d) {
    this.chart?.remove();
    this.chart = null;
    if (!d.lines.length && this.hosts.length) { say(box, `${this.hosts.join(", ")}: nothing recorded of ${d.metric}.`); return; }
    const names = d.lines.map((line) => line.host), suspects = d.lines.filter((line) => line.suspect).length;
    this.query = d.queries[0];
    // Only whom the verdict names is drawn in the colours of suspicion; whoever was selected has a calm one.
    let bad = 0, calm = 0;
    const tones = d.lines.map((line) => line.suspect ? [SUSPECTS[bad % SUSPECTS.length], bad++ >= SUSPECTS.length] : [LINES[calm % LINES.length], calm++ >= LINES.length]);
    $("h-overlay").textContent = !d.lines.length ? "The hosts together" : suspects === d.lines.length ? "Suspects against the others" : suspects ? "Suspects and selected hosts against the others" : "Selected hosts against the others";
    this.box = box;
    box.dataset.suspects = d.lines.filter((line) => line.suspect).map((line) => line.host).join(" ");
    box.dataset.selected = d.lines.filter((line) => !line.suspect).map((line) => line.host).join(" ");
    this.chart = new Chart(box, {
      height: box.clientHeight || 220,
      padding: [8, RIGHT, 0, 0],
      about: () => ({ metric: d.metric, hosts: names }),
      reach: () => [d.times[0], d.times.at(-1)],
      data: () => [d.times, d.control.high, d.control.low, d.control.median, ...d.lines.map((line) => line.values)],
      series: () => [
        { stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } },
        { stroke: colour("--soft"), width: 1.2, dash: [4, 3], points: { show: false } },
        ...tones.map(([tone, again]) => ({ stroke: colour(tone), width: 1.6, points: { show: false }, dash: again ? [6, 3] : undefined })),
      ],
      behind: (plot) => { const [ctx, x, left, top, width] = onPlot(plot); drawBehind(ctx, x, left, top, width, plot.bbox.height, devicePixelRatio); },
      above: (plot) => { const [ctx, x, left, top, width] = onPlot(plot); drawThrough(ctx, x, left, top, width, plot.bbox.height, devicePixelRatio); },
      bands: () => [{ series: [1, 2], fill: colour("--mute-wash") }],
      range: roomy,
      pointed: (i) => { if (i !== null && i !== undefined) $("overlay-readout").textContent = `${moment(d.times[i])}: ${d.lines.map((line) => `${line.host} ${number(line.values[i])}`).join(", ")}; others ${number(d.control.median[i])} (${number(d.control.low[i])} to ${number(d.control.high[i])})`; },
    });
    const about = $("overlay-about");
    const keys = d.lines.map((line, i) => make("span", { class: `key tone${tones[i][0]}${tones[i][1] ? " again" : ""}`, text: `${line.host}, ${line.suspect ? "suspect" : "selected"}` }));
    const others = d.control.hosts ? [make("span", { class: "key line-control", text: `${d.control.hosts.toLocaleString("en")} ${d.lines.length ? "others" : "hosts"}: median, 5–95 %` })] : [];
    about.replaceChildren(...keys, ...others, ` ${d.metric}${d.unit ? ` in ${d.unit}` : ""}; a point looks back over ${number(d.window)} s; `, queryLinks(d.queries, this.base));
    if (!d.lines.length) about.append(" No host is suspect; select one in the map above.");
    if (d.absent.length) about.append(` ${d.absent.join(", ")} did not report it.`);
    const every = Math.max(1, Math.ceil(d.times.length / 120));
    const rows = () => d.times.map((t, i) => [moment(t), ...d.lines.map((line) => number(line.values[i])), number(d.control.low[i]), number(d.control.median[i]), number(d.control.high[i])]).filter((_, i) => i % every === 0);
    behind($("overlay-table"), () => [table(["time", ...names, "others 5 %", "median", "95 %"], rows(), d.metric)]);
  }
}

// Everything about hosts: begun when it comes into view, begun anew where the verdict changes what is telling.
export function setUpHosts(base) {
  const map = new HeatMap(base);
  let overlay = null, lanes = null, begun = false, known = null;
  const begin = async () => {
    begun = true;
    try {
      const facts = await ask(`${base}/metrics.json`);
      known = facts;
      span.learn(facts.start, facts.end);
      await map.begin(facts);
      overlay ||= new Overlay(base, facts);
      overlay.hosts = facts.accused.slice(0, 8);
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
  document.addEventListener("hostsdrawn", () => {
    if (overlay?.chart) overlay.load();
    // The first map may have been overtaken by another: then its hosts come with that one.
    if (lanes && !$("lanes-host").options.length && known) { lanes.learn(known, map.data.outliers.map((o) => o.host)); lanes.load(); }
  });
  const show = (host) => {
    if (!overlay || !lanes) return;
    overlay.hosts = [host, ...overlay.hosts.filter((h) => h !== host)].slice(0, 8);
    overlay.load();
    lanes.show(host);
  };
  document.addEventListener("host", (event) => show(event.detail));
  document.addEventListener("grown", () => { if (begun) { map.load(true); overlay?.load(); if (lanes?.data) lanes.load(); } });
  document.addEventListener("click", async (event) => {
    const chip = event.target.closest("[data-host]");
    if (!chip) return;
    if (!begun) await begin();
    show(chip.dataset.host);
    $("overlay").scrollIntoView({ block: "start" });
  });
  return { metric: () => $("heat-metric").value, hosts: () => overlay?.hosts || [], query: () => overlay?.query };
}
