// The devices of one host: those that move, on the page's time axis, each with its peak and its last value.
"use strict";
import { ask, behind, clock, colour, left, make, moment, number, queryLinks, roomy, say, span, table, timeAxis, withUnit } from "./charts.js";
import { drawBehind, drawThrough } from "./story.js";
import { Strip } from "./strips.js";

const $ = (id) => document.getElementById(id);
const AXIS = 22;

// The end of a name tells devices apart: words in front go first, then letters.
function short(name, most) {
  const words = name.split(" ");
  while (words.length > 1 && words.join(" ").length > most) words.shift();
  const rest = words.join(" ");
  return rest.length > most ? `…${rest.slice(1 - most)}` : rest;
}

export class Lanes extends Strip {
  constructor(base, facts, hosts) {
    super($("lanes"), (ctx, x, from, to) => this.lanes(ctx, x, from, to));
    this.base = base;
    this.newest = 0;
    this.touched = false;  // whether the viewer chose a host or a metric
    this.learn(facts, hosts);
    for (const id of ["lanes-host", "lanes-metric"]) $(id).addEventListener("change", () => { this.touched = true; this.load(); });
    span.watch(() => { clearTimeout(this.later); this.later = setTimeout(() => { if (this.data) this.load(); }, 400); });
  }

  learn(facts, hosts) {
    const ofDevices = facts.metrics.filter((m) => /gpu|rdma|net_/.test(m));
    const telling = facts.telling.find((m) => /gpu|rdma|net_/.test(m)) || facts.gpu;
    this.fill($("lanes-host"), hosts, hosts[0]);
    const narrowed = facts.telling.filter((m) => m.includes("{") && /gpu|rdma|net_/.test(m));
    this.fill($("lanes-metric"), [...narrowed, ...(ofDevices.length ? ofDevices : facts.metrics)], telling);
  }

  fill(select, names, first) {
    const kept = this.touched && names.includes(select.value) ? select.value : names.includes(first) ? first : names[0];
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

  about() { return { metric: $("lanes-metric").value, hosts: [$("lanes-host").value] }; }

  async load() {
    const host = $("lanes-host").value, metric = $("lanes-metric").value, mine = ++this.newest;
    if (!host || !metric) { say($("lanes"), "Nothing about devices was recorded."); return; }
    try {
      const data = await ask(`${this.base}/lanes.json?host=${encodeURIComponent(host)}&metric=${encodeURIComponent(metric)}${span.query()}`);
      if (mine !== this.newest) return;
      this.data = data;
      this.tell();
      this.draw();
      this.box.dataset.drawn = metric;
    } catch (error) { if (mine === this.newest) { this.data = null; say($("lanes"), error.message); } }
  }

  tell() {
    const d = this.data, zero = d.zero.length, count = d.lanes.length;
    if (!count) { this.canvas?.remove(); say(this.box, zero ? `${zero === 1 ? "It is" : `All ${zero} are`} zero in the time shown.` : `${d.host} has nothing of ${d.metric} in the time shown.`); }
    $("lanes-about").replaceChildren(
      `${d.metric}${d.unit ? ` in ${d.unit}` : ""}, ${count} of ${d.host}${d.left_out ? `, ${d.left_out} more left out` : ""}, one scale for all; a dashed line is their median; a point looks back over ${number(d.window)} s; `,
      queryLinks(d.queries, this.base));
    const fold = $("lanes-zero");
    fold.hidden = !zero && !d.silent.length;
    fold.querySelector("summary").textContent = [zero ? `${zero} zero all the time` : "", d.silent.length ? `${d.silent.length} without a value` : ""].filter(Boolean).join(", ");
    fold.querySelector("p").textContent = [...d.zero, ...d.silent.map((name) => `${name} (no value)`)].join(" · ");
    this.box.setAttribute("role", "group");
    this.box.setAttribute("aria-label", d.lanes.map((lane) => `${lane.name}: peak ${withUnit(lane.peak, d.unit)} at ${clock(lane.peak_at)}, last ${withUnit(lane.last, d.unit)}`).join("; ") || this.box.textContent);
    const rows = () => d.lanes.map((lane) => [lane.name, number(lane.low), number(lane.peak), moment(lane.peak_at), number(lane.last), moment(lane.last_at)]);
    behind($("lanes-table"), () => [table(["device", "lowest", "highest", "highest at", "last", "last at"], rows(), `${d.metric} of ${d.host}${d.unit ? `, ${d.unit}` : ""}`)]);
  }

  row() { return this.data.lanes.length > 12 ? 27 : 34; }
  high() { return this.data?.lanes.length ? this.row() * this.data.lanes.length + AXIS : 0; }

  lanes(ctx, x, from, to) {
    const d = this.data, row = this.row(), high = row * d.lanes.length;
    ctx.clearRect(0, 0, this.wide, high + AXIS);
    const hi = Math.max(...d.lanes.map((lane) => lane.peak)), lo = Math.min(...d.lanes.map((lane) => lane.low));
    const [floor] = roomy(null, lo, hi);
    const middle = d.times.map((_, i) => { const v = d.lanes.map((lane) => lane.values[i]).filter((n) => n !== null).sort((a, b) => a - b); return v.length ? v[v.length >> 1] : null; });
    const ground = to - from;
    d.lanes.forEach((_, k) => { ctx.fillStyle = colour("--faint"); ctx.fillRect(from, 2 + k * row, ground, row - 4); });
    drawBehind(ctx, x, from, 0, ground, high);
    d.lanes.forEach((lane, k) => {
      const top = 2 + k * row, y = (v) => top + row - 6 - (row - 10) * (v - floor) / ((hi - floor) || 1);
      ctx.save();
      ctx.beginPath(); ctx.rect(from, top - 1, ground, row); ctx.clip();
      const line = (values, token, dash) => {
        ctx.strokeStyle = colour(token); ctx.setLineDash(dash); ctx.lineWidth = dash.length ? 1 : 1.3; ctx.beginPath();
        let open = false;
        values.forEach((v, i) => { if (v === null) { open = false; return; } if (open) ctx.lineTo(x(d.times[i]), y(v)); else ctx.moveTo(x(d.times[i]), y(v)); open = true; });
        ctx.stroke(); ctx.setLineDash([]);
      };
      if (d.lanes.length > 2) line(middle, "--soft", [3, 3]);
      line(lane.values, "--accent", []);
      ctx.restore();
      ctx.font = "11px ui-monospace, Menlo, Consolas, \"DejaVu Sans Mono\", monospace"; ctx.textBaseline = "middle";
      const most = Math.floor((left() - 8) / ctx.measureText("0").width);
      ctx.fillStyle = colour("--fg"); ctx.textAlign = "right"; ctx.fillText(short(lane.name, most), from - 8, top + row / 2 - 8);
      // Below its name, never over its line: the highest and the last value. What ended is not what it is now.
      ctx.font = "10px system-ui, sans-serif"; ctx.fillStyle = colour("--soft");
      ctx.fillText(left() < 100 ? `▲ ${number(lane.peak)}` : `peak ${number(lane.peak)}, last ${number(lane.last)}`, from - 8, top + row / 2 + 4);
    });
    drawThrough(ctx, x, from, 0, ground, high);
    timeAxis(ctx, span.from, span.to, from, to, high, -4);
  }
}
