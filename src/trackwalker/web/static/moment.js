// What lies behind one moment of the charts: the log there, the stored samples, the query. Opened by a click or Enter.
"use strict";
import { ask, make, moment, number, table, cursor } from "./charts.js";

const $ = (id) => document.getElementById(id);
const AROUND = 60;  // seconds on each side that the query page shows, at least

export function setUpMoment(base, facts) {
  const box = $("moment");
  let from = null, newest = 0;

  const close = () => { box.hidden = true; newest += 1; from?.focus?.(); from = null; };

  const samples = async (t, metric, hosts, place) => {
    const mine = newest;
    place.replaceChildren(make("p", { class: "soft spinner", text: `Reading the stored samples of ${metric}` }));
    try {
      const d = await ask(`${base}/raw.json?metric=${encodeURIComponent(metric)}&at=${t.toFixed(3)}${hosts.map((h) => `&host=${encodeURIComponent(h)}`).join("")}`);
      if (mine !== newest) return;
      if (!d.series.length) { place.replaceChildren(make("p", { class: "soft", text: `Nothing of ${metric} is stored around this moment.` })); return; }
      const rows = d.series.flatMap((s) => s.times.map((at, i) => [s.name, moment(at), `${at - t >= 0 ? "+" : "−"}${Math.abs(at - t).toFixed(1)} s`, number(s.values[i])]));
      place.replaceChildren(table(["series", "taken", "from here", `stored value${d.unit ? `, ${d.unit}` : ""}`], rows, `${metric} as stored${d.left_out ? `; ${d.left_out} more series` : ""}`));
    } catch (error) { if (mine === newest) place.replaceChildren(make("p", { class: "soft", text: error.message })); }
  };

  document.addEventListener("moment", (event) => {
    const { t, metric = facts.metric?.() || "", hosts = facts.hosts?.() || [] } = event.detail;
    newest += 1;
    from = document.activeElement;
    const wide = Math.max(AROUND, facts.wide() / 20);
    const raw = make("div", { class: "moment-raw" });
    const links = make("p", { class: "moment-links" },
      make("a", { class: "button", href: `${base}/log?t=${t.toFixed(1)}`, text: "Log at this moment" }), " ");
    if (metric) {
      const button = make("button", { type: "button", text: `Stored samples of ${metric}` });
      button.addEventListener("click", () => samples(t, metric, hosts, raw));
      const query = facts.query?.() || metric;
      links.append(button, " ", make("a", { class: "button", href: `${base}/query?q=${encodeURIComponent(query)}&from=${(t - wide).toFixed(0)}&to=${(t + wide).toFixed(0)}`, text: "Query around it" }), " ");
    }
    const shut = make("button", { type: "button", "aria-label": "Close", text: "Close" });
    shut.addEventListener("click", close);
    links.append(shut);
    box.replaceChildren(make("h2", { id: "h-moment", text: moment(t) }), make("p", { class: "soft small", text: $("timeline-readout").textContent.split(" · ").slice(0, 1).join("").split(", ").slice(1).join(", ") }), links, raw);
    box.hidden = false;
    cursor.set(t);
    links.querySelector("a").focus({ preventScroll: true });
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !box.hidden) close(); });
}
