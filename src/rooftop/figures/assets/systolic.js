// Plays a matmul on a systolic array: weights stand, inputs enter from the left, sums leave below.
"use strict";
const rooftopSystolic = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const CELL = 58;
  const SMALL = 30;
  const shade = (row, strength = 1) => `hsl(${(row * 61 + 205) % 360} 60% 52% / ${strength})`;

  function svg(tag, attributes, text) {
    const result = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) result.setAttribute(name, value);
    if (text !== undefined) result.textContent = text;
    return result;
  }

  function play(holder, figure) {
    const { rows, inner, columns, steps } = figure.scene;
    const left = (rows + inner) * SMALL + 24;
    const top = 26;
    const width = left + columns * CELL + 96;
    const height = top + inner * CELL + 40 + rows * SMALL;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${figure.title}. ${figure.caption}`, style: "display:block;width:100%;max-width:46rem;max-height:75vh;margin:auto;color:inherit", "font-family": "system-ui, sans-serif", "font-size": 11, "text-anchor": "middle", "dominant-baseline": "central", fill: "currentColor" });
    picture.append(svg("text", { x: left + (columns * CELL) / 2, y: 12 }, "weights W[k, n], one in each cell"));
    picture.append(svg("text", { x: left / 2 - 8, y: 12 }, "inputs X[m, k]"));
    picture.append(svg("text", { x: left + columns * CELL + 48, y: top + inner * CELL + 40 + (rows * SMALL) / 2 }, "sums Y[m, n]"));
    const cells = new Map();
    for (let k = 0; k < inner; k++) {
      for (let n = 0; n < columns; n++) {
        const [x, y] = [left + n * CELL, top + k * CELL];
        const glow = svg("rect", { x: x + 1, y: y + 1, width: CELL - 2, height: CELL - 2, rx: 5, fill: "none" });
        const frame = svg("rect", { x: x + 1, y: y + 1, width: CELL - 2, height: CELL - 2, rx: 5, fill: "none", stroke: "currentColor", "stroke-opacity": 0.45 });
        const sum = svg("rect", { x: x + 7, y: y + CELL - 11, width: 0, height: 5, rx: 2 });
        picture.append(glow, frame, svg("text", { x: x + CELL / 2, y: y + 13, "fill-opacity": 0.85 }, `W${k}${n}`), sum);
        cells.set(`${k},${n}`, { glow, sum });
      }
    }
    const outputs = [];
    for (let n = 0; n < columns; n++) {
      for (let m = 0; m < rows; m++) {
        const [x, y] = [left + n * CELL + CELL / 2, top + inner * CELL + 40 + (rows - 1 - m) * SMALL + SMALL / 2 - 8];
        const box = svg("rect", { x: x - 16, y: y - 11, width: 32, height: 22, rx: 4, fill: shade(m, 0.55), stroke: shade(m) });
        const name = svg("text", { x, y }, `Y${m}${n}`);
        picture.append(box, name);
        outputs.push({ m, n, parts: [box, name] });
      }
    }
    const inputs = [];
    for (let m = 0; m < rows; m++) {
      for (let k = 0; k < inner; k++) {
        const group = svg("g", {});
        group.append(svg("circle", { r: 12, fill: shade(m), stroke: "currentColor", "stroke-opacity": 0.5 }), svg("text", { fill: "#fff", "font-weight": 600, "font-size": 10 }, `X${m}${k}`));
        picture.append(group);
        inputs.push({ m, k, group });
      }
    }
    // the column where an input is; before the first one it waits on the left
    const across = (column) => (column < 0 ? left + column * SMALL + SMALL / 2 - 10 : left + column * CELL + CELL / 2);

    function show(step, part) {
      for (const { m, k, group } of inputs) {
        const column = step - 1 - m - k;
        const [from, to] = [across(Math.min(column - 1, columns)), across(Math.min(column, columns))];
        const eased = part * part * (3 - 2 * part);
        group.setAttribute("transform", `translate(${from + (to - from) * eased} ${top + k * CELL + CELL / 2 + 2})`);
        group.setAttribute("opacity", column >= columns ? Math.max(0, column === columns ? 1 - part : 0) : 1);
      }
      for (let k = 0; k < inner; k++) {
        for (let n = 0; n < columns; n++) {
          const m = step - 1 - k - n;
          const { glow, sum } = cells.get(`${k},${n}`);
          const busy = step > 0 && m >= 0 && m < rows;
          glow.setAttribute("fill", busy ? shade(m, 0.28 * part) : "none");
          sum.setAttribute("width", busy ? ((CELL - 14) * (k + part)) / inner : 0);
          sum.setAttribute("fill", busy ? shade(m) : "none");
        }
      }
      for (const { m, n, parts } of outputs) {
        const done = step - 1 - (inner - 1) - n - m;
        const seen = done > 0 || (done === 0 && part >= 1) ? 1 : 0;
        for (const each of parts) each.setAttribute("opacity", seen);
      }
    }

    rooftopPlayer({
      holder, picture, total: steps, label: "Step of the matmul", each: 700, show,
      says: (step) => {
        if (step === 0) return `Before the first of ${steps} steps: the weights stand in the array, the inputs wait, each row of the array a step later than the one above.`;
        const [, busy, share, finished] = figure.rows[step - 1];
        return `Step ${step} of ${steps}: ${busy} of ${inner * columns} cells multiply and add (${Math.round(share * 100)}%)${finished ? `; out ${finished.includes("] ") ? "come" : "comes"} ${finished.replaceAll("] ", "], ")}` : ""}.`;
      },
    });
    return picture;
  }

  return { play };
})();
globalThis.rooftopSystolic = rooftopSystolic;
