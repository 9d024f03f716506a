// The job page: swaps in the verdict when it is there, and draws each chart when it comes into view.
"use strict";
import { ask, behind, Chart, clock, colour, LEFT, make, moment, number, RIGHT, say, span, table, zoomByKeys } from "./charts.js";
import { setUpHosts } from "./job_hosts.js";
import { setUpQuery } from "./query.js";

const $ = (id) => document.getElementById(id);
const page = $("job"), base = page.dataset.base;

// The page's own address keeps the zoom, so that a link shows what its sender saw.
const asked = new URLSearchParams(location.search);
let wanted = asked.get("from") && asked.get("to") ? [Number(asked.get("from")), Number(asked.get("to"))] : null;
span.watch(() => {
  if (wanted && span.known()) { const [from, to] = wanted; wanted = null; if (to > from) return void span.set(from, to); }
  const url = new URL(location.href);
  for (const [name, value] of [["from", span.from], ["to", span.to]]) {
    if (span.zoomed()) url.searchParams.set(name, value.toFixed(0)); else url.searchParams.delete(name);
  }
  history.replaceState(null, "", url);
});
document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => span.act(button.dataset.zoom)));

// ---- the throughput timeline
const timeline = { data: null, chart: null };
const MARKS = { onset: ["--bad", "▼"], exit: ["--bad", "✕"], restart: ["--warn", "↻"], cancel: ["--soft", "■"], end: ["--soft", "▮"] };

function quantile(sorted, q) { return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : 0; }

function levels(values) {
  // A save's long step must not flatten the rest: the middle of the values sets the scale, with a quarter of it at least.
  const sorted = values.filter((v) => v !== null).sort((a, b) => a - b);
  const low = quantile(sorted, 0.03), high = quantile(sorted, 0.97);
  const wide = Math.max(high - low, 0.25 * high, 1e-9);
  const from = low - 0.35 * wide;
  return [from < 0.5 * high ? 0 : from, high + 0.2 * wide];
}

function drawPhases(plot, values) {
  const { ctx, bbox } = plot, d = timeline.data;
  ctx.save();
  ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
  for (const phase of d.phases) {
    const a = plot.valToPos(phase.start, "x", true), b = plot.valToPos(phase.end, "x", true);
    if (phase.slow) { ctx.fillStyle = colour("--warn-wash"); ctx.fillRect(a, bbox.top, b - a, bbox.height); }
    const inside = values.filter((v, i) => v !== null && d.times[i] >= phase.start && d.times[i] <= phase.end).sort((x, y) => x - y);
    if (!inside.length || d.phases.length < 2) continue;
    const y = plot.valToPos(quantile(inside, 0.5), "y", true);
    ctx.strokeStyle = colour(phase.slow ? "--warn-ink" : "--soft"); ctx.lineWidth = devicePixelRatio; ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath(); ctx.moveTo(a, y); ctx.lineTo(b, y); ctx.stroke();
    phase.level = quantile(inside, 0.5);
  }
  ctx.restore();
}

