// A small chart beside each finding: its query over the time of the run, suspects in their colour.
"use strict";
import { ask, colour, make, number } from "./charts.js";

const WIDE = 260, HIGH = 44;

export function setUpMinis(base) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "200px" });

  const draw = async (place) => {
    try {
      place.data ||= await ask(`${base}/query.json?q=${encodeURIComponent(place.dataset.mini)}&mode=range`);
    } catch { place.remove(); return; }
    paint(place, place.data);
  };

  const paint = (place, d) => {
    const lines = d.series.filter((s) => s.values);
    if (!lines.length) { place.remove(); return; }
    const suspects = new Set([...document.querySelectorAll("#verdict [data-host]")].map((chip) => chip.dataset.host));
    const suspect = (s) => Object.values(s.labels).some((value) => suspects.has(value));
    const high = Math.max(...lines.map((s) => s.max)), low = Math.min(0, ...lines.map((s) => s.min));
    const wide = Math.min(WIDE, place.clientWidth || WIDE), dpr = devicePixelRatio;
    const canvas = make("canvas", { "aria-hidden": "true" });
    canvas.width = wide * dpr; canvas.height = HIGH * dpr;
    canvas.style.width = `${wide}px`; canvas.style.height = `${HIGH}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(dpr, dpr);
    const x = (t) => (wide - 2) * (t - d.start) / ((d.end - d.start) || 1) + 1, y = (v) => HIGH - 3 - (HIGH - 6) * (v - low) / ((high - low) || 1);
    ctx.fillStyle = colour("--faint"); ctx.fillRect(0, 0, wide, HIGH);
    for (const s of [...lines].sort((a, b) => suspect(a) - suspect(b))) {
      ctx.strokeStyle = colour(suspect(s) ? "--bad" : suspects.size ? "--soft" : "--accent"); ctx.globalAlpha = suspect(s) ? 1 : 0.55; ctx.lineWidth = 1.1;
      ctx.beginPath();
      let open = false;
      s.values.forEach((v, i) => { if (v === null) { open = false; return; } if (open) ctx.lineTo(x(d.times[i]), y(v)); else ctx.moveTo(x(d.times[i]), y(v)); open = true; });
      ctx.stroke();
    }
    place.replaceChildren(canvas, make("span", { class: "soft small", text: `${number(low)} to ${number(high)}, ${lines.length < d.total ? `${lines.length} of ${d.total}` : d.total} series` }));
    place.setAttribute("aria-label", `${place.getAttribute("aria-label").split(":")[0]}: from ${number(low)} to ${number(high)}, ${d.total} series`);
    place.dataset.drawn = "yes";
  };

  const look = () => document.querySelectorAll("[data-mini]").forEach((place) => seen.observe(place));
  look();
  document.addEventListener("verdict", look);
  document.addEventListener("themechange", () => document.querySelectorAll("[data-mini]").forEach((place) => { if (place.data) paint(place, place.data); }));
}
