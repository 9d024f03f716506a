// What is drawn through every chart of a job: slow phases, silences, the onset of a cause, restarts and ends.
"use strict";
import { colour, span } from "./charts.js";

export const story = {
  phases: [], silences: [], marks: [], watchers: [],
  watch(tell) { this.watchers.push(tell); },
  set({ phases, silences, marks }) { Object.assign(this, { phases, silences: silences || [], marks }); this.watchers.forEach((tell) => tell()); },
};
const MARKS = { onset: ["--bad", "▼"], exit: ["--bad", "✕"], restart: ["--warn", "↻"], cancel: ["--soft", "■"], end: ["--soft", "▮"] };
const ORDER = ["onset", "exit", "restart", "cancel", "end"];

// The ranks of a job end together: marks of one kind within a few pixels are one.
function flags(x, near) {
  const out = [];
  const seen = story.marks.filter((m) => m.kind !== "checkpoint").sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind) || a.time - b.time);
  for (const mark of seen) {
    const last = out.at(-1), at = x(mark.time);
    if (last && last.mark.kind === mark.kind && Math.abs(last.at - at) < near) last.more += 1;
    else out.push({ mark, at, more: 0 });
  }
  return out;
}

// Behind the data of a chart: `x` maps a time to a pixel of the canvas.
export function drawBehind(ctx, x, left, top, width, height, scale = 1) {
  ctx.save();
  ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
  ctx.fillStyle = colour("--warn-wash");
  for (const phase of story.phases) if (phase.slow) ctx.fillRect(x(phase.start), top, x(phase.end) - x(phase.start), height);
  ctx.strokeStyle = colour("--hatch"); ctx.globalAlpha = 0.35; ctx.lineWidth = scale;
  for (const silence of story.silences) {
    const a = Math.max(left, x(silence.start)), b = Math.min(left + width, x(silence.end));
    ctx.save();
    ctx.beginPath(); ctx.rect(a, top, b - a, height); ctx.clip();
    ctx.beginPath();
    for (let at = a - height; at < b; at += 9 * scale) { ctx.moveTo(at, top + height); ctx.lineTo(at + height, top); }
    ctx.stroke();
    ctx.restore();
  }
  ctx.restore();
}

// Over the data: a line for each moment that counts.
export function drawThrough(ctx, x, left, top, width, height, scale = 1) {
  ctx.save();
  ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
  for (const { mark, at } of flags(x, 8 * scale)) {
    ctx.strokeStyle = colour((MARKS[mark.kind] || MARKS.end)[0]); ctx.lineWidth = (mark.kind === "onset" ? 1.5 : 1) * scale;
    ctx.setLineDash(mark.kind === "onset" ? [5 * scale, 3 * scale] : []);
    ctx.beginPath(); ctx.moveTo(at, top); ctx.lineTo(at, top + height); ctx.stroke();
  }
  ctx.restore();
}

// Above the first chart: words for phases and marks. Returns how many marks found no room for theirs.
export function drawWords(ctx, x, left, top, width, scale) {
  const right = left + width, taken = [[], [], []];
  const place = (text, at, rows) => {
    const wide = ctx.measureText(text).width;
    const from = Math.max(left, at + wide > right ? at - wide + 4 * scale : at - 4 * scale);
    const row = rows.find((k) => from + wide <= right + 6 * scale && taken[k].every(([a, b]) => from > b + 8 * scale || from + wide < a - 8 * scale));
    if (row === undefined) return false;
    taken[row].push([from, from + wide]);
    ctx.fillText(text, from, top - (11 + 14 * row) * scale);
    return true;
  };
  let without = 0;
  ctx.save();
  ctx.textBaseline = "middle"; ctx.textAlign = "left";
  for (const { mark, at, more } of flags(x, 8 * scale)) {
    if (at < left - scale || at > right + scale) continue;  // the end of the run is the right edge, but for a rounding
    const [, sign] = MARKS[mark.kind] || MARKS.end, grave = mark.kind === "onset" || mark.kind === "exit";
    ctx.font = `${mark.kind === "onset" ? 600 : 400} ${11 * scale}px system-ui, sans-serif`;
    ctx.fillStyle = colour(grave ? "--bad-ink" : "--soft");
    const words = `${sign} ${mark.label}${mark.host ? ` · ${mark.host}` : ""}`.slice(0, 60) + (more ? ` and ${more} more` : "");
    if (!place(words, at, [1, 2]) && !place(`${sign} ${mark.kind}`, at, [1, 2])) without += 1 + more;
  }
  // The phases' own row lies next to the plot.
  ctx.textAlign = "center"; ctx.font = `${11 * scale}px system-ui, sans-serif`;
  for (const phase of story.phases) {
    const a = Math.max(left, x(phase.start)), b = Math.min(right, x(phase.end));
    ctx.fillStyle = colour(phase.slow ? "--warn-ink" : "--soft");
    const text = [phase.label, phase.label.replace(/ \(.*/, ""), phase.slow ? "slow" : ""].find((t) => t && ctx.measureText(t).width + 8 * scale < b - a);
    if (text) ctx.fillText(text, (a + b) / 2, top - 8 * scale);
    ctx.fillRect(a, top - 2 * scale, Math.max(0, b - a - scale), 2 * scale);
  }
  ctx.restore();
  return without;
}

// uPlot's canvas counts device pixels.
export const onPlot = (plot) => [plot.ctx, (t) => plot.valToPos(t, "x", true), plot.bbox.left, plot.bbox.top, plot.bbox.width];
export const inView = (t) => t >= span.from && t <= span.to;
