// The query box: PromQL in, chart and table out. Prometheus' own words are shown as text, never as markup.
"use strict";
import { ask, Chart, colour, LINES, make, moment, number, roomy, say, span, table } from "./charts.js";

const $ = (id) => document.getElementById(id);

export function setUpQuery(base, alone = false) {
  const form = $("query-form"), text = $("query-text"), mode = $("query-mode"), place = $("query-answer");
  let chart = null, running = null;

  const run = async () => {
    running?.abort();
    running = new AbortController();
    chart?.remove();
    chart = null;
    say(place, "Asking", true);
    try {
      show(await ask(`${base}/query.json?q=${encodeURIComponent(text.value)}&mode=${mode.value}${span.query()}`, running.signal));
    } catch (error) {
      if (error.name !== "AbortError") place.replaceChildren(make("p", { class: "card bad", role: "alert", id: "query-error", text: error.message }));
    }
  };

  const show = (d) => {
    const name = (labels) => Object.entries(labels).filter(([k]) => k !== "__name__").map(([k, v]) => `${k}=${v}`).join(" ") || labels.__name__ || "value";
    const parts = [make("p", { class: "soft small", text: `${d.total.toLocaleString("en")} series in ${number(d.seconds)} s; ${d.step ? `${moment(d.start)} to ${moment(d.end)}, every ${number(d.step)} s` : `at ${moment(d.end)}`}. ${d.note}` })];
    const drawn = d.series.filter((s) => s.values);
    const box = make("div", { class: "plot-box", role: "group", "aria-label": "The answer over time; the table below has the numbers" });
    if (d.step && drawn.length) parts.push(box);
    if (d.series.length) parts.push(table(["series", "last", "lowest", "mean", "highest"], d.series.map((s, i) => [make("span", { class: i < drawn.length && d.step ? `key tone${LINES[i % LINES.length]}` : "", text: name(s.labels) }), number(s.last), number(s.min), number(s.mean), number(s.max)]), `Answer to ${d.query}`.slice(0, 200)));
    place.replaceChildren(...parts);
    if (!d.step || !drawn.length) return;
    if (!alone) span.learn(d.start, d.end);
    chart = new Chart(box, {
      height: 220,
      alone: true,
      reach: () => [d.start, d.end],
      range: roomy,
      data: () => [d.times, ...drawn.map((s) => s.values)],
      series: () => drawn.map((_, i) => ({ stroke: colour(LINES[i % LINES.length]), width: 1.4, dash: i >= LINES.length ? [6, 3] : undefined, points: { show: false } })),
    });
  };

  form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-query]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    text.value = link.dataset.query;
    mode.value = link.dataset.instant ? "instant" : "range";
    form.closest("section").scrollIntoView({ block: "start" });
    text.focus({ preventScroll: true });
    run();
  });
  if (alone && text.value.trim()) run();
}

const page = $("job");
if (page?.dataset.alone) setUpQuery(page.dataset.base, true);
