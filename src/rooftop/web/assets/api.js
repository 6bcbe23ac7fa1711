// Questions over HTTP; what is refused is thrown with its field.
async function settled(response) {
  const data = await response.json();
  if (data.error) throw Object.assign(new Error(data.error.message), { field: data.error.field, kind: data.error.kind });
  return data;
}

export async function ask(command, request, signal) {
  const body = JSON.stringify(Object.fromEntries(Object.entries(request).filter(([, v]) => v !== "" && v !== undefined)));
  return settled(await fetch(`/api/${command}`, { method: "POST", headers: { "content-type": "application/json" }, body, signal }));
}

export async function upload(files, on) {
  const form = new FormData();
  for (const file of files) form.append("files", file);
  return settled(await fetch(`/api/trace${on ? `?on=${encodeURIComponent(on)}` : ""}`, { method: "POST", body: form }));
}

let known = null;
export function schema() {
  known ??= Promise.all([fetch("/openapi.json"), fetch("/api/catalogue")].map((r) => r.then((x) => x.json())));
  return known;
}
