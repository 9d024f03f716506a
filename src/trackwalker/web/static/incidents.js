// The inbox by keyboard: move, acknowledge, resolve; rows are made by the server only.
const table = document.querySelector("table.incidents");
const told = document.getElementById("told");
const CALM_MS = 10000;
let at = "";
let asked = 0;
let done = null; // the last mark, to take it back when its row has left the list

const rows = () => [...table.querySelectorAll("tr[data-id]")];
const current = () => rows().find((row) => row.dataset.id === at) || null;

const go = (row) => {
  if (!row) return;
  for (const other of rows()) other.classList.toggle("at", other === row);
  at = row.dataset.id;
  row.querySelector("a.subject").focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
};

const move = (by) => {
  const all = rows();
  const place = all.indexOf(current());
  go(all[Math.min(Math.max(place < 0 ? (by > 0 ? 0 : all.length - 1) : place + by, 0), all.length - 1)]);
};

const place = (html) => {
  const before = rows().map((row) => row.dataset.id);
  const inside = table.contains(document.activeElement) || document.activeElement === document.body;
  const made = new DOMParser().parseFromString(html, "text/html");
  const body = made.getElementById("rows");
  if (!body) return;
  for (const id of ["sums", "returning", "rows"]) {
    const part = document.adoptNode(made.getElementById(id));
    window.trackwalker.showTimes(part);
    document.getElementById(id).replaceWith(part);
  }
  for (const pair of body.dataset.counts.trim().split(" ")) {
    const [key, count] = pair.split("=");
    const tab = document.querySelector(`.tabs a[data-state="${key}"] .count`);
    if (tab) tab.textContent = count;
  }
  if (!at || !inside) return;
  // The one that was worked on may have left the list: then the next of its old neighbours.
  const left = before.slice(before.indexOf(at)).concat(before.slice(0, before.indexOf(at)).reverse());
  const next = left.find((id) => rows().some((row) => row.dataset.id === id));
  go(rows().find((row) => row.dataset.id === next));
};

const refresh = async () => {
  const mine = ++asked;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.ok && mine === asked) place(await answer.text());
  } catch { /* the server was stopped: the table stays as it is */ }
};

const keep = async (id, state, before) => {
  const answer = await fetch(`/incidents/${encodeURIComponent(id)}/mark`, {
    method: "POST", headers: { Accept: "application/json" }, body: new URLSearchParams({ state }),
  });
  done = answer.ok && before ? { id, before } : null;
  told.textContent = !answer.ok ? "It was not kept" : `Incident of job ${id}: ${state}${before ? " (u takes it back)" : ""}`;
  await refresh();
};

const mark = async (row, state) => {
  if (row && row.dataset.state !== state) await keep(row.dataset.id, state, row.dataset.state);
};

const takeBack = async () => {
  if (done) await keep(done.id, done.before, "");
  else await mark(current(), "open");
};

table.addEventListener("focusin", (event) => {
  const row = event.target.closest("tr[data-id]");
  if (!row) return;
  at = row.dataset.id;
  for (const other of rows()) other.classList.toggle("at", other === row);
});
table.addEventListener("submit", (event) => {
  event.preventDefault();
  const row = event.target.closest("tr[data-id]");
  at = row.dataset.id;
  mark(row, event.submitter.value);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const does = {
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    a: () => mark(current(), "acknowledged"), r: () => mark(current(), "resolved"), u: takeBack,
    "/": () => document.getElementById("q").focus(),
  }[event.key];
  if (!does) return;
  event.preventDefault();
  does();
});
setInterval(() => { if (!document.hidden) refresh(); }, CALM_MS);
