// The jobs table: filters while one types, fills in rows as they are read, follows running jobs, picks some to compare.
// Rows are made by the server only; this script asks for them again and puts them in place.
const table = document.querySelector("table.jobs");
const find = document.getElementById("find");
const query = document.getElementById("q");
const pick = document.getElementById("pick");
const button = document.getElementById("compare");
const told = document.getElementById("picked");
const BUSY_MS = 1000;
const CALM_MS = 5000;
const MOST = 8;

const ticked = new Set();
let tag = "";
let timer = 0;
let asked = 0;

const params = () => {
  const wanted = new URLSearchParams(location.search);
  query.value.trim() ? wanted.set("q", query.value.trim()) : wanted.delete("q");
  return wanted;
};

const showPicked = () => {
  const names = [...ticked];
  const good = names.length >= 2 && names.length <= MOST;
  button.disabled = !good;
  button.classList.toggle("main", good);
  told.textContent = names.length === 0 ? "Tick jobs to compare them"
    : names.length === 1 ? `${names[0]} and …` : names.length === 2 ? `${names[0]} and ${names[1]}`
    : good ? `${names.length} runs` : `${names.length} ticked, ${MOST} at most`;
};

const place = (html) => {
  const held = document.activeElement;
  const row = held && table.contains(held) ? held.closest("tr")?.id : null;
  const kind = held?.tagName === "INPUT" ? "input" : "a";
  const made = document.createElement("template");
  made.innerHTML = `<table>${html}</table>`;
  const body = made.content.querySelector("tbody");
  if (!body) return;
  for (const box of body.querySelectorAll(".tick input")) box.checked = ticked.has(box.value);
  window.trackwalker.showTimes(body);
  table.tBodies[0].replaceWith(body);
  if (row) document.getElementById(row)?.querySelector(kind)?.focus({ preventScroll: true });
  for (const pair of body.dataset.counts.trim().split(" ")) {
    const [key, count] = pair.split("=");
    const tab = document.querySelector(`.tabs a[data-group="${key}"] .count`);
    if (tab) tab.textContent = count;
  }
  const twice = document.getElementById("twice");
  twice.hidden = body.dataset.twice === "0";
  twice.firstElementChild.textContent = body.dataset.twice;
};

const refresh = async () => {
  clearTimeout(timer);
  const mine = ++asked;
  const wanted = params();
  try {
    const answer = await fetch(`/jobs/rows?${wanted}`, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (mine !== asked) return; // a later question is on its way
    if (answer.ok) {
      const html = await answer.text();
      if (mine !== asked) return;
      tag = answer.headers.get("ETag") || "";
      place(html);
    }
  } catch { /* the server was stopped: the table stays as it is */ }
  const busy = Number(table.tBodies[0].dataset.pending) > 0;
  timer = setTimeout(tick, busy ? BUSY_MS : CALM_MS);
};
const tick = () => document.hidden ? (timer = setTimeout(tick, CALM_MS)) : refresh();

const search = () => {
  const wanted = params();
  wanted.delete("page");
  history.replaceState(null, "", wanted.size ? `/?${wanted}` : "/");
  for (const tab of document.querySelectorAll(".tabs a")) {
    const to = new URLSearchParams(wanted);
    tab.dataset.group ? to.set("state", tab.dataset.group) : to.delete("state");
    tab.href = to.size ? `/?${to}` : "/";
  }
  tag = "";
  refresh();
};

query.addEventListener("input", search);
find.addEventListener("submit", (event) => { event.preventDefault(); search(); });
table.addEventListener("change", (event) => {
  if (!event.target.matches(".tick input")) return;
  event.target.checked ? ticked.add(event.target.value) : ticked.delete(event.target.value);
  showPicked();
});
pick.addEventListener("submit", (event) => {
  event.preventDefault();
  if (ticked.size < 2 || ticked.size > MOST) return;
  const both = new URLSearchParams();
  for (const name of ticked) both.append("job", name);
  location.assign(`/compare?${both}`);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    event.preventDefault();
    query.focus();
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });

for (const box of table.querySelectorAll(".tick input:checked")) ticked.add(box.value); // kept by the browser on "back"
showPicked();
timer = setTimeout(tick, Number(table.tBodies[0].dataset.pending) > 0 ? 200 : CALM_MS);