function drawMarks(plot) {
  const { ctx, bbox } = plot, d = timeline.data, dpr = devicePixelRatio;
  const font = (weight) => `${weight} ${11 * dpr}px system-ui, sans-serif`;
  const seen = (t) => t >= plot.scales.x.min && t <= plot.scales.x.max;
  ctx.save();
  ctx.textBaseline = "middle"; ctx.textAlign = "left";
  // Checkpoints lie on the floor; what began or ended stands above the plot, labels where there is room.
  ctx.fillStyle = colour("--good");
  for (const mark of d.marks) {
    if (mark.kind !== "checkpoint" || !seen(mark.time)) continue;
    const x = plot.valToPos(mark.time, "x", true), y = bbox.top + bbox.height - 5 * dpr, r = 4 * dpr;
    ctx.beginPath(); ctx.moveTo(x, y - r); ctx.lineTo(x + r, y); ctx.lineTo(x, y + r); ctx.lineTo(x - r, y); ctx.fill();
  }
  const taken = [[], []];
  const order = ["onset", "exit", "restart", "cancel", "end"];
  const flags = d.marks.filter((m) => m.kind !== "checkpoint" && seen(m.time)).sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind) || a.time - b.time);
  let last = null;
  for (const mark of flags) {
    const [token, sign] = MARKS[mark.kind] || MARKS.end, x = plot.valToPos(mark.time, "x", true);
    if (last && last.kind === mark.kind && Math.abs(last.x - x) < 8 * dpr) continue;  // the ranks of a job end together
    last = { kind: mark.kind, x };
    ctx.strokeStyle = colour(token); ctx.lineWidth = 1.3 * dpr;
    ctx.setLineDash(mark.kind === "onset" ? [5 * dpr, 3 * dpr] : []);
    ctx.beginPath(); ctx.moveTo(x, bbox.top - 4 * dpr); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    ctx.setLineDash([]);
    ctx.font = font(mark.kind === "onset" ? 600 : 400);
    const text = `${sign} ${mark.label}${mark.host ? ` · ${mark.host}` : ""}`.slice(0, 60);
    const width = ctx.measureText(text).width;
    const left = x + width > bbox.left + bbox.width ? x - width + 4 * dpr : x - 4 * dpr;
    const row = taken.findIndex((spans) => spans.every(([a, b]) => left > b + 8 * dpr || left + width < a - 8 * dpr));
    if (row < 0) continue;
    taken[row].push([left, left + width]);
    ctx.fillStyle = colour(mark.kind === "onset" || mark.kind === "exit" ? "--bad-ink" : "--soft");
    ctx.fillText(text, left, bbox.top - (11 + 14 * row) * dpr);
  }
  ctx.restore();
}

function drawTimeline() {
  const d = timeline.data, box = $("timeline-plot");
  const what = $("timeline-what");
  if (!d.tgs) { what.value = "seconds"; what.disabled = true; }
  if (!d.times.length) { say(box, d.complete ? "No step of this run has a known time." : "The times of the steps come with the verdict.", !d.complete); return; }
  const values = what.value === "tgs" ? d.tgs : d.seconds;
  const name = what.value === "tgs" ? "tokens/s/device" : "seconds a step";
  $("timeline-about").textContent = `${name}, over wall time${d.complete ? "" : "; phases and onsets come with the verdict"}`;
  const ends = [d.times[0] - d.seconds[0], d.times.at(-1)];
  if (d.start) ends[0] = Math.min(ends[0], d.start);
  if (d.end) ends[1] = Math.max(ends[1], d.end);
  timeline.chart?.remove();
  const range = levels(values);
  timeline.chart = new Chart(box, {
    height: box.clientHeight || 250,
    padding: [36, RIGHT, 0, 0],
    left: LEFT,
    reach: () => ends,
    range: () => range,
    data: () => [d.times, values],
    series: () => [{ label: name, stroke: colour("--accent"), width: 1.4, points: { show: d.times.length < 90, size: 5, fill: colour("--accent") } }],
    behind: (plot) => drawPhases(plot, values),
    above: drawMarks,
    pointed: (i) => {
      $("timeline-readout").textContent = i === null || i === undefined ? "" : `step ${d.step[i].toLocaleString("en")} ended ${moment(d.times[i])}: ${number(d.seconds[i])} s${d.tgs && d.tgs[i] !== null ? `, ${number(d.tgs[i])} tokens/s/device` : ""}`;
    },
  });
  span.learn(...ends);
  behind($("timeline-table"), () => timelineTables(d));
}

