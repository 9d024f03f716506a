// On every page, loaded before the first paint: the theme, and times in the zone that the viewer wants.
"use strict";
(() => {
  const stored = (name) => {
    try { return localStorage.getItem(name); } catch { return null; }
  };
  const store = (name, value) => {
    try { localStorage.setItem(name, value); } catch { /* private windows may refuse: then it lasts for this page */ }
  };

  // dark.css holds the dark values; its media attribute says when they count.
  const system = matchMedia("(prefers-color-scheme: dark)");
  let theme = stored("theme") || "";
  const isDark = () => theme ? theme === "dark" : system.matches;
  const dress = () => {
    document.getElementById("dark").media =
      theme ? (theme === "dark" ? "screen" : "not all") : "screen and (prefers-color-scheme: dark)";
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  };
  const changed = () => {
    dress();
    label();
    document.dispatchEvent(new CustomEvent("themechange"));
  };
  const label = () => {
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
    }
  };
  dress();

  // Pages are written in UTC, the cluster's zone. The other zone is always in the tooltip.
  let local = stored("zone") === "local";
  const zoneName = () => new Intl.DateTimeFormat([], { timeZoneName: "short" })
    .formatToParts(new Date()).find((part) => part.type === "timeZoneName").value;
  const two = (n) => String(n).padStart(2, "0");
  const written = (t, utc, clock) => {
    const get = (what) => utc ? t[`getUTC${what}`]() : t[`get${what}`]();
    const day = `${get("FullYear")}-${two(get("Month") + 1)}-${two(get("Date"))}`;
    const time = `${two(get("Hours"))}:${two(get("Minutes"))}:${two(get("Seconds"))}`;
    return `${clock ? time : `${day} ${time}`} ${utc ? "UTC" : zoneName()}`;
  };
  const showTimes = (root) => {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const t = new Date(element.getAttribute("datetime"));
      if (Number.isNaN(t.getTime())) continue;
      const clock = "clock" in element.dataset;
      element.textContent = written(t, !local, clock);
      element.title = written(t, local, false);
    }
  };
  const labelZone = () => {
    const button = document.getElementById("zone");
    if (!button) return;
    button.textContent = local ? zoneName() : "UTC";
    button.setAttribute("aria-label", `Times are in ${local ? `your zone, ${zoneName()}` : "UTC"}; switch to ${local ? "UTC" : "your zone"}`);
  };

  // <div data-fill="/address">: a piece of the page that takes time is fetched and put in the div's place.
  const fill = async (element) => {
    try {
      const post = element.dataset.post ? { method: "POST", body: new URLSearchParams(element.dataset.post) } : {};
      const answer = await fetch(element.dataset.fill, { headers: { Accept: "application/json" }, ...post });
      if (!answer.ok) {
        const said = await answer.json().catch(() => ({}));
        throw new Error(said.error || `the server answered ${answer.status}`);
      }
      const made = document.createElement("template");
      made.innerHTML = await answer.text();
      showTimes(made.content);
      const parts = [...made.content.children];
      element.replaceWith(made.content);
      parts[0]?.dispatchEvent(new CustomEvent("filled", { bubbles: true }));
    } catch (error) {
      element.replaceChildren();
      element.classList.add("bad");
      const line = document.createElement("p");
      line.textContent = error instanceof TypeError ? "The server does not answer: is 'trackwalker serve' still running?" : error.message;
      element.append(line);
    }
  };

  // A link to something inside a closed <details> opens it.
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const closed = target && target.closest("details:not([open])");
    if (closed) {
      closed.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", reveal);

  // For the other scripts: `trackwalker.showTimes(element)` after adding <time> elements, `trackwalker.local()` for axes.
  window.trackwalker = { showTimes, local: () => local, dark: isDark };

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const zone = document.getElementById("zone");
    label();
    labelZone();
    showTimes(document);
    reveal();
    document.querySelectorAll("[data-fill]").forEach(fill);
    button.hidden = zone.hidden = false;
    button.addEventListener("click", () => {
      theme = isDark() ? "light" : "dark";
      store("theme", theme);
      changed();
    });
    zone.addEventListener("click", () => {
      local = !local;
      store("zone", local ? "local" : "utc");
      labelZone();
      showTimes(document);
      document.dispatchEvent(new CustomEvent("zonechange"));
    });
    system.addEventListener("change", changed);
  });
})();
