// The log page with a script: keys, lines that come while one scrolls, a growing log, findings of a large one.
// Without it every one of these is a link.
const log = document.getElementById("log");
const state = document.getElementById("log-state");
const MOST = 3000; // rows kept in the page
const LOOK_MS = 1500;

const link = (id) => document.getElementById(id);
const follow = (id) => { const found = link(id); if (found) found.click(); };
const rows = () => log.querySelectorAll(".log-row");
const shown = () => [...rows()].filter((row) => row.offsetParent !== null);  // not those that are folded away

const ask = (go, at) => {
  const query = new URLSearchParams({ file: log.dataset.file, go, at });
  if (log.dataset.rank) query.set("rank", log.dataset.rank);
  if (log.dataset.q) query.set("q", log.dataset.q);
  if ("fold" in log.dataset) query.set("fold", "1");
  return `${log.dataset.rows}?${query}`;
};

// The server escapes every line: a fragment is parsed as a document of its own, where nothing runs, then moved here.
const fetchRows = async (go, at) => {
  const answer = await fetch(ask(go, at), { headers: { accept: "text/html" } });
  const text = await answer.text();
  if (!answer.ok) throw new Error(answer.status === 410 || answer.status === 404 ? "The log is gone." : "The log cannot be read.");
  return new DOMParser().parseFromString(text, "text/html").querySelector("ol");
};

const say = (text) => { state.textContent = text; };

// j and k move through the lines; the rest are the page's own links and fields.
const step = (by) => {
  const all = shown();
  const here = all.indexOf(document.activeElement?.closest?.(".log-row"));
  const first = all.findIndex((row) => row.getBoundingClientRect().bottom > 140);
  const next = all[here < 0 ? Math.max(first, 0) : Math.min(Math.max(here + by, 0), all.length - 1)];
  if (next) { next.focus({ preventScroll: true }); next.scrollIntoView({ block: "nearest" }); }
};
const keys = {
  j: () => step(1), k: () => step(-1), n: () => follow("log-next"), p: () => follow("log-prev"), N: () => follow("log-prev"),
  G: () => follow("log-end"), f: () => follow("log-follow"),
  g: () => { link("log-line").focus(); link("log-line").select(); },
  "/": () => { link("log-q").focus(); link("log-q").select(); },
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const act = keys[event.key];
  if (act) { event.preventDefault(); act(); }
});

// A line that was asked for, or a hit, takes the focus: arrow keys and screen readers go on from there.
const current = log.querySelector(".is-current");
if (current) { current.focus({ preventScroll: true }); current.scrollIntoView({ block: "center" }); }
// The end of a log is its last line, in sight and in focus.
else if ("end" in log.dataset && !("follow" in log.dataset)) {
  const toEnd = () => { shown().at(-1)?.focus({ preventScroll: true }); window.scrollTo(0, document.documentElement.scrollHeight); };
  toEnd();
  addEventListener("load", toEnd);
}

// More lines when an end comes into sight; as many leave at the other end.
let busy = false;
const more = async (anchor, go) => {
  if (busy) return;
  busy = true;
  try {
    const at = new URL(anchor.href).searchParams.get("at");
    const part = await fetchRows(go, at);
    const came = [...part.children];
    if (go === "later") {
      log.append(...came);
      for (const row of [...rows()].slice(0, Math.max(rows().length - MOST, 0))) row.remove();
    } else {
      const before = document.documentElement.scrollHeight;
      log.prepend(...came);
      window.scrollBy(0, document.documentElement.scrollHeight - before);
      for (const row of [...rows()].slice(MOST)) row.remove();
    }
    const url = new URL(anchor.href);
    url.searchParams.set("at", go === "later" ? part.dataset.later : part.dataset.earlier);
    anchor.href = url.href;
    const done = go === "later" ? +part.dataset.later >= +part.dataset.size : +part.dataset.earlier <= 0;
    if (done) { watcher.unobserve(anchor); anchor.parentElement.remove(); }
    // The watcher reports changes only: an end that is still in sight, or came into sight meanwhile, is looked at anew.
    for (const each of ["log-later", "log-earlier"].map(link)) if (each) { watcher.unobserve(each); watcher.observe(each); }
  } catch (error) {
    say(error.message);
    watcher.unobserve(anchor);
  } finally {
    busy = false;
  }
};
const watcher = new IntersectionObserver((seen) => {
  for (const each of seen) if (each.isIntersecting) more(each.target, each.target.id === "log-later" ? "later" : "earlier");
}, { rootMargin: "300px" });
// Not before the page has settled: the earlier lines would push away the line that was asked for.
setTimeout(() => {
  for (const id of ["log-later", "log-earlier"]) if (link(id)) watcher.observe(link(id));
}, 300);

// A growing log: ask for what came since, stay at the end unless the reader has scrolled up.
const followLog = async (at) => {
  let behind = false;
  try {
    if (!document.hidden) {
      const part = await fetchRows("later", at);
      const atEnd = window.innerHeight + window.scrollY > document.documentElement.scrollHeight - 80;
      for (const row of part.querySelectorAll(".log-row")) {
        // The last line may have been half written when it was shown.
        log.querySelector(`[data-at="${row.dataset.at}"]`)?.remove();
        log.append(row);
      }
      for (const row of [...rows()].slice(0, Math.max(rows().length - MOST, 0))) row.remove();
      const last = [...rows()].at(-1);
      behind = +part.dataset.later < +part.dataset.size; // more came than one answer holds
      at = behind || !last ? part.dataset.later : last.dataset.at;
      if (atEnd) window.scrollTo(0, document.documentElement.scrollHeight);
      say(`Following; ${Number(part.dataset.size).toLocaleString("en")} bytes so far.`);
    }
    setTimeout(followLog, behind ? 0 : LOOK_MS, at);
  } catch (error) {
    say(`${error.message} Following has ended.`);
  }
};
if ("follow" in log.dataset) {
  window.scrollTo(0, document.documentElement.scrollHeight);
  const last = [...rows()].at(-1);
  followLog(last ? last.dataset.at : 0);
}

// Work that took longer than one request goes on by itself.
if (link("log-again")) setTimeout(() => location.replace(link("log-again").href), 200);

const findings = link("log-findings");
if (findings.dataset.from) {
  fetch(findings.dataset.from, { headers: { accept: "text/html" } }).then(async (answer) => {
    if (!answer.ok) return;
    const came = new DOMParser().parseFromString(await answer.text(), "text/html");
    findings.replaceChildren(...came.body.children);
  });
}
