// The page: one view per question. The address holds what is asked; what is asked holds what is shown.
import { views } from "./views.js";
import { buildForm, readForm, fillForm, showError, clearErrors } from "./form.js";
import { ask, upload } from "./api.js";
import { element, sortable, explanation } from "./parts.js";

const $ = (id) => document.getElementById(id);
let current = null;
let files = {};
let pending = null;
let last = null;

function readAddress() {
  const [name, query] = location.hash.slice(1).split("?");
  return [views[name] ? name : "train", Object.fromEntries(new URLSearchParams(query || ""))];
}

function writeAddress(values) {
  const kept = Object.entries(values).filter(([, v]) => v !== "" && v !== false && v !== undefined).map(([k, v]) => [k, Array.isArray(v) ? v.join(" ") : v]);
  for (const [k, v] of Object.entries(views[current].defaults)) if (v === true && !values[k]) kept.push([k, "false"]);
  history.replaceState(null, "", `#${current}?${new URLSearchParams(kept)}`);
}

async function open() {
  const [name, values] = readAddress();
  if (name !== current) {
    current = name;
    files = {};
    last = null;
    const view = views[name];
    for (const link of $("views").children) {
      if (link.dataset.view === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${view.title} - Rooftop`;
    $("title").textContent = view.title;
    $("about").textContent = view.about;
    $("answer").replaceChildren();
    await buildForm($("form"), view, { dropped: (kind, text, label) => { files[kind] = text; files.label = label; refresh(0); }, uploaded: send });
  }
  fillForm($("form"), { ...views[name].defaults, ...values });
  refresh(0);
}

let timer = 0;
function refresh(wait = 250) {
  clearTimeout(timer);
  timer = setTimeout(run, wait);
}

function question() {
  const { label, ...brought } = files;
  const values = readForm($("form"));
  writeAddress(values);
  const request = { ...values, ...brought };
  if (brought.config) delete request.model;
  if (brought.plan) delete request.mesh;
  return request;
}

async function run() {
  const view = views[current];
  if (view.upload || !view.command) { view.start?.($("answer")); return; }
  const request = question();
  pending?.abort();
  const mine = (pending = new AbortController());
  $("answer").classList.add("stale");
  $("status").textContent = "Computing ...";
  const started = performance.now();
  try {
    const result = await ask(view.command, request, mine.signal);
    settle(view, request, result, performance.now() - started);
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  }
}

async function send(list, on) {
  $("status").textContent = "Reading the profile ...";
  $("answer").classList.add("stale");
  const started = performance.now();
  try {
    settle(views[current], { on }, await upload(list, on), performance.now() - started);
  } catch (error) { fail(error); }
}

function settle(view, request, result, ms) {
  clearErrors($("form"));
  $("problem").hidden = true;
  $("answer").classList.remove("stale");
  $("status").textContent = `Answered in ${ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`}.`;
  last = { view: current, request, result };
  render(view, request, result);
}

function fail(error) {
  $("answer").classList.remove("stale");
  $("status").textContent = "";
  clearErrors($("form"));
  const beside = showError($("form"), error.field, error.message);
  $("problem").hidden = beside;
  if (!beside) $("problem").textContent = error.message;
  if (last?.view !== current) $("answer").replaceChildren();
}

function render(view, request, { answer, figures }) {
  const parts = [];
  const shown = view.show(answer, request);
  if (shown.headline) parts.push(element("p", { class: "headline" }, shown.headline));
  if (shown.cards?.length) {
    parts.push(element("dl", { class: "cards" }, ...shown.cards.filter(Boolean).map((c) => {
      const inside = [element("dt", {}, c.label), element("dd", {}, c.value, c.more ? element("small", {}, c.more) : "")];
      if (c.explain) {
        const why = element("button", { type: "button", "aria-label": `Explain ${c.label}` }, "explain");
        why.addEventListener("click", () => explain(view, request, c.explain, c.label));
        inside[1].append(why);
      }
      return element("div", { class: "card" }, ...inside);
    })));
  }
  const actions = [["Download answer.json", () => rooftopFigures.save("answer.json", "application/json", JSON.stringify(answer, null, 2))]];
  if (answer.best?.mesh && view.plan) {
    actions.unshift(["Download plan.json", () => rooftopFigures.save("plan.json", "application/json", planFile(answer, request))]);
  }
  actions.push(["Copy the address", () => navigator.clipboard?.writeText(location.href)]);
  parts.push(element("div", { class: "actions" }, ...actions.map(([text, action]) => {
    const b = element("button", { type: "button" }, text);
    b.addEventListener("click", action);
    return b;
  }), ...(answer.best?.mesh && view.plan ? exporter(answer, request) : [])));
  const grid = element("div", { class: "figures" });
  const brush = [];
  const drawn = figures.map((figure) => {
    const place = element("figure", {});
    grid.append(place);
    return [place, figure];
  });
  const tables = (shown.tables ?? []).filter((t) => t.rows.length).map((t) => sortable(t));
  const first = tables.slice(0, shown.lead ?? 1);
  parts.push(...first.map((t) => t.panel), grid, ...tables.slice(first.length).map((t) => t.panel));
  if (answer.assumptions?.length) {
    parts.push(element("section", { class: "panel" }, element("h2", {}, "Assumptions"), element("ul", { class: "notes" }, ...answer.assumptions.map((a) => element("li", {}, a)))));
  }
  $("answer").replaceChildren(...parts);
  for (const [place, figure] of drawn) {
    const done = rooftopFigures.draw(place, figure);
    if (figure.name === "frontier") done.then((plot) => brushing(plot, tables[0]));
  }
  return brush;
}

function brushing(plot, table) {
  if (!table) return;
  const undo = () => Plotly.restyle(plot, { selectedpoints: [null] }).then(() => Plotly.relayout(plot, { selections: [] }));
  plot.on("plotly_selected", (event) => table.keep(event?.points?.length ? new Set(event.points.map((p) => p.customdata)) : null, undo));
  plot.on("plotly_deselect", () => table.keep(null));
}

const PLAN = ["mesh", "placement", "microbatches", "microbatch_sequences"];
const NOT_PLAN = new Set(["chips", "batch_tokens", "fits", "step_seconds", "bottleneck", "bounds", "mfu", "tokens_per_second_per_chip", "memory", "time_parts", "reason"]);
const FOR = ["precision", "optimizer", "optimizer_dtype", "gradient_dtype", "reduction_dtype", "capacity_factor", "collective_matmul", "headroom", "lengths", "packing"];
const planFile = (answer, request) => JSON.stringify({
  version: 1,
  for: {
    model: answer.model, slice: answer.slice, seq: answer.seq, batch: answer.best.batch_tokens,
    ...Object.fromEntries(FOR.filter((k) => request[k] !== undefined && request[k] !== "").map((k) => [k, request[k]])),
  },
  ...planOf(answer.best),
}, null, 2);

// The plan as a configuration of another framework, and in words what that cannot say.
const ENDINGS = { maxtext: "yml", torchtitan: "toml", deepspeed: "json", nemo: "yaml" };
function exporter(answer, request) {
  const told = element("span", { role: "status", class: "told" });
  const choose = element("select", { id: "export-to", "aria-label": "Framework" }, ...["maxtext", "megatron", "torchtitan", "deepspeed", "nemo", "vllm", "sglang", "tensorrt-llm"].map((name) => element("option", { value: name }, name)));
  const go = element("button", { type: "button" }, "Download its configuration");
  go.addEventListener("click", async () => {
    told.textContent = "";
    try {
      const made = (await ask("export", { plan: planFile(answer, request), to: choose.value })).answer;
      rooftopFigures.save(`${made.framework}.${ENDINGS[made.framework] ?? "txt"}`, "text/plain", made.text);
      told.textContent = made.not_expressed.length ? `Not expressed: ${made.not_expressed.join("; ")}.` : "";
    } catch (error) { told.textContent = error.message; }
  });
  return [element("span", { class: "pair" }, choose, go), told];
}
const planOf = (best) => Object.fromEntries(Object.entries(best).filter(([k]) => PLAN.includes(k) || !NOT_PLAN.has(k)));

async function explain(view, request, quantity, label) {
  $("explain-title").textContent = label;
  $("explain-body").replaceChildren(element("p", {}, "Deriving ..."));
  $("explain").showModal();
  try {
    const { answer } = await ask(view.command, { ...request, explain: quantity, depth: 4 });
    $("explain-body").replaceChildren(explanation(answer.explanation));
  } catch (error) {
    $("explain-body").replaceChildren(element("p", { class: "error" }, error.message));
  }
}

$("theme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("rooftop-theme", root.dataset.theme); } catch { /* storage may be forbidden */ }
  rooftopFigures.drawAll();
});
for (const [name, view] of Object.entries(views)) {
  $("views").append(element("a", { href: `#${name}`, "data-view": name }, view.title));
}
$("form").addEventListener("input", (event) => { if (event.target.type !== "file") refresh(event.target.type === "checkbox" ? 0 : 300); });
$("form").addEventListener("submit", (event) => { event.preventDefault(); refresh(0); });
addEventListener("hashchange", open);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
open();
