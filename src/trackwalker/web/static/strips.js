// Below the course, on the same axis: how much the log says and how bad it is, saves, and the journal's events.
"use strict";
import { ask, behind, colour, cursor, left, make, moment, number, openMoment, RIGHT, span, table, timeAxis, zoomByKeys } from "./charts.js";
import { drawBehind, drawThrough, inView, story } from "./story.js";

const $ = (id) => document.getElementById(id);
const ROW = 30, AXIS = 20;

// A canvas that follows the span and the cursor; `paint(ctx, x, from, to)` draws it.
export class Strip {
  constructor(box, paint) {
    this.box = box;
    this.paint = paint;
    this.line = make("div", { class: "cursor-line" });
    for (const event of ["themechange", "zonechange"]) document.addEventListener(event, () => this.draw());
    span.watch(() => this.draw());
    story.watch(() => this.draw());
    cursor.watch((t) => this.point(t));
    new ResizeObserver(() => { if (this.canvas && Math.abs(this.canvas.clientWidth - box.clientWidth) > 1) this.draw(); }).observe(box);
  }

  x(t) { return left() + (this.wide - left() - RIGHT) * (t - span.from) / (span.to - span.from); }
  time(px) { return span.from + (px - left()) / (this.wide - left() - RIGHT) * (span.to - span.from); }

