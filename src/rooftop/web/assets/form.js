// Forms from the schema of the API: the fields that matter first, all others folded away.
import { element } from "./parts.js";
import { schema } from "./api.js";

// Fields whose values have commas of their own: spaces part them.
const LISTS = new Set(["set", "vary", "number"]);
const HIDDEN = new Set(["explain", "depth", "config", "plan", "requests", "requests_jsonl", "alternatives"]);

function inner(property) {
  return (property.anyOf ?? [property]).find((p) => p.type !== "null") ?? {};
}

function field(name, property, needed) {
  const kind = inner(property);
  const id = `field-${name}`;
  const help = (property.description ?? "").replace(/\s+/g, " ");
  const choices = kind.enum ?? inner(kind.items ?? {}).enum ?? (kind.const ? [kind.const] : null);
  let input;
  if (kind.type === "boolean") input = element("input", { type: "checkbox", id, name });
  else if (choices) input = element("select", { id, name }, element("option", { value: "" }, kind.type === "array" ? "all are tried" : "default"), ...choices.map((c) => element("option", { value: c }, c)));
  else input = element("input", { type: "text", id, name, autocomplete: "off", spellcheck: "false" });
  input.dataset.kind = kind.type === "array" ? "array" : kind.type ?? "string";
  input.setAttribute("aria-describedby", `${id}-help ${id}-error`);
  if (needed) input.required = true;
  if (name === "model" || name === "names" || name === "draft") input.setAttribute("list", "models");
  if (name === "on" || name === "prefill_on" || name === "name") input.setAttribute("list", "slices");
  const title = name.replaceAll("_", " ");
  const label = element("label", { for: id }, ...(kind.type === "boolean" ? [input, title] : [title]));
  const parts = [label];
  if (kind.type !== "boolean") parts.push(input);
  parts.push(element("small", { id: `${id}-help` }, help), element("div", { class: "error", id: `${id}-error` }));
  return element("div", { class: `field${kind.type === "boolean" ? " check" : ""}`, "data-field": name }, ...parts);
}

function dropArea(view, dropped) {
  const input = element("input", { type: "file", id: "drop", accept: ".json,.csv,.jsonl", "aria-label": `Choose a file: ${view.drop.text}` });
  const told = element("span", { role: "status" }, view.drop.text);
  const area = element("div", { class: "drop" }, told, input);
  const take = async (file) => {
    if (!file) return;
    const kind = view.drop.kind(file.name);
    if (file.size > 5e6) { told.textContent = `${file.name} is larger than 5 MB`; return; }
    dropped(kind, await file.text(), file.name);
    told.textContent = `${file.name} is used; choose another, or reload to go back`;
  };
  input.addEventListener("change", () => take(input.files[0]));
  area.addEventListener("dragover", (e) => { e.preventDefault(); area.classList.add("over"); });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", (e) => { e.preventDefault(); area.classList.remove("over"); take(e.dataTransfer.files[0]); });
  return area;
}

function uploadArea(uploaded) {
  const on = element("input", { type: "text", id: "field-on", name: "on", list: "slices", autocomplete: "off" });
  const input = element("input", { type: "file", id: "field-files", name: "files", multiple: "", accept: ".pb,.gz,.json,.sqlite" });
  const go = () => { if (input.files.length) uploaded([...input.files], on.value.trim()); };
  input.addEventListener("change", go);
  on.addEventListener("change", go);
  const area = element("div", { class: "drop" }, element("label", { for: "field-files" }, "Choose profiles, or drop them here"), input);
  area.addEventListener("dragover", (e) => { e.preventDefault(); area.classList.add("over"); });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", (e) => { e.preventDefault(); area.classList.remove("over"); uploaded([...e.dataTransfer.files], on.value.trim()); });
  return [
    element("div", { class: "field", "data-field": "files" }, area, element("div", { class: "error", id: "field-files-error" })),
    element("div", { class: "field", "data-field": "on" }, element("label", { for: "field-on" }, "on"), on, element("small", {}, "The chip, where the profile does not name one."), element("div", { class: "error", id: "field-on-error" })),
  ];
}

export async function buildForm(form, view, { dropped, uploaded }) {
  const [api, catalogue] = await schema();
  const lists = [
    element("datalist", { id: "models" }, ...catalogue.models.map((m) => element("option", { value: m }))),
    element("datalist", { id: "slices" }, ...Object.entries(catalogue.chips).flatMap(([chip, slices]) => [chip, ...slices]).map((s) => element("option", { value: s }))),
  ];
  if (view.upload) { form.replaceChildren(...lists, ...uploadArea(uploaded)); return; }
  if (!view.command) { form.replaceChildren(...(view.fields ?? [])); return; }
  const request = api.components.schemas[`${view.command[0].toUpperCase()}${view.command.slice(1)}Request`];
  const make = (name) => field(name, request.properties[name], (request.required ?? []).includes(name));
  const rest = Object.keys(request.properties).filter((n) => !view.first.includes(n) && !HIDDEN.has(n) && !(view.without ?? []).includes(n));
  const parts = [...lists, ...view.first.map(make)];
  if (view.drop) parts.push(dropArea(view, dropped));
  if (rest.length) parts.push(element("details", {}, element("summary", {}, `${rest.length} more options`), ...rest.map(make)));
  form.replaceChildren(...parts);
}

export function readForm(form) {
  const values = {};
  for (const input of form.querySelectorAll("input[name],select[name]")) {
    if (input.type === "file") continue;
    if (input.type === "checkbox") { if (input.checked) values[input.name] = true; continue; }
    const text = input.value.trim();
    if (text === "") continue;
    const kind = input.dataset.kind;
    if (kind === "array") values[input.name] = text.split(LISTS.has(input.name) ? /\s+/ : /[ ,]+/);
    else if ((kind === "integer" || kind === "number") && Number.isFinite(Number(text))) values[input.name] = Number(text);
    else values[input.name] = text;
  }
  return values;
}

export function fillForm(form, values) {
  for (const input of form.querySelectorAll("input[name],select[name]")) {
    if (input.type === "file") continue;
    const value = values[input.name];
    if (input.type === "checkbox") input.checked = value === true || value === "true";
    else input.value = value ?? "";
    if (value && input.closest("details")) input.closest("details").open = true;
  }
}

export function clearErrors(form) {
  for (const each of form.querySelectorAll(".error")) each.textContent = "";
  for (const each of form.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
}

export function showError(form, name, message) {
  const box = name && form.querySelector(`[data-field="${CSS.escape(name)}"]`);
  if (!box) return false;
  const details = box.closest("details");
  if (details) details.open = true;
  box.querySelector(".error").textContent = message;
  box.querySelector("input,select")?.setAttribute("aria-invalid", "true");
  return true;
}
