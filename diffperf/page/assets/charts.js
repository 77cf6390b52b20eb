// Charts with two logarithmic axes: the roofline of operators, and layouts by time and memory.

import { h, s, short } from "./dom.js";

const MARGIN = { left: 64, right: 16, top: 12, bottom: 42 };

/** Scales and axes of a chart; both are logarithmic. */
function frame(host, xs, ys, labels, height = 340) {
  const width = Math.max(280, host.clientWidth || 560);
  const span = (values) => {
    const low = Math.log10(Math.min(...values));
    const high = Math.log10(Math.max(...values));
    const room = Math.max(0.08, 0.06 * (high - low));
    return [low - room, high + room];
  };
  const [x0, x1] = span(xs);
  const [y0, y1] = span(ys);
  const x = (value) =>
    MARGIN.left + ((Math.log10(value) - x0) / (x1 - x0)) * (width - MARGIN.left - MARGIN.right);
  const y = (value) =>
    height - MARGIN.bottom - ((Math.log10(value) - y0) / (y1 - y0)) * (height - MARGIN.top - MARGIN.bottom);
  const svg = s("svg", {
    class: "chart",
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": labels.title,
  });
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const across = Math.max(3, Math.floor((right - MARGIN.left) / 70));
  for (const tick of ticks(x0, x1, across)) {
    svg.append(
      s("line", { class: "grid", x1: x(tick), x2: x(tick), y1: MARGIN.top, y2: bottom }),
      s(
        "g",
        { class: "tick" },
        s("text", { x: x(tick), y: bottom + 15, "text-anchor": "middle" }, short(tick)),
      ),
    );
  }
  for (const tick of ticks(y0, y1, 6)) {
    svg.append(
      s("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) }),
      s(
        "g",
        { class: "tick" },
        s("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)),
      ),
    );
  }
  svg.append(
    s("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }),
    s("line", { class: "axis", x1: MARGIN.left, x2: MARGIN.left, y1: MARGIN.top, y2: bottom }),
    s("text", { x: (MARGIN.left + right) / 2, y: height - 8, "text-anchor": "middle" }, labels.x),
    s(
      "text",
      { transform: `translate(13 ${(MARGIN.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" },
      labels.y,
    ),
  );
  return { svg, x, y, x0, x1, y0, y1, right, bottom };
}

/** At most so many round numbers between powers of ten. */
function ticks(low, high, most) {
  for (const steps of [[1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
      for (const step of steps) {
        const at = Math.log10(step) + power;
        if (at >= low && at <= high) found.push(step * 10 ** power);
      }
    }
    if (found.length <= most) return found;
    if (steps.length === 1) return found.filter((_, index) => index % Math.ceil(found.length / most) === 0);
  }
  return [];
}

function passesOf(rows) {
  return [...new Set(rows.map((row) => row.pass_name))].sort().reverse();
}

/** The name of an operator, with its pass where there are several. */
export function operatorName(row, rows) {
  return passesOf(rows).length > 1 ? `${row.pass_name}: ${row.name}` : row.name;
}

/** Seconds of all operators of the pass that an operator belongs to. */
export function timeOfPass(row, rows) {
  return rows.filter((one) => one.pass_name === row.pass_name).reduce((sum, one) => sum + one.time, 0);
}

/** Operators under the roofs of matrix units and memory levels; areas of points are shares of the time. */
export function roofline(host, operators) {
  const { rows, roofs } = operators;
  const memory = roofs.device_memory;
  const points = rows
    .filter((row) => row.flops > 0 && row.traffic[memory] > 0)
    .map((row) => ({ row, x: row.flops / row.traffic[memory], y: row.flops / row.time }));
  const rest = rows.length - points.length;
  const passes = passesOf(rows);
  const ridge = roofs.compute / roofs.levels[memory];
  const levels = Object.entries(roofs.levels).filter(([, bandwidth]) => bandwidth > 0);
  const xs = [ridge, ...points.map((point) => point.x)];
  const ys = [roofs.compute, ...points.map((point) => point.y)];
  xs.push(Math.min(...xs) / 2, Math.max(...xs) * 2);
  ys.push(roofs.compute * 1.3);
  const chart = frame(host, xs, ys, {
    x: `FLOP per byte of ${memory}`,
    y: "FLOP/s",
    title: "Roofline: operators by arithmetic intensity and FLOP/s; the table below has the numbers",
  });
  const least = 10 ** chart.y0;
  const left = 10 ** chart.x0;
  for (const [name, bandwidth] of levels) {
    const start = Math.max(left, least / bandwidth);
    const end = Math.min(roofs.compute / bandwidth, 10 ** chart.x1);
    if (end <= start) continue;
    chart.svg.append(
      s("line", {
        class: name === memory ? "roof" : "roof inner",
        x1: chart.x(start),
        y1: chart.y(start * bandwidth),
        x2: chart.x(end),
        y2: chart.y(end * bandwidth),
      }),
    );
    const at = start * (end / start) ** 0.3;
    const angle =
      (Math.atan2(chart.y(end * bandwidth) - chart.y(start * bandwidth), chart.x(end) - chart.x(start)) *
        180) /
      Math.PI;
    if (chart.x(end) - chart.x(start) > 90) {
      chart.svg.append(
        s(
          "text",
          {
            class: "faint",
            transform: `translate(${chart.x(at)} ${chart.y(at * bandwidth) - 5}) rotate(${angle})`,
          },
          `${name} ${short(bandwidth, "B/s")}`,
        ),
      );
    }
  }
  const from = Math.max(left, roofs.compute / Math.max(...levels.map(([, bandwidth]) => bandwidth)));
  chart.svg.append(
    s("line", {
      class: "roof",
      x1: chart.x(from),
      x2: chart.right,
      y1: chart.y(roofs.compute),
      y2: chart.y(roofs.compute),
    }),
    s(
      "text",
      { class: "faint", x: chart.right, y: chart.y(roofs.compute) - 5, "text-anchor": "end" },
      `${roofs.precision} ${short(roofs.compute, "FLOP/s")}`,
    ),
  );
  for (const { row, x, y } of points) {
    const radius = 3 + 14 * Math.sqrt(row.time / timeOfPass(row, rows));
    chart.svg.append(
      s(
        "circle",
        {
          class: row.pass_name === passes[1] ? "point b" : "point",
          cx: chart.x(x),
          cy: chart.y(y),
          r: radius,
        },
        s("title", {}, `${operatorName(row, rows)}: ${row.time_text}, bound by ${row.bound}`),
      ),
    );
  }
  const kinds = passes.length > 1 ? `Blue: ${passes[0]}; orange: one pass of ${passes[1]}. ` : "";
  return [
    chart.svg,
    h(
      "p",
      { class: "hint" },
      `${kinds}Areas are shares of the time of a pass. ${rest} of ${rows.length} operators have no FLOP on ` +
        "the matrix units, or no traffic: they are in the table.",
    ),
  ];
}

/** Layouts by time and memory, and the front of those that no other beats. */
export function scatter(host, front, now) {
  const all = [...front.points, ...front.best.map((one) => [one.time, one.peak])];
  if (now) all.push([now.outputs.time.value, now.memory.peak]);
  if (!all.length) return [h("p", {}, "No layout fits memory.")];
  const chart = frame(
    host,
    all.map(([time]) => time),
    all.map(([, peak]) => peak),
    {
      x: "time in s",
      y: "memory of a device in bytes",
      title: "Layouts by time and memory; the table below has the front",
    },
  );
  for (const [time, peak] of front.points) {
    chart.svg.append(s("circle", { class: "point dim", cx: chart.x(time), cy: chart.y(peak), r: 2.5 }));
  }
  const steps = front.best.map((one) => [chart.x(one.time), chart.y(one.peak)]);
  const path = steps.map(([x, y], index) => (index ? `H${x}V${y}` : `M${x} ${y}`)).join("");
  if (path) chart.svg.append(s("path", { class: "front", d: path }));
  for (const one of front.best) {
    chart.svg.append(
      s(
        "circle",
        { class: "point", cx: chart.x(one.time), cy: chart.y(one.peak), r: 5 },
        s("title", {}, `${one.layout}: ${one.time_text}, ${one.peak_text}`),
      ),
    );
  }
  if (now) {
    const [x, y] = [chart.x(now.outputs.time.value), chart.y(now.memory.peak)];
    chart.svg.append(
      s("circle", { class: "point b", cx: x, cy: y, r: 5 }, s("title", {}, `this layout: ${now.strategy}`)),
    );
  }
  return [chart.svg];
}
