// Draws figures with Plotly in the theme of the page. The same file serves the page, reports and notebooks.
"use strict";
const rooftopFigures = (() => {
  const config = { displaylogo: false, responsive: true, displayModeBar: false };

  function theme(element) {
    const style = getComputedStyle(element);
    const ink = style.color || "#1c2430";
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 13, color: ink },
      margin: { l: 60, r: 20, t: 24, b: 92 },
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0 },
      hoverlabel: { align: "left", font: { family: "system-ui, sans-serif", size: 13 } },
      hovermode: "closest",
      autosize: true,
    };
  }

  const GRID = "rgba(128,128,128,.25)";

  function themed(element, figure) {
    const layout = { ...theme(element), ...figure.layout };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis/.test(key)) {
        layout[key] = { gridcolor: GRID, zerolinecolor: GRID, linecolor: GRID, ...layout[key] };
      }
    }
    return layout;
  }

  function number(value) {
    if (value === null || value === undefined) return "-";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
    return value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)
      ? value.toExponential(3) : String(Number(value.toPrecision(5)));
  }

  function table(figure) {
    const result = document.createElement("table");
    const head = result.createTHead().insertRow();
    for (const name of figure.columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name.replaceAll("_", " ");
      head.append(cell);
    }
    const body = result.createTBody();
    for (const row of figure.rows) {
      const line = body.insertRow();
      for (const value of row) line.insertCell().textContent = number(value);
    }
    return result;
  }

  function csv(figure) {
    const cell = (v) => (v === null || v === undefined ? "" : /[",\n]/.test(String(v)) ? `"${String(v).replaceAll('"', '""')}"` : String(v));
    return [figure.columns, ...figure.rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function button(text, label, action) {
    const result = document.createElement("button");
    result.type = "button";
    result.textContent = text;
    result.setAttribute("aria-label", label);
    result.addEventListener("click", action);
    return result;
  }

  function image(plot, figure, format) {
    return Plotly.downloadImage(plot, { format, filename: figure.name, width: 1100, height: figure.layout.height || 450, scale: 2 });
  }

  // element: a <figure>; draws into it, or draws it anew.
  function draw(element, figure) {
    element.replaceChildren();
    element.classList.add("rt-figure");
    const heading = document.createElement("h3");
    heading.textContent = figure.title;
    const caption = document.createElement("figcaption");
    caption.textContent = figure.caption;
    let picture = null;
    const plot = document.createElement("div");
    plot.className = "rt-plot";
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${figure.title}. ${figure.caption}`);
    const numbers = document.createElement("div");
    numbers.className = "rt-numbers";
    numbers.hidden = true;
    numbers.tabIndex = 0;
    numbers.setAttribute("role", "region");
    numbers.setAttribute("aria-label", `Numbers of: ${figure.title}`);
    const toggle = button("Numbers", `Numbers of: ${figure.title}`, () => {
      if (!numbers.childElementCount) numbers.append(table(figure));
      numbers.hidden = !numbers.hidden;
      toggle.setAttribute("aria-expanded", String(!numbers.hidden));
    });
    toggle.setAttribute("aria-expanded", "false");
    const tools = document.createElement("div");
    tools.className = "rt-tools";
    tools.append(
      toggle,
      button("CSV", `Download the numbers of: ${figure.title}`, () => save(`${figure.name}.csv`, "text/csv", csv(figure))),
      button("SVG", `Download as SVG: ${figure.title}`, () => (picture ? save(`${figure.name}.svg`, "image/svg+xml", rooftopScene.source(picture)) : image(plot, figure, "svg"))),
      button("PNG", `Download as PNG: ${figure.title}`, () => (picture ? rooftopScene.png(picture, `${figure.name}.png`) : image(plot, figure, "png"))),
    );
    element.append(heading, caption, plot, tools, numbers);
    element.rooftop = figure;
    if (figure.scene) {
      plot.removeAttribute("role");
      plot.removeAttribute("aria-label");
      picture = (figure.scene.systolic ? rooftopSystolic : rooftopScene).play(plot, figure);
      return Promise.resolve(plot);
    }
    return Plotly.newPlot(plot, structuredClone(figure.data), themed(element, figure), config).then(() => plot);
  }

  function drawAll(root = document) {
    for (const element of root.querySelectorAll("figure.rt-figure")) {
      const source = element.querySelector(':scope > script[type="application/json"]');
      if (source) draw(element, JSON.parse(source.textContent));
      else if (element.rooftop) draw(element, element.rooftop);
    }
  }

  return { draw, drawAll, csv, save, number };
})();
globalThis.rooftopFigures = rooftopFigures;
