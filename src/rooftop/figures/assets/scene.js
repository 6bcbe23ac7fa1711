// Plays a collective on a drawn network, step by step.
"use strict";
const rooftopScene = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const STEP = 900;

  function svg(tag, attributes) {
    const result = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) result.setAttribute(name, value);
    return result;
  }

  function play(holder, figure) {
    const scene = figure.scene;
    const xs = scene.nodes.map((p) => p[0]);
    const ys = scene.nodes.map((p) => p[1]);
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const scale = 60;
    const margin = 46;
    const width = (right - left) * scale + 2 * margin;
    const height = (bottom - top) * scale + 2 * margin;
    const at = (n) => [(scene.nodes[n][0] - left) * scale + margin, (scene.nodes[n][1] - top) * scale + margin];
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${figure.title}. ${figure.caption}`, style: `display:block;width:100%;max-width:${Math.round(Math.max(width * 1.3, 320))}px;max-height:70vh;margin:auto;color:inherit` });
    const lines = svg("g", { fill: "none", "stroke-width": 4, "stroke-linecap": "round" });
    const dots = svg("g", {});
    const moving = svg("g", {});
    const wraps = (a, b) => Math.hypot(scene.nodes[a][0] - scene.nodes[b][0], scene.nodes[a][1] - scene.nodes[b][1]) > 1.01 && scene.shape === "torus";
    const curve = (a, b) => {
      const [[x1, y1], [x2, y2]] = [at(a), at(b)];
      if (!wraps(a, b)) return `M${x1} ${y1}L${x2} ${y2}`;
      const [dx, dy] = [x2 - x1, y2 - y1];
      const long = Math.hypot(dx, dy) || 1;
      const bow = Math.min(34, 10 + long * 0.05);
      return `M${x1} ${y1}Q${(x1 + x2) / 2 + (dy / long) * bow} ${(y1 + y2) / 2 - (dx / long) * bow} ${x2} ${y2}`;
    };
    for (const link of scene.links) {
      lines.append(svg("path", { d: curve(link.a, link.b), stroke: scene.shades[link.axis] ?? "#83888f", "stroke-opacity": scene.axes.includes(link.axis) ? 0.75 : 0.28 }));
    }
    const wheel = (n) => `hsl(${(n * 137.5) % 360} 62% 52%)`;
    scene.nodes.forEach((_, n) => {
      const [x, y] = at(n);
      const dot = svg("circle", { cx: x, cy: y, r: scene.radius, fill: wheel(n), stroke: "currentColor", "stroke-width": 1.5 });
      const told = svg("title", {});
      told.textContent = `chip ${n}, group ${scene.groups[n] ?? 0}`;
      dot.append(told);
      dots.append(dot);
    });
    picture.append(lines, dots, moving);

    const legend = document.createElement("p");
    legend.style.margin = ".2rem 0";
    for (const [axis, shade] of Object.entries(scene.shades)) {
      const mark = document.createElement("span");
      mark.style.cssText = `display:inline-block;width:1.4em;height:.35em;border-radius:2px;margin:0 .4em .15em 0;background:${shade}`;
      const name = document.createElement("span");
      name.style.marginRight = "1.2em";
      name.append(mark, axis === "(rest)" ? "not in the mesh" : axis);
      legend.append(name);
    }
    function along(path, part) {
      const whole = path.length - 1;
      const place = Math.min(whole - 1e-9, part * whole);
      const i = Math.floor(place);
      const t = place - i;
      const [a, b] = [path[i], path[i + 1]];
      const [[x1, y1], [x2, y2]] = [at(a), at(b)];
      if (!wraps(a, b)) return [x1 + (x2 - x1) * t, y1 + (y2 - y1) * t];
      const [dx, dy] = [x2 - x1, y2 - y1];
      const long = Math.hypot(dx, dy) || 1;
      const flip = a > b ? 1 : -1;
      const bow = Math.min(34, 10 + long * 0.05) * flip;
      const [cx, cy] = [(x1 + x2) / 2 + (dy / long) * bow, (y1 + y2) / 2 - (dx / long) * bow];
      const u = 1 - t;
      return [u * u * x1 + 2 * u * t * cx + t * t * x2, u * u * y1 + 2 * u * t * cy + t * t * y2];
    }

    function show(number, part) {
      const hops = number > 0 ? scene.steps[number - 1] : [];
      while (moving.childElementCount > hops.length) moving.lastChild.remove();
      while (moving.childElementCount < hops.length) moving.append(svg("circle", { r: scene.radius * 0.6, stroke: "currentColor", "stroke-width": 1 }));
      hops.forEach(([path, piece], n) => {
        const [x, y] = along(path, part);
        const dot = moving.children[n];
        dot.setAttribute("cx", x);
        dot.setAttribute("cy", y);
        dot.setAttribute("fill", wheel(piece));
      });
    }

    const total = scene.steps.length;
    rooftopPlayer({
      holder, total, legend, picture, label: `Step of the ${scene.kind}`, each: STEP, show,
      says: (step) => (step === 0 ? `Before the first of ${total} steps: every chip has its own piece.` : `Step ${step} of ${total}: ${scene.steps[step - 1].length} pieces on their way${step === total ? "; done" : ""}.`),
    });
    return picture;
  }

  function source(picture) {
    const copy = picture.cloneNode(true);
    copy.setAttribute("xmlns", NS);
    copy.style.color = getComputedStyle(picture).color;
    const [, , width, height] = picture.getAttribute("viewBox").split(" ");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    return new XMLSerializer().serializeToString(copy);
  }

  function png(picture, name) {
    const [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
    const image = new Image();
    image.onload = () => {
      const canvas = Object.assign(document.createElement("canvas"), { width: width * 2, height: height * 2 });
      canvas.getContext("2d").drawImage(image, 0, 0, width * 2, height * 2);
      canvas.toBlob((blob) => rooftopFigures.save(name, "image/png", blob));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source(picture))}`;
  }

  return { play, source, png };
})();
globalThis.rooftopScene = rooftopScene;
