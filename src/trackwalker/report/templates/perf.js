
"use strict";
// Tabs, filters and the timeline. Text from a trace is only ever set as text, never as markup.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);

  // Tabs: without this script the page is one long document with links; with it, one part at a time.
  const nav = one(".tabs");
  const tabs = all("[data-tab]", nav);
  const panels = all("[data-panel]");
  nav.setAttribute("role", "tablist");
  tabs.forEach((tab) => {
    tab.setAttribute("role", "tab");
    tab.id = "tab-" + tab.dataset.tab;
    tab.setAttribute("aria-controls", tab.dataset.tab);
  });
  panels.forEach((panel) => {
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", "tab-" + panel.dataset.panel);
  });
  const show = (name) => {
    const known = panels.some((panel) => panel.dataset.panel === name) ? name : "overview";
    panels.forEach((panel) => { panel.hidden = panel.dataset.panel !== known; });
    tabs.forEach((tab) => {
      const here = tab.dataset.tab === known;
      tab.setAttribute("aria-selected", String(here));
      tab.tabIndex = here ? 0 : -1;
    });
    scrollTo(0, 0);
    dispatchEvent(new Event("panel"));
  };
  // Not by the browser's own jump to an anchor: that would take the focus off the tab.
  const open = (tab) => {
    history.pushState(null, "", "#" + tab.dataset.tab);
    show(tab.dataset.tab);
    tab.focus();
  };
  const here = () => decodeURIComponent(location.hash.slice(1)) || "overview";
  ["hashchange", "popstate"].forEach((event) => addEventListener(event, () => show(here())));
  nav.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    open(tabs[(to + tabs.length) % tabs.length]);
  });
  tabs.forEach((tab) => tab.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(tab);
  }));

  // Filters of long tables.
  all("[data-filter]").forEach((field) => {
    const rows = all("#t-" + field.dataset.filter + " tbody tr");
    const count = one('[data-count="' + field.dataset.filter + '"]');
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      let left = 0;
      rows.forEach((row) => {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
        left += row.hidden ? 0 : 1;
      });
      count.textContent = wanted ? left + " of " + rows.length + " rows" : "";
    });
  });

  const holder = one("#lanes-data");
  if (holder) timeline(JSON.parse(holder.textContent));
  show(here());

  function timeline(data) {
    const view = one("#lanes-view"), said = one("#lanes-said"), shown = one("#lanes-window");
    const SVG = "http://www.w3.org/2000/svg";
    const LEFT = 172, WIDE = 1158, ROW = data.lanes.length > 12 ? 17 : 26, HEAD = 20, FIELDS = 6;
    const least = Math.max(data.span / 1e6, 50);  // no closer than a millionth of the step
    let from = 0, to = data.span, row = 0, picked = null, grabbed = null;

    const make = (name, facts, text) => {
      const element = document.createElementNS(SVG, name);
      Object.entries(facts).forEach(([key, value]) => element.setAttribute(key, value));
      if (text !== undefined) element.textContent = text;
      return element;
    };
    const time = (ns) => {
      const size = Math.abs(ns);
      if (size === 0) return "0";
      if (size >= 1e9) return (ns / 1e9).toPrecision(4) + " s";
      if (size >= 1e6) return (ns / 1e6).toPrecision(4) + " ms";
      return size >= 1e3 ? (ns / 1e3).toPrecision(4) + " µs" : Math.round(ns) + " ns";
    };

    // Where each lane stands: a device's name takes a line of its own.
    const tops = [];
    let height = HEAD, device = null;
    data.lanes.forEach((lane) => {
      if (lane.device !== device) { height += 18; device = lane.device; }
      tops.push(height);
      height += ROW;
    });
    height += 6;
    const svg = make("svg", { viewBox: "0 0 " + (LEFT + WIDE) + " " + height, role: "img" });
    view.append(svg);
    const x = (ns) => LEFT + (WIDE * (ns - from)) / (to - from);

    const draw = () => {
      svg.replaceChildren();
      svg.setAttribute("aria-label", data.lanes.length + " rows, " + time(from) + " to " + time(to));
      const step = [1, 2, 5].flatMap((n) => [...Array(13).keys()].map((e) => n * 10 ** e)).sort((a, b) => a - b)
        .find((n) => (to - from) / n <= 9) || to - from;
      for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
        svg.append(make("line", { class: "tick-line", x1: x(at), x2: x(at), y1: HEAD - 4, y2: height }));
        svg.append(make("text", { x: Math.min(x(at), LEFT + WIDE - 24), y: 12, "text-anchor": "middle" }, time(at)));
      }
      let above = null;
      data.lanes.forEach((lane, n) => {
        const top = tops[n];
        if (lane.device !== above) {
          svg.append(make("text", { class: "device", x: 6, y: top - 5 }, lane.device));
          above = lane.device;
        }
        svg.append(make("rect", { class: n === row ? "row chosen" : "row", x: LEFT, y: top, width: WIDE, height: ROW - 3 }));
        svg.append(make("text", { x: LEFT - 6, y: top + ROW / 2 + 2.5, "text-anchor": "end" }, lane.title.slice(0, 24)));
        paths(lane.bars, top).forEach(([style, path]) => svg.append(make("path", { class: data.styles[style], d: path })));
      });
      if (picked) {
        const bars = data.lanes[picked.lane].bars, a = x(bars[picked.at]), b = x(bars[picked.at] + bars[picked.at + 1]);
        if (b >= LEFT && a <= LEFT + WIDE) {
          const left = Math.max(a, LEFT), right = Math.min(b, LEFT + WIDE);
          svg.append(make("rect", { class: "pick", x: left - 1, y: tops[picked.lane] - 1, width: Math.max(right - left, 1) + 2, height: ROW - 1 }));
        }
      }
      if (grabbed && grabbed.now !== undefined) {
        const a = Math.min(grabbed.x, grabbed.now), b = Math.max(grabbed.x, grabbed.now);
        svg.append(make("rect", { class: "drag", x: a, y: HEAD - 4, width: b - a, height: height - HEAD }));
      }
      shown.textContent = time(from) + " to " + time(to) + " of " + time(data.span);
    };

    // One path for each colour of a lane. Bars narrower than a third of a pixel that touch are drawn as one.
    const paths = (bars, top) => {
      const made = new Map();
      let last = null;
      const put = (bar) => {
        if (bar) made.set(bar.style, (made.get(bar.style) || "") +
          "M" + bar.a.toFixed(2) + " " + top + "h" + Math.max(bar.b - bar.a, 0.4).toFixed(2) + "v" + (ROW - 3) + "H" + bar.a.toFixed(2) + "z");
      };
      for (let i = 0; i < bars.length; i += FIELDS) {
        const end = bars[i] + bars[i + 1];
        if (end < from || bars[i] > to) continue;
        const a = Math.max(x(bars[i]), LEFT), b = Math.min(x(end), LEFT + WIDE);
        if (last && last.style === bars[i + 3] && a - last.b < 0.34) { last.b = Math.max(last.b, b); continue; }
        put(last);
        last = { style: bars[i + 3], a, b };
      }
      put(last);
      return [...made];
    };

    const look = (a, b) => {
      const span = Math.min(Math.max(b - a, least), data.span);
      from = Math.min(Math.max(a, 0), data.span - span);
      to = from + span;
      draw();
    };
    const zoom = (factor, about = (from + to) / 2) => look(about - (about - from) * factor, about + (to - about) * factor);
    const tell = (lane, at) => {
      picked = { lane, at };
      row = lane;
      const bars = data.lanes[lane].bars, count = bars[at + 4], length = bars[at + 1];
      const many = count > 1 ? count + " together, busy " + Math.round((100 * bars[at + 5]) / length) + " %, most of it " : "";
      said.textContent = data.lanes[lane].device + ", " + data.lanes[lane].title + ": " + many + data.names[bars[at + 2]] +
        "; " + time(length) + " from " + time(bars[at]) + ", " + ((100 * length) / data.span).toPrecision(3) + " % of the step";
      draw();
    };
    const nearest = (lane, ns) => {
      const bars = data.lanes[lane].bars;
      let best = -1, least_away = Infinity;
      for (let i = 0; i < bars.length; i += FIELDS) {
        const away = Math.max(bars[i] - ns, ns - bars[i] - bars[i + 1], 0);
        if (away < least_away) { best = i; least_away = away; }
      }
      return best;
    };
    const move = (by) => {
      const bars = data.lanes[row].bars;
      const at = picked && picked.lane === row ? picked.at + by * FIELDS : nearest(row, from);
      if (at < 0 || at >= bars.length) return;
      tell(row, at);
      if (bars[at] < from || bars[at] + bars[at + 1] > to) {
        const span = Math.max(to - from, bars[at + 1]);
        look(bars[at] + bars[at + 1] / 2 - span / 2, bars[at] + bars[at + 1] / 2 + span / 2);
      }
    };
    const choose = (by) => {
      row = Math.min(Math.max(row + by, 0), data.lanes.length - 1);
      const at = nearest(row, picked ? data.lanes[picked.lane].bars[picked.at] : from);
      if (at >= 0) tell(row, at);
    };
    const third = () => (to - from) / 3;
    const acts = {
      in: () => zoom(0.5), out: () => zoom(2), all: () => look(0, data.span),
      left: () => look(from - third(), to - third()), right: () => look(from + third(), to + third()),
    };
    all("[data-zoom]").forEach((button) => button.addEventListener("click", acts[button.dataset.zoom]));
    view.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = {
        "+": acts.in, "=": acts.in, "-": acts.out, "0": acts.all, Home: acts.all, ArrowLeft: acts.left, ArrowRight: acts.right,
        ArrowDown: () => (picked ? choose(1) : choose(0)), ArrowUp: () => choose(-1), ",": () => move(-1), ".": () => move(1),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });

    // The mouse: where it points, in the drawing's own coordinates.
    const point = (event) => {
      const box = svg.getBoundingClientRect(), scale = (LEFT + WIDE) / box.width;
      return { x: Math.min(Math.max((event.clientX - box.left) * scale, LEFT), LEFT + WIDE), y: (event.clientY - box.top) * scale };
    };
    const when = (at) => from + ((at - LEFT) / WIDE) * (to - from);
    const lane_at = (y) => tops.findIndex((top) => y >= top && y < top + ROW);
    view.addEventListener("pointerdown", (event) => {
      if (event.button === 0) grabbed = { x: point(event).x };
    });
    addEventListener("pointermove", (event) => {
      if (grabbed) {
        grabbed.now = point(event).x;
        draw();
      } else if (view.contains(event.target)) {
        const at = point(event), lane = lane_at(at.y);
        if (lane < 0) return;
        const bar = nearest(lane, when(at.x)), bars = data.lanes[lane].bars;
        if (bar >= 0 && x(bars[bar]) - 2 <= at.x && at.x <= x(bars[bar] + bars[bar + 1]) + 2 && !(picked && picked.lane === lane && picked.at === bar)) tell(lane, bar);
      }
    });
    addEventListener("pointerup", () => {
      const drag = grabbed;
      grabbed = null;
      if (!drag || drag.now === undefined) return;
      if (Math.abs(drag.now - drag.x) > 4) look(when(Math.min(drag.x, drag.now)), when(Math.max(drag.x, drag.now)));
      else draw();
    });
    view.addEventListener("dblclick", acts.all);
    view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;  // the page scrolls as always
      event.preventDefault();
      zoom(event.deltaY < 0 ? 0.8 : 1.25, when(point(event).x));
    }, { passive: false });
    draw();
  }
})();
