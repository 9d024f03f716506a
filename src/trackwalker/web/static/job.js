// The job page: swaps in the verdict when it is there, and draws each chart when it comes into view.
"use strict";
import { clock, make, say, span } from "./charts.js";
import { Course } from "./course.js";
import { setUpHosts } from "./job_hosts.js";
import { goLive } from "./live.js";
import { setUpMinis } from "./mini.js";
import { setUpMoment } from "./moment.js";
import { setUpQuery } from "./query.js";
import { Happenings } from "./strips.js";

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

// ---- the course of the run, and what happened beside it
const recorded = page.dataset.recorded === "yes";
const course = new Course(base), happenings = new Happenings(base);
async function loadTimeline() {
  await course.load(recorded);
  happenings.take(course.data?.events || [], $("verdict").getAttribute("aria-busy") === "false");
}

// ---- the verdict
function swap(parts) {
  for (const part of parts.querySelectorAll("[data-for]")) {
    const place = $(part.dataset.for);
    if (part.dataset.for === "head") place.replaceWith(...part.childNodes); else place.replaceChildren(...part.childNodes);
    window.trackwalker.showTimes($(part.dataset.for));
  }
  followLive();
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
      happenings.take(course.data?.events || [], true);
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

// A job that runs is followed, as soon as the page knows that it runs.
let following = false;
function followLive() {
  if (following || !["running", "initialising", "hanging"].includes($("head").dataset.status)) return;
  following = true;
  goLive(base, {
    grown: async () => { await loadTimeline(); document.dispatchEvent(new CustomEvent("grown")); },
    verdict: () => { if (page.dataset.complete === "yes") verdict().catch(() => {}); },
  });
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

// First the page is painted: what follows keeps the server's cores busy, and often they are this machine's.
await new Promise((go) => { requestAnimationFrame(() => setTimeout(go)); setTimeout(go, 500); });
if (page.dataset.complete === "yes") loadTimeline();
else { loadTimeline(); verdict().catch((error) => { const line = $("progress"); if (line) line.textContent = error.message; }); }
let facts = {};
if (recorded) { facts = setUpHosts(base); setUpQuery(base); setUpMinis(base); }
setUpMoment(base, { ...facts, wide: () => span.known() ? span.to - span.from : 0 });
followLive();
// For whoever looks with the console open, and for the browser tests.
window.jobPage = { span, timeline: course, clock, make };
