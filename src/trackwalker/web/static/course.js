// The course of a run: one chart for each track, the verdict's first, all on the page's one time axis.
"use strict";
import { ask, behind, Chart, colour, cursor, make, moment, number, queryLinks, RIGHT, say, span, table, timed, withUnit, zoomByKeys } from "./charts.js";
import { drawBehind, drawThrough, drawWords, onPlot, story } from "./story.js";

const $ = (id) => document.getElementById(id);
const TALL = 236, SHORT = 92;
const COLOURS = { loss: "--ask", grad: "--ask", rate: "--ask" };

// Values beyond the scale stand at its edge with a triangle; the true number is in the readout and the table.
function held(values, [low, high]) { return values.map((v) => v === null ? null : Math.min(high, Math.max(low, v))); }

function drawBeyond(plot, track) {
  const { ctx, bbox } = plot, dpr = devicePixelRatio, [low, high] = track.range;
  ctx.save();
  ctx.fillStyle = colour("--warn-ink");
  const every = Math.max(1, Math.floor(track.times.length / 1500));
  for (const { values } of track.lines.slice(0, 1)) values.forEach((v, i) => {
    if (v === null || (v <= high && v >= low) || i % every) return;
    const x = plot.valToPos(track.times[i], "x", true), up = v > high, r = 3.5 * dpr;
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    const y = up ? bbox.top + r : bbox.top + bbox.height - r;
    ctx.beginPath(); ctx.moveTo(x, up ? y - r : y + r); ctx.lineTo(x + r, up ? y + r : y - r); ctx.lineTo(x - r, up ? y + r : y - r); ctx.fill();
  });
  ctx.restore();
}

function drawLevels(plot, track) {
  const { ctx, bbox } = plot, dpr = devicePixelRatio;
  if (story.phases.length < 2 || !["tgs", "seconds"].includes(track.key)) return;
  ctx.save();
  ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
  ctx.setLineDash([3 * dpr, 3 * dpr]); ctx.lineWidth = dpr;
  for (const phase of story.phases) {
    const inside = track.lines[0].values.filter((v, i) => v !== null && track.times[i] >= phase.start && track.times[i] <= phase.end).sort((a, b) => a - b);
    if (!inside.length) continue;
    const y = plot.valToPos(inside[inside.length >> 1], "y", true);
    ctx.strokeStyle = colour(phase.slow ? "--warn-ink" : "--soft");
    ctx.beginPath(); ctx.moveTo(plot.valToPos(phase.start, "x", true), y); ctx.lineTo(plot.valToPos(phase.end, "x", true), y); ctx.stroke();
  }
  ctx.restore();
}

// The last point at or before a time; -1 where there is none.
function before(times, t) {
  let low = 0, high = times.length;
  while (low < high) { const middle = (low + high) >> 1; if (times[middle] <= t) low = middle + 1; else high = middle; }
  return low - 1;
}
const nearest = (times, t) => { const i = before(times, t); return i < 0 ? 0 : i + 1 < times.length && times[i + 1] - t < t - times[i] ? i + 1 : i; };

export class Course {
  constructor(base) {
    this.base = base;
    this.charts = new Map();
    this.hidden = new Set();
    this.without = 0;
    zoomByKeys($("timeline-plot"));
    span.watch(() => this.charts.forEach((chart) => chart.shift()));
    cursor.watch((t) => this.read(t));
    document.addEventListener("zonechange", () => { if (this.data) this.tell(); });
    story.watch(() => this.charts.forEach((chart) => chart.plot.redraw()));
  }

  get chart() { return this.charts.values().next().value; }

  async load(recorded) {
    const mine = this.newest = (this.newest || 0) + 1;
    try {
      const data = await ask(`${this.base}/timeline.json`);
      if (mine !== this.newest) return;
      const kept = this.scalars || [];
      this.data = data;
      this.draw([...data.tracks, ...kept.filter((t) => !data.tracks.some((o) => o.key === t.key))]);
    } catch (error) { say($("timeline-plot"), error.message); return; }
    if (recorded) this.more(mine);
  }

  // What the recording adds: it may have to be opened first, and the rest does not wait for that.
  async more(mine) {
    try {
      const { tracks } = await ask(`${this.base}/scalars.json?but=${this.data.tracks.map((t) => t.key).join(",")}`);
      if (mine !== this.newest) return;
      this.scalars = tracks;
      if (tracks.length) this.draw([...this.data.tracks, ...tracks]);
    } catch { /* a recording that cannot be opened is told by the charts of the hosts */ }
  }

  draw(tracks) {
    const d = this.data, box = $("timeline-plot"), rest = $("tracks");
    story.set(d);
    this.tracks = tracks;
    this.charts.forEach((chart) => chart.remove());
    this.charts.clear();
    rest.replaceChildren();
    if (!d.times.length) { say(box, d.complete ? "No step of this run has a known time." : "The times of the steps come with the verdict.", !d.complete); return; }
    const ends = [d.times[0] - d.seconds[0], d.times.at(-1)];
    if (d.start) ends[0] = Math.min(ends[0], d.start);
    if (d.end) ends[1] = Math.max(ends[1], d.end);
    this.ends = ends;
    const [first, ...others] = tracks;
    $("h-timeline").textContent = `${first.title[0].toUpperCase()}${first.title.slice(1)} over time`;
    this.caption($("timeline-about"), first, d.why || (d.complete ? "" : "phases and onsets come with the verdict"));
    this.one(box, first, false);
    for (const track of others) {
      const place = make("div", { class: "plot-box short" });
      const head = make("p", { class: "track-head small" });
      const part = make("div", { class: "track", "data-track": track.key }, head, place);
      rest.append(part);
      this.caption(head, track, "", true);
      if (this.hidden.has(track.key)) part.hidden = true; else this.one(place, track, true);
    }
    this.toggles(others);
    span.learn(...ends);
    this.tell();
    behind($("timeline-table"), () => this.tables());
  }

