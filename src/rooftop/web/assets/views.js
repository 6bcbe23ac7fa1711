// What each view asks and how its answer is read.
import { bytes, count, mesh, percent, seconds, usd, whole } from "./parts.js";

const plainNumber = (v) => (Math.abs(v) >= 1e4 ? count(v) : String(Number(v.toPrecision(4))));
// The answer with the number moved: the best found anew where that was asked for.
const moved = (move) => move?.best ?? move?.fixed;

const binds = (name) => `bound by ${name}`;

function planCards(answer) {
  const b = answer.best;
  const run = answer.run;
  return [
    { label: "step, expected", value: seconds(b.step_seconds.expected), more: `bound ${seconds(b.step_seconds.bound)}, ${binds(b.bottleneck)}`, explain: "step_seconds" },
    { label: "MFU", value: percent(b.mfu.expected), more: `${percent(b.mfu.bound)} at the bound`, explain: "mfu" },
    { label: "tokens/s per chip", value: whole(b.tokens_per_second_per_chip), more: `${whole(b.chips)} chips, batch of ${count(b.batch_tokens)} tokens`, explain: "tokens_per_second_per_chip" },
    { label: "memory per chip", value: bytes(b.memory.bytes), more: `of ${bytes(b.memory.capacity_bytes)}${b.fits ? "" : ": does not fit"}`, explain: "memory" },
    run && { label: "run", value: seconds(run.seconds), more: `${count(run.tokens)} tokens, ${count(run.chip_hours)} chip-hours`, explain: "run.seconds" },
    run?.usd && { label: "cost", value: usd(run.usd), more: `${count(run.tokens_per_usd)} tokens per USD`, explain: "run.usd" },
  ];
}

const go = (view, values) => { location.hash = `${view}?${new URLSearchParams(Object.entries(values).filter(([, v]) => v !== undefined && v !== null && v !== ""))}`; };

function planTable(answer, request) {
  const rows = [{ ...answer.best, reason: "the best" }, ...answer.alternatives];
  return {
    title: "The best plan and its alternatives, each the best of its mesh",
    rows,
    key: (e) => mesh(e.mesh),
    best: (e) => e.reason === "the best",
    columns: [
      { name: "mesh", value: (e) => mesh(e.mesh) },
      { name: "step", number: true, value: (e) => e.step_seconds.expected, text: (e) => seconds(e.step_seconds.expected) },
      { name: "MFU", number: true, value: (e) => e.mfu.expected, text: (e) => percent(e.mfu.expected) },
      { name: "memory", number: true, value: (e) => e.memory.bytes, text: (e) => bytes(e.memory.bytes) },
      { name: "chips", number: true, value: (e) => e.chips, text: (e) => whole(e.chips) },
      { name: "microbatches", number: true, value: (e) => e.microbatches },
      { name: "remat", value: (e) => e.remat },
      { name: "bound by", value: (e) => e.bottleneck },
      { name: "why it loses", long: true, value: (e) => e.reason },
    ],
    action: {
      text: "open",
      run: (e) => go("step", { model: request.model, on: answer.slice, batch: e.batch_tokens, seq: answer.seq, mesh: mesh(e.mesh).replaceAll(" ", ""), microbatches: e.microbatches, zero: e.zero, remat: e.remat }),
    },
  };
}

const planDrop = { text: "or drop a config.json here", kind: () => "config" };