function timelineTables(d) {
  const out = [];
  if (d.phases.length) out.push(table(["phase", "from", "to", "step time (s)", "steps"], d.phases.map((p) => [p.slow ? "slow" : "full speed", moment(p.start), moment(p.end), number(p.seconds), `${p.first}–${p.last}`]), "Phases"));
  if (d.marks.length) out.push(table(["what", "when", "host"], d.marks.slice(0, 200).map((m) => [m.label, moment(m.time), m.host]), "Marks"));
  const every = Math.max(1, Math.ceil(d.times.length / 200));
  const rows = d.times.map((t, i) => [String(d.step[i]), moment(t), number(d.seconds[i]), d.tgs ? number(d.tgs[i]) : "–"]).filter((_, i) => i % every === 0);
  out.push(table(["step", "ended", "seconds", "tokens/s/device"], rows, every > 1 ? `Every ${every}th of the drawn steps` : "Steps"));
  return out;
}

async function loadTimeline() {
  try {
    timeline.data = await ask(`${base}/timeline.json`);
    drawTimeline();
  } catch (error) { say($("timeline-plot"), error.message); }
}
$("timeline-what").addEventListener("change", () => timeline.data && drawTimeline());
zoomByKeys($("timeline-plot"));
span.watch(() => timeline.chart?.shift());

// ---- the verdict
function swap(parts) {
  for (const part of parts.querySelectorAll("[data-for]")) {
    const place = $(part.dataset.for);
    if (part.dataset.for === "head") place.replaceWith(...part.childNodes); else place.replaceChildren(...part.childNodes);
    window.trackwalker.showTimes($(part.dataset.for));
  }
}

async function verdict() {
  for (let wait = ""; ; wait = "wait=1") {
    const missing = page.dataset.first === "missing";
    const answer = await fetch(`${base}/verdict?${wait}${missing ? "&first=missing" : ""}`, { headers: { Accept: "application/json" } });
    if (answer.status === 200) {
      swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
      break;
    }
    const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
    const line = $("progress");
    if (!body.wait) {
      if (line) { line.classList.remove("spinner"); line.textContent = `No verdict: ${body.error}`; }
      $("verdict").setAttribute("aria-busy", "false");
      return;
    }
    if (line) line.textContent = body.progress;
    if (body.parts) { swap(new DOMParser().parseFromString(body.parts, "text/html")); page.dataset.first = "there"; }
    else if (missing) await new Promise((go) => setTimeout(go, 300));
  }
  $("verdict").setAttribute("aria-busy", "false");
  page.dataset.complete = "yes"; page.dataset.first = "there";
  await loadTimeline();
  document.dispatchEvent(new CustomEvent("verdict"));
}

// ---- parts that are read when they come into view
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    loadPart(entry.target, entry.target.dataset.part);
  }
}, { rootMargin: "300px" });

async function loadPart(place, url) {
  try {
    const answer = await fetch(url);
    const text = await answer.text();
    if (!answer.ok) throw new Error(answer.headers.get("content-type")?.includes("json") ? JSON.parse(text).error : `the server answered ${answer.status}`);
    place.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
    window.trackwalker.showTimes(place);
  } catch (error) { say(place, error.message); }
}
document.querySelectorAll("[data-part]").forEach((place) => seen.observe(place));

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.swap) return;
  event.preventDefault();
  loadPart($(form.dataset.swap), `${form.action}?${new URLSearchParams(new FormData(form))}`);
});

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    try { await navigator.clipboard.writeText(copy.dataset.copy); copy.textContent = "Copied"; } catch { getSelection().selectAllChildren(copy.previousElementSibling); copy.textContent = "Selected"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }
});

if (page.dataset.complete === "yes") loadTimeline();
else { loadTimeline(); verdict().catch((error) => { const line = $("progress"); if (line) line.textContent = error.message; }); }
// A running job is looked at again, while somebody looks at its page.
if (page.dataset.live === "yes") setInterval(() => { if (!document.hidden && page.dataset.complete === "yes") verdict().catch(() => {}); }, 70_000);
if (page.dataset.recorded === "yes") { setUpHosts(base); setUpQuery(base); }
// For whoever looks with the console open, and for the browser tests.
window.jobPage = { span, timeline, clock, make };