  draw() {
    const high = this.high?.();
    if (!high || !span.known() || !this.box.clientWidth) return;
    if (!this.canvas?.isConnected) {
      this.canvas = make("canvas", { "aria-hidden": "true" });
      this.box.replaceChildren(make("div", { class: "strip-inner" }, this.canvas, this.line));
      this.listen();
    }
    this.wide = Math.max(this.box.clientWidth, 240);
    const dpr = devicePixelRatio, { canvas } = this;
    canvas.width = this.wide * dpr; canvas.height = high * dpr;
    canvas.style.width = `${this.wide}px`; canvas.style.height = `${high}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(dpr, dpr);
    this.paint(ctx, (t) => this.x(t), left(), this.wide - RIGHT);
    this.point(cursor.t);
  }

  listen() {
    let begun = null;
    const at = (event) => event.clientX - this.canvas.getBoundingClientRect().left;
    const inside = (px) => px >= left() && px <= this.wide - RIGHT;
    this.canvas.addEventListener("pointerdown", (event) => { begun = at(event); });
    this.canvas.addEventListener("pointermove", (event) => cursor.set(inside(at(event)) ? this.time(at(event)) : null));
    this.canvas.addEventListener("pointerleave", () => cursor.set(null));
    this.canvas.addEventListener("pointerup", (event) => {
      const here = at(event);
      if (begun !== null && Math.abs(here - begun) > 5) span.set(Math.min(this.time(here), this.time(begun)), Math.max(this.time(here), this.time(begun)));
      else if (begun !== null && inside(here)) openMoment(this.time(here), this.about?.(event) || {});
      begun = null;
    });
    this.canvas.addEventListener("dblclick", () => span.all());
  }

  point(t) {
    const shown = t !== null && this.canvas && inView(t);
    this.line.style.display = shown ? "block" : "none";
    if (shown) this.line.style.left = `${this.x(t)}px`;
  }
}

export class Happenings extends Strip {
  constructor(base) {
    super($("strips"), (ctx, x, from, to) => this.rows(ctx, x, from, to));
    this.base = base;
    zoomByKeys($("strips"));
    span.watch(() => { clearTimeout(this.later); this.later = setTimeout(() => this.load(), 350); });
  }

  high() { return this.list().length * ROW + AXIS; }
  list() {
    const saves = story.marks.filter((m) => m.kind === "checkpoint");
    return [...(this.data ? ["log"] : []), ...(saves.length ? ["saves"] : []), ...(this.events?.length ? ["events"] : [])];
  }

  // `ready`: the verdict is there, or none will be; until then nothing else reads the whole log.
  take(events, ready) { this.events = events; this.ready ||= ready; this.draw(); if (!this.data) this.load(); }

  async load() {
    if (!this.ready) return;
    const mine = this.newest = (this.newest || 0) + 1;
    try {
      const data = await ask(`${this.base}/density.json?${span.query().slice(1)}`);
      if (mine !== this.newest) return;
      this.data = data.lines.length ? data : null;
      if (!this.data) $("strips-about").textContent = data.note;
    } catch (error) {
      if (mine !== this.newest) return;
      this.data = null;
      $("strips-about").textContent = error.message;
    }
    this.draw();
    behind($("strips-table"), () => this.tables());
    const d = this.data, sum = (list) => list.reduce((a, b) => a + b, 0);
    if (d) $("strips-about").textContent = `${sum(d.lines).toLocaleString("en")} log lines in view, ${sum(d.errors).toLocaleString("en")} of them errors, ${sum(d.warnings).toLocaleString("en")} warnings; a click opens the log there. ${d.note}`;
    this.box.dataset.drawn = "yes";
  }

  rows(ctx, x, from, to) {
    const list = this.list(), high = list.length * ROW;
    ctx.clearRect(0, 0, this.wide, high + AXIS);
    drawBehind(ctx, x, from, 0, to - from, high);
    list.forEach((name, i) => {
      const top = i * ROW;
      ctx.fillStyle = colour("--rule"); ctx.fillRect(from, top + ROW - 1, to - from, 1);
      ctx.font = "11px system-ui, sans-serif"; ctx.textBaseline = "middle"; ctx.textAlign = "right"; ctx.fillStyle = colour("--soft");
      ctx.fillText({ log: left() < 100 ? "log" : "log lines, errors", saves: "saves", events: "events" }[name], from - 8, top + ROW / 2);
      ctx.save();
      ctx.beginPath(); ctx.rect(from, top, to - from, ROW); ctx.clip();
      this[`${name}Row`](ctx, x, top);
      ctx.restore();
    });
    drawThrough(ctx, x, from, 0, to - from, high);
    timeAxis(ctx, span.from, span.to, from, to, high, -4);
  }

  logRow(ctx, x, top) {
    const d = this.data, most = Math.max(1, ...d.lines), size = (n) => n ? Math.max(2, (ROW - 6) * Math.sqrt(n / most)) : 0;
    const bar = (list, tone) => {
      ctx.fillStyle = colour(tone);
      list.forEach((n, i) => { if (n) ctx.fillRect(x(d.times[i]), top + ROW - 2 - size(n), Math.max(1.5, x(d.times[i + 1]) - x(d.times[i]) - 0.5), size(n)); });
    };
    bar(d.lines, "--lane"); bar(d.warnings, "--warn"); bar(d.errors, "--bad");
  }

  // The last save first: it decides what is lost. A word that would run into the next diamond is left out.
  savesRow(ctx, x, top) {
    ctx.fillStyle = colour("--good"); ctx.font = "11px system-ui, sans-serif"; ctx.textAlign = "left"; ctx.textBaseline = "middle";
    const saves = story.marks.filter((mark) => mark.kind === "checkpoint" && inView(mark.time)).sort((a, b) => b.time - a.time);
    let free = this.wide - RIGHT;
    for (const [i, mark] of saves.entries()) {
      const at = x(mark.time), y = top + ROW / 2, r = 4;
      if (i && free - at < 2 * r + 1) continue;
      ctx.beginPath(); ctx.moveTo(at, y - r); ctx.lineTo(at + r, y); ctx.lineTo(at, y + r); ctx.lineTo(at - r, y); ctx.fill();
      const text = mark.label.replace(/^checkpoint/, "").trim(), wide = ctx.measureText(text).width, fits = at + 8 + wide < free - r;
      if (fits || !i) ctx.fillText(text, fits ? at + 8 : at - 8 - wide, y);
      free = fits || i ? at : at - 8 - wide;
    }
  }

  eventsRow(ctx, x, top) {
    let free = -Infinity;
    for (const event of this.events) {
      const at = x(event.time);
      ctx.fillStyle = colour(/exit|fail|error|lost|kill/.test(event.kind) ? "--bad" : "--soft");
      ctx.fillRect(at - 0.75, top + 4, 1.5, ROW - 10);
      const words = event.stage && event.stage !== event.kind ? `${event.kind} ${event.stage}` : event.kind;
      if (at < free) continue;
      ctx.font = "11px system-ui, sans-serif"; ctx.textAlign = "left"; ctx.textBaseline = "middle";
      const wide = ctx.measureText(words).width, back = at + 4 + wide > this.wide - RIGHT;
      if (back && at - wide - 8 < free) continue;
      ctx.fillText(words, back ? at - wide - 4 : at + 4, top + ROW / 2 - 1);
      free = at + wide + 16;
    }
  }

  tables() {
    const d = this.data;
    if (!d) return [];
    const rows = d.lines.map((n, i) => [moment(d.times[i]), number(n), number(d.warnings[i]), number(d.errors[i])]).filter((row) => row[1] !== "0");
    return [table(["from", "lines", "warnings", "errors"], rows, "Lines of the log over time")];
  }
}