  caption(place, track, why, named = false) {
    const keys = track.lines.length > 1 ? track.lines.map((line, i) => make("span", { class: `key split-${i}`, text: line.name })) : [];
    place.replaceChildren(...(named ? [make("b", { text: track.title }), " "] : []), ...keys, `${track.unit ? `${track.unit}` : ""}${why ? `${track.unit ? "; " : ""}${why}` : ""} `, make("span", { class: "axis-note" }, timed(track.note)), " ", ...(track.query ? [queryLinks([track.query], this.base)] : []));
  }

  one(box, track, bare) {
    const split = track.stacked;
    const many = track.times.length > box.clientWidth / 12;  // points that would touch each other
    const tone = COLOURS[track.key] || "--accent";
    const colours = split ? ["--accent", "--warn"] : [tone];
    this.charts.set(track.key, new Chart(box, {
      height: bare ? SHORT : box.clientHeight || TALL,
      padding: [bare ? 6 : 52, RIGHT, bare ? 2 : 0, 0],
      bare,
      reach: () => this.ends,
      range: () => track.range,
      data: () => [track.times, ...track.lines.map((line) => held(line.values, track.range))],
      series: () => track.lines.map((line, i) => ({ label: line.name, stroke: colour(colours[i]), fill: split ? `${colour(colours[i])}33` : undefined, width: 1.4, points: { show: !many && !split, size: 5, fill: colour(colours[i]) } })),
      behind: (plot) => { const [ctx, x, left, top, width] = onPlot(plot); drawBehind(ctx, x, left, top, width, plot.bbox.height, devicePixelRatio); drawLevels(plot, track); },
      above: (plot) => {
        const [ctx, x, left, top, width] = onPlot(plot);
        drawThrough(ctx, x, left, top, width, plot.bbox.height, devicePixelRatio);
        drawBeyond(plot, track);
        if (!bare) this.unnamed(drawWords(ctx, x, left, top, width, devicePixelRatio));
      },
    }));
    this.charts.get(track.key).box.dataset.drawn = track.key;
  }

  unnamed(count) { if (count !== this.without) { this.without = count; this.tell(); } }

  tell() {
    const silences = story.silences.map((s) => `${moment(s.start)}: ${s.label}`);
    $("timeline-says").textContent = [...silences, this.without ? `${this.without} mark${this.without === 1 ? " has" : "s have"} no room for words; the table names them.` : ""].filter(Boolean).join(" · ");
  }

  toggles(tracks) {
    const place = $("track-toggles");
    place.replaceChildren(...tracks.map((track) => {
      const button = make("button", { type: "button", class: "toggle", "aria-pressed": String(!this.hidden.has(track.key)), text: track.title });
      button.addEventListener("click", () => {
        if (!this.hidden.delete(track.key)) this.hidden.add(track.key);
        this.draw(this.tracks);
        place.querySelectorAll("button")[tracks.indexOf(track)].focus();
      });
      return button;
    }));
  }

  read(t) {
    if (!this.data?.times.length) return;
    if (t === null) { $("timeline-readout").textContent = ""; return; }
    const d = this.data, at = before(d.times, t) + 1;
    const step = at < d.step.length ? `in step ${d.step[at].toLocaleString("en")}` : `after step ${d.step.at(-1).toLocaleString("en")}`;
    const words = this.tracks.filter((track) => this.charts.has(track.key)).flatMap((track) => {
      const i = nearest(track.times, t);
      return track.lines.map((line) => line.values[i] === null || line.values[i] === undefined ? "" : `${line.name} ${withUnit(line.values[i], track.unit)}`);
    });
    $("timeline-readout").textContent = [`${moment(t)}, ${step}`, ...words.filter(Boolean)].join(" · ");
  }

  tables() {
    const d = this.data, out = [];
    if (d.phases.length) out.push(table(["phase", "from", "to", "step time (s)", "steps"], d.phases.map((p) => [p.slow ? "slow" : "full speed", moment(p.start), moment(p.end), number(p.seconds), `${p.first}–${p.last}`]), "Phases"));
    if (d.marks.length) out.push(table(["what", "when", "host"], d.marks.slice(0, 200).map((m) => [m.label, moment(m.time), m.host]), "Marks"));
    for (const track of this.tracks) {
      const every = Math.max(1, Math.ceil(track.times.length / 200));
      const rows = track.times.map((t, i) => [moment(t), track.steps[i] === undefined || track.steps[i] === null ? "–" : String(track.steps[i]), ...track.lines.map((line) => number(line.values[i]))]).filter((_, i) => i % every === 0);
      out.push(table(["time", "step", ...track.lines.map((line) => `${line.name}${track.unit ? `, ${track.unit}` : ""}`)], rows, every > 1 ? `${track.title}: every ${every}th point` : track.title));
    }
    return out;
  }
}
