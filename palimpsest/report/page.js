"use strict";
/* Says what a pointer, a finger or the arrow keys are at. The drawing knows: every line carries its places in `d` and
   the words for them in data-x and data-y, so nothing is computed here but which place is nearest. */

for (const chart of document.querySelectorAll("svg.chart")) {
  const lines = [...chart.querySelectorAll("path[data-y]")].map(readLine);
  if (lines.length) attend(chart, lines);
}

function readLine(path) {
  const places = path.getAttribute("d").replace(/[MZ]/g, "").split("L").map((place) => place.split(" ").map(Number));
  const [x, y] = [path.dataset.x.split(";"), path.dataset.y.split(";")];
  const points = places.map(([across, down], i) => ({ across, down, x: x[i], y: y[i] }));
  return { name: path.dataset.name, style: path.getAttribute("class"), points };
}

function attend(chart, lines) {
  const stops = [...new Set(lines.flatMap((line) => line.points.map((point) => point.across)))].sort((a, b) => a - b);
  const tip = chart.parentNode.appendChild(document.createElement("div"));
  let drawn = [];
  let at = stops.length - 1;
  tip.className = "tip";
  tip.setAttribute("role", "status");
  chart.tabIndex = 0;
  /* what a browser would say of a dot, we say better */
  chart.querySelectorAll("circle > title").forEach((title) => title.remove());

  function show(stop) {
    at = stop;
    const told = lines.map((line) => ({ ...line, point: pointAt(line.points, stops[stop]) })).filter((one) => one.point);
    const here = told.find((one) => one.point.across === stops[stop]).point;
    clear();
    draw("line", { x1: share(here.across), x2: share(here.across), y1: 0, y2: "100%", class: "cross" });
    for (const { style, point } of told) {
      draw("circle", { cx: share(point.across), cy: share(point.down), r: 4.5, class: `${style} here` });
    }
    tip.replaceChildren(words("b", here.x), ...told.map((one) => row(one, here)));
    settle(here);
  }

  function draw(tag, attributes) {
    const mark = document.createElementNS(chart.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) mark.setAttribute(name, value);
    drawn.push(chart.appendChild(mark));
  }

  function settle(here) {
    const [box, around] = [chart.getBoundingClientRect(), chart.parentNode.getBoundingClientRect()];
    const middle = box.left - around.left + (here.across / 1000) * box.width;
    tip.style.display = "grid";
    const beside = here.across > 500 ? middle - tip.offsetWidth - 12 : middle + 12;
    tip.style.left = `${Math.max(0, Math.min(beside, around.width - tip.offsetWidth))}px`;
    tip.style.top = `${box.top - around.top}px`;
  }

  function clear() {
    drawn.forEach((mark) => mark.remove());
    drawn = [];
  }

  function hide() {
    clear();
    tip.style.display = "none";
  }

  function point(event) {
    const box = chart.getBoundingClientRect();
    if (event.clientY < box.top || event.clientY > box.bottom) hide();
    else show(nearest(stops, (1000 * (event.clientX - box.left)) / box.width));
  }

  function step(event) {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: stops.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(to, stops.length - 1)));
  }

  /* the margins count as well: the last point of a line lies on the edge */
  chart.parentNode.addEventListener("pointermove", point);
  chart.parentNode.addEventListener("pointerdown", point);
  chart.parentNode.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  chart.addEventListener("focus", () => chart.matches(":focus-visible") && show(at));
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", step);
}

/* The nearest point of a line, where the line runs at all. */
function pointAt(points, across) {
  if (across < points[0].across || across > points[points.length - 1].across) return null;
  return points[nearest(points.map((point) => point.across), across)];
}

function nearest(places, across) {
  return places.reduce((best, place, i) => (Math.abs(place - across) < Math.abs(places[best] - across) ? i : best), 0);
}

function row({ name, style, point }, here) {
  const line = words("div", "");
  line.append(words("span", name, style), words("data", point.y));
  if (point.x !== here.x) line.append(words("small", `at ${point.x}`));
  return line;
}

function words(tag, text, style) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (style) element.className = style;
  return element;
}

function share(place) {
  return `${place / 10}%`;
}