export const views = {
  train: {
    title: "Train", command: "plan", plan: true,
    about: "The best of all ways to train a model on a slice: mesh, placement and schedule, and why the others lose.",
    first: ["model", "on", "batch", "seq", "tokens", "fix", "remat"],
    without: ["scale", "pareto", "limits", "timeline"],
    defaults: { model: "llama-3-70b", on: "v5p:8x8x16", batch: "4M", tokens: "15T" },
    drop: planDrop,
    show: (a, request) => ({ headline: `${a.model} on ${a.slice}: ${mesh(a.best.mesh)}`, cards: planCards(a), tables: [planTable(a, request)] }),
  },
  step: {
    title: "One plan", command: "step", plan: true,
    about: "Time, memory and cost of one plan that you name, or that a saved plan.json says.",
    first: ["model", "on", "mesh", "batch", "microbatches", "zero", "remat", "tokens"],
    without: ["timeline"],
    defaults: { model: "llama-3-8b", on: "h100:64", mesh: "fsdp=8,tensor=8", batch: "1M" },
    drop: { text: "or drop a plan.json or a config.json here", kind: (name) => (/plan/.test(name) ? "plan" : "config") },
    show: (a) => ({ headline: `${a.model} on ${a.slice}: ${mesh(a.best.mesh)}`, cards: planCards(a) }),
  },
  scaling: {
    title: "Scaling", command: "plan",
    about: "The same batch on more and more chips: where the curve bends, and what bends it.",
    first: ["model", "on", "batch", "scale"],
    without: ["pareto", "limits", "timeline", "days", "budget", "objective", "chips"],
    defaults: { model: "llama-3-70b", on: "h100", batch: "4M", scale: "64..2048" },
    drop: planDrop,
    show: (a) => ({
      headline: a.bend ? `${a.model} bends at ${whole(a.bend.chips)} chips: ${a.bend.why}` : `${a.model} does not bend`,
      tables: [{
        title: "The best plan at each size", rows: a.points, key: (p) => p.chips,
        columns: [
          { name: "slice", value: (p) => p.slice },
          { name: "chips", number: true, value: (p) => p.chips, text: (p) => whole(p.chips) },
          { name: "tokens/s", number: true, value: (p) => p.tokens_per_second, text: (p) => count(p.tokens_per_second) },
          { name: "step", number: true, value: (p) => p.best?.step_seconds.expected ?? 0, text: (p) => seconds(p.best?.step_seconds.expected) },
          { name: "MFU", number: true, value: (p) => p.best?.mfu.expected ?? 0, text: (p) => percent(p.best?.mfu.expected) },
          { name: "best mesh", value: (p) => (p.best ? mesh(p.best.mesh) : p.reason) },
        ],
      }],
    }),
  },
  whatif: {
    title: "What if", command: "whatif",
    about: "What limits an answer, and how far each number of hardware, model and workload moves it.",
    first: ["model", "on", "of", "mesh", "set", "measure", "by", "fixed"],
    defaults: { model: "llama-3-8b", on: "h100:64", of: "plan", set: "batch=1M", fixed: true },
    drop: { text: "or drop a config.json here", kind: () => "config" },
    show: (a) => ({
      headline: `${a.model} on ${a.slice}: ${a.limits[0] ? `${percent(a.limits[0].share)} of the time is ${a.limits[0].name}` : a.measure}`,
      cards: a.limits.slice(0, 5).map((x) => ({ label: x.name, value: percent(x.share), more: "of the time" })),
      lead: 0,
      tables: [{
        title: `How ${a.measure} moves`, rows: a.numbers, key: (n) => n.name,
        columns: [
          { name: "number", value: (n) => n.name },
          { name: "is", number: true, value: (n) => n.value ?? "", text: (n) => (typeof n.value === "number" ? plainNumber(n.value) : String(n.value ?? "-")) },
          { name: "slope", number: true, value: (n) => n.elasticity?.[a.measure] ?? 0, text: (n) => (n.elasticity?.[a.measure] === undefined || n.elasticity[a.measure] === null ? "-" : n.elasticity[a.measure].toFixed(3)) },
          ...[0, 1].map((i) => ({
            name: i ? `x ${a.by}` : `/ ${a.by}`, number: true, value: (n) => moved(n.moves?.[i])?.change ?? 0,
            text: (n) => { const m = moved(n.moves?.[i]); return m?.change === undefined || m.change === null ? (m?.error ? "no answer" : "-") : `${m.change > 0 ? "+" : ""}${percent(m.change)}`; },
          })),
        ],
      }],
    }),
  },
  sweep: {
    title: "Sweep", command: "sweep",
    about: "How an answer moves with any parameters: every combination of their values, and what binds where.",
    first: ["model", "on", "of", "vary", "mesh", "set"],
    defaults: { model: "llama-3-8b", on: "h100:64", of: "plan", vary: "batch=1M..16M:x2" },
    drop: { text: "or drop a config.json here", kind: () => "config" },
    show: (a) => {
      const names = a.varied;
      const known = {
        "step_seconds.expected": ["step", seconds], "tpot_seconds.expected": ["token", seconds], "mfu.expected": ["MFU", percent],
        tokens_per_second: ["tokens/s", count], usd_per_million_tokens: ["USD/M", usd], "memory.bytes": ["memory", bytes],
      };
      const measures = Object.keys(known).filter((n) => a.points.some((p) => p[n] !== undefined && p[n] !== null));
      return {
        headline: `${whole(a.count)} points of ${a.of}: ${Object.entries(a.binds).map(([n, k]) => `${k} ${n === "no answer" ? n : `bound by ${n}`}`).join(", ")}`,
        tables: [{
          title: "Points", rows: a.points, key: (p) => names.map((n) => p[n]).join(),
          columns: [
            ...names.map((n) => ({ name: n, number: typeof a.points[0]?.[n] === "number", value: (p) => p[n] ?? "", text: (p) => (typeof p[n] === "number" ? plainNumber(p[n]) : String(p[n] ?? "-")) })),
            ...measures.map((n) => ({ name: known[n][0], number: true, value: (p) => p[n] ?? 0, text: (p) => known[n][1](p[n]) })),
            { name: "bound by", value: (p) => p.bottleneck ?? p.error ?? "" },
            { name: "mesh", value: (p) => p.mesh ?? "" },
          ],
        }],
      };
    },
  },
  serve: {
    title: "Serve", command: "serve",
    about: "Latency, throughput, memory and cost of serving over batches. Drag over the chart to pick points of the table.",
    first: ["model", "on", "prompt", "output", "weights", "kv", "ttft", "tpot"],
    without: ["prefill_on", "pools"],
    defaults: { model: "llama-3-70b", on: "h100:8", weights: "fp8", prompt: "2048", output: "512" },
    drop: planDrop,
    show: (a) => {
      const b = a.best;
      return {
        headline: `${a.model} on ${a.slice}: batch ${whole(b.batch)} on ${mesh(b.mesh)}`,
        cards: [
          { label: "token to token", value: seconds(b.tpot_seconds.expected), more: `bound ${seconds(b.tpot_seconds.bound)}, ${binds(b.bottleneck)}`, explain: "tpot" },
          { label: "first token", value: seconds(b.ttft_seconds.expected), more: `bound ${seconds(b.ttft_seconds.bound)}`, explain: "ttft" },
          { label: "tokens/s", value: whole(b.tokens_per_second), more: `${whole(b.tokens_per_second_per_chip)} a chip`, explain: "tokens_per_second" },
          { label: "memory per chip", value: bytes(b.memory_bytes), more: `${whole(a.kv_caches)} caches fit`, explain: "memory" },
          b.usd_per_million_tokens && { label: "per million tokens", value: usd(b.usd_per_million_tokens), more: `${usd(b.usd_per_million_input_tokens)} in`, explain: "usd" },
        ],
        tables: [{
          title: "The best way at each batch", rows: a.points, key: (p) => p.batch, best: (p) => p.batch === b.batch,
          columns: [
            { name: "batch", number: true, value: (p) => p.batch, text: (p) => whole(p.batch) },
            { name: "mesh", value: (p) => mesh(p.mesh) },
            { name: "token", number: true, value: (p) => p.tpot_seconds.expected, text: (p) => seconds(p.tpot_seconds.expected) },
            { name: "first", number: true, value: (p) => p.ttft_seconds.expected, text: (p) => seconds(p.ttft_seconds.expected) },
            { name: "tokens/s", number: true, value: (p) => p.tokens_per_second, text: (p) => whole(p.tokens_per_second) },
            { name: "memory", number: true, value: (p) => p.memory_bytes, text: (p) => bytes(p.memory_bytes) },
            { name: "USD/M", number: true, value: (p) => p.usd_per_million_tokens ?? Infinity, text: (p) => usd(p.usd_per_million_tokens) },
            { name: "bound by", value: (p) => p.bottleneck },
            { name: "fits", value: (p) => (p.fits ? "yes" : "no") },
          ],
        }],
      };
    },
  },
  simulate: {
    title: "Simulate", command: "simulate",
    about: "Serving, request by request: latencies, goodput, use.",
    first: ["model", "on", "workload", "weights", "ttft", "tpot", "replicas"],
    defaults: { model: "llama-3-8b", on: "h100:1", workload: "poisson:rate=8,requests=2000,input=1000,output=200", max_batch: 256, max_tokens: 8192 },
    drop: { text: "or drop a config.json, or a trace of requests (.csv, .jsonl)", kind: (name) => (name.endsWith(".csv") ? "requests" : name.endsWith(".jsonl") ? "requests_jsonl" : "config") },
    show: (a) => ({
      headline: `${whole(a.simulated.requests)} requests of ${a.workload}${a.overloaded ? ": overloaded" : ""}`,
      cards: [
        { label: "first token, p50", value: seconds(a.ttft_seconds.p50), more: `p99 ${seconds(a.ttft_seconds.p99)}` },
        { label: "token to token, p50", value: seconds(a.tpot_seconds.p50), more: `p99 ${seconds(a.tpot_seconds.p99)}` },
        { label: "end to end, p50", value: seconds(a.e2e_seconds.p50), more: `p99 ${seconds(a.e2e_seconds.p99)}` },
        { label: "requests/s", value: String(Number(a.requests_per_second.toPrecision(3))), more: `${whole(a.tokens_per_second)} tokens/s` },
        { label: "a step runs", value: percent(a.utilisation), more: `KV blocks ${percent(a.kv_occupancy)} taken` },
        a.usd_per_million_tokens && { label: "per million tokens", value: usd(a.usd_per_million_tokens) },
      ],
    }),
  },
  matmul: {
    title: "Sharded matmul", command: "matmul",
    about: "Which collectives the shardings force, and what they take. A subscript lays an axis over a mesh axis: A[I_X, J].",
    first: ["expression", "sizes", "mesh", "on"],
    defaults: { expression: "A[I_X, J_Y] * B[J_Y, K] -> C[I_X, K]", sizes: "I=8192,J=8192,K=32768", mesh: "X=4,Y=8", on: "v5e:4x8" },
    show: (a) => ({
      headline: a.expression,
      cards: [
        { label: "time, perfect overlap", value: seconds(a.seconds.bound), more: `${seconds(a.seconds.sum)} with none, ${binds(a.bottleneck)}` },
        { label: "local matmul", value: seconds(a.local.seconds), more: `${count(a.local.flops)} FLOPs a chip` },
        { label: "collectives", value: String(a.collectives.length), more: seconds(a.collectives.reduce((s, c) => s + c.seconds, 0)) },
      ],
      lead: 2,
      tables: [
        { title: "What the shardings force", rows: a.collectives, key: (c) => c.array, columns: collectiveColumns },
        {
          title: "Other ways", rows: a.alternatives, key: (w) => JSON.stringify(w),
          columns: [
            { name: "collectives", value: (w) => w.collectives.map((c) => `${c.kind.replaceAll("_", "-")} ${c.array}`).join(", ") || "none" },
            { name: "FLOPs a chip", number: true, value: (w) => w.local.flops, text: (w) => count(w.local.flops) },
            { name: "overlapped", number: true, value: (w) => w.seconds.bound, text: (w) => seconds(w.seconds.bound) },
            { name: "one after the other", number: true, value: (w) => w.seconds.sum, text: (w) => seconds(w.seconds.sum) },
          ],
        },
      ],
    }),
  },
  collective: {
    title: "Topology", command: "collective",
    about: "A collective on a slice, hop by hop along its links.",
    first: ["kind", "bytes", "axes", "on", "one_way"],
    defaults: { kind: "all-gather", bytes: "34MB", axes: "X=8,Y=4", on: "v5e:8x8" },
    show: (a) => ({
      headline: `${a.kind.replaceAll("_", "-")} of ${bytes(a.bytes)} over ${mesh(a.axes)} on ${a.slice}`,
      cards: [
        { label: "time", value: seconds(a.seconds), more: `bound by ${a.regime}` },
        { label: "lower bound", value: seconds(a.seconds_bound), more: `${seconds(a.seconds_expected)} expected` },
        { label: "hops", value: String(a.hops) },
        { label: "effective bandwidth", value: `${bytes(a.bandwidth_bytes_per_second)}/s` },
      ],
    }),
  },
  roofline: {
    title: "Roofline", command: "roofline",
    about: "One op on one chip: what binds it, and from which size arithmetic does.",
    first: ["expression", "on", "sizes", "memory"],
    defaults: { expression: "bf16[B=512, D=8192] * bf16[D, F=28672] -> bf16[B, F]", on: "v5e", memory: "hbm" },
    show: (a) => ({
      headline: `${Number(a.intensity.toPrecision(3))} FLOP/byte: bound by ${a.bottleneck}`,
      cards: [
        { label: "bound", value: seconds(a.seconds.bound), more: `arithmetic ${seconds(a.seconds.math)}, HBM ${seconds(a.seconds.hbm)}` },
        { label: "FLOPs", value: count(a.flops) },
        { label: "bytes", value: bytes(a.bytes) },
        { label: "roofs meet at", value: whole(a.ridge), more: "FLOP/byte" },
      ],
    }),
  },
  trace: {
    title: "Profile", upload: true,
    about: "A profile of XLA, PyTorch or Nsight Systems against its roofline. It stays on this machine.",
    defaults: {},
    show: (a) => ({
      headline: `${a.format} on ${a.device ?? "an unknown device"}`,
      lead: 0,
      tables: [{
        title: "Ops", rows: a.ops.slice(0, 200), key: (o) => o.name,
        columns: [
          { name: "op", value: (o) => o.name.slice(0, 80) },
          { name: "category", value: (o) => o.category },
          { name: "runs", number: true, value: (o) => o.count ?? 0, text: (o) => whole(o.count) },
          { name: "time", number: true, value: (o) => o.seconds ?? 0, text: (o) => seconds(o.seconds) },
          { name: "shape", value: (o) => o.shape ?? "" },
        ],
      }],
    }),
  },
};

const collectiveColumns = [
  { name: "collective", value: (c) => c.kind.replaceAll("_", "-") },
  { name: "array", value: (c) => c.array },
  { name: "over", value: (c) => c.axes.join(", ") },
  { name: "bytes", number: true, value: (c) => c.bytes, text: (c) => bytes(c.bytes) },
  { name: "time", number: true, value: (c) => c.seconds, text: (c) => seconds(c.seconds) },
  { name: "expected", number: true, value: (c) => c.seconds_expected, text: (c) => seconds(c.seconds_expected) },
];
