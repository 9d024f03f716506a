// A running job: the server says what changed every few seconds, the page says how old what it shows is.
"use strict";
import { duration } from "./charts.js";

const $ = (id) => document.getElementById(id);
const VERDICT_MS = 60_000;  // how often a running job is judged anew

export function goLive(base, act) {
  const box = $("live"), words = $("live-words"), said = $("live-said");
  let last = null, heard = 0, judged = Date.now(), busy = false, source = null;

  const show = () => {
    if (!last) return;
    const age = Math.max(0, (Date.now() - heard) / 1000 + last.age);
    words.textContent = `${last.status}${last.last_step === null ? "" : `, step ${last.last_step.toLocaleString("en")}${last.total === null ? "" : ` of ${last.total.toLocaleString("en")}`}`}; updated ${duration(age)} ago`;
  };

  const take = async (now) => {
    const before = last;
    last = now; heard = Date.now();
    show();
    if (before && before.status !== now.status) {
      said.textContent = `The job was ${before.status} and is ${now.status} now.`;
      act.verdict();
      if (!now.live) { source.close(); box.classList.add("over"); }
    }
    if (before && now.watch && before.watch !== now.watch) {
      said.textContent = `The watcher calls: ${now.watch}`;
      act.verdict();
    }
    if (before && before.mark !== now.mark && !busy && !document.hidden) {
      busy = true;
      try { await act.grown(); } finally { busy = false; }
    }
    if (Date.now() - judged > VERDICT_MS && !document.hidden) { judged = Date.now(); act.verdict(); }
  };

  source = new EventSource(`${base}/live`);
  source.addEventListener("message", (event) => take(JSON.parse(event.data)));
  source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) words.textContent = "no longer updated: the server does not answer"; });
  box.hidden = false;
  setInterval(show, 1000);
}
