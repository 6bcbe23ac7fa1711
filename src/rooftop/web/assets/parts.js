// Small parts of the page, and how numbers are written.
export function element(tag, attributes = {}, ...children) {
  const result = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) result.setAttribute(name, value);
  result.append(...children.filter((c) => c !== null && c !== undefined));
  return result;
}

const three = (v) => Number(v.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
function scaled(value, steps) {
  const [size, unit] = steps.find(([s]) => Math.abs(value) >= s);
  return `${three(value / (size || 1))}${unit}`;
}
const none = (f) => (v, ...more) => (v === null || v === undefined ? "-" : f(v, ...more));
export const count = none((v) => scaled(v, [[1e15, "P"], [1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"], [0, ""]]));
export const bytes = none((v) => scaled(v, [[1e15, " PB"], [1e12, " TB"], [1e9, " GB"], [1e6, " MB"], [1e3, " kB"], [0, " B"]]));
const TIMES = [[86400, " d", 36 * 3600], [3600, " h", 5400], [60, " min", 90], [1, " s"], [1e-3, " ms"], [1e-6, " us"], [1e-9, " ns"]];
export const seconds = none((v) => {
  const [size, unit] = v === 0 ? [1, " s"] : TIMES.find(([s, , least]) => Math.abs(v) >= (least ?? s)) ?? TIMES.at(-1);
  return `${three(v / size)}${unit}`;
});
export const percent = none((v) => `${(100 * v).toFixed(1)}%`);
export const usd = none((v) => (v >= 1e4 ? `${count(v)} USD` : `${three(v)} USD`));
export const whole = none((v) => Math.round(v).toLocaleString("en"));
export const mesh = none((m) => Object.entries(m).filter(([, n]) => n > 1).map(([a, n]) => `${a}=${n}`).join(", ") || "one chip");

// columns: [{ name, value(row), text(row), number }]; rows: anything; action: { text, run(row) }
export function sortable({ title, columns, rows, key, action, best }) {
  const body = element("tbody");
  const heads = [];
  let order = null;
  let kept = null;
  const all = element("button", { type: "button" }, "Show all");
  const note = element("p", { class: "picked", "aria-live": "polite" }, document.createTextNode(""), all);
  const fill = () => {
    const sorted = [...rows];
    if (order) {
      const { column, down } = order;
      sorted.sort((a, b) => {
        const [x, y] = [column.value(a), column.value(b)];
        const sign = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return down ? -sign : sign;
      });
    }
    const picked = kept ? sorted.filter((row) => kept.has(key(row))) : sorted;
    note.hidden = !kept;
    note.firstChild.textContent = `${picked.length} of ${rows.length} rows are picked in the chart.`;
    body.replaceChildren(...picked.map((row) => {
      const line = element("tr", {}, ...columns.map((c) => element("td", c.number ? { class: "n" } : c.long ? { class: "long" } : {}, c.text ? c.text(row) : String(c.value(row)))));
      if (best?.(row)) line.className = "best";
      if (action) {
        const b = element("button", { type: "button" }, action.text);
        b.addEventListener("click", () => action.run(row));
        line.append(element("td", {}, b));
      }
      return line;
    }));
  };
  for (const column of columns) {
    const b = element("button", { type: "button" }, column.name);
    const head = element("th", { scope: "col", ...(column.number ? { class: "n" } : {}) }, b);
    b.addEventListener("click", () => {
      order = { column, down: order?.column === column ? !order.down : false };
      for (const h of heads) h.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      fill();
    });
    heads.push(head);
  }
  if (action) heads.push(element("th", { scope: "col" }, element("span", {}, "")));
  let unpick = null;
  const keep = (keys, undo) => { kept = keys; unpick = undo ?? null; fill(); };
  all.addEventListener("click", () => { const undo = unpick; keep(null); undo?.(); });
  fill();
  const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, element("table", { class: "data" }, element("thead", {}, element("tr", {}, ...heads)), body));
  return { panel: element("section", { class: "panel" }, element("h2", {}, title), note, scroll), keep };
}

const five = (v) => (Math.abs(v) >= 1e6 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(4) : String(Number(v.toPrecision(5))));
export function explanation(e) {
  const one = (x, depth) => {
    const lines = [];
    if (x.formula) lines.push(element("code", {}, `= ${x.formula}`));
    if (x.substitution && x.substitution !== x.formula) lines.push(element("code", {}, `= ${x.substitution}`));
    if (x.source) lines.push(element("small", {}, `source: ${x.source}`));
    if (x.note) lines.push(element("small", {}, ` ${x.note}`));
    const inside = x.inputs?.length ? [element("ul", { class: "tree" }, ...x.inputs.map((i) => one(i, depth + 1)))] : [];
    return element("li", {}, element("b", {}, `${x.name} = ${five(x.value)} ${x.unit}`), ...lines, ...inside);
  };
  return element("ul", { class: "tree" }, one(e, 0));
}
