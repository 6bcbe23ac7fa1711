// Plays what has steps: buttons and the arrow keys step; nothing moves unless it is asked to.
"use strict";
// show(step, part) draws a step of which a part is over; says(step) tells of it in words; each: milliseconds of a step.
globalThis.rooftopPlayer = ({ holder, picture, legend, total, label, each, show, says }) => {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const words = document.createElement("p");
  words.setAttribute("aria-live", "polite");
  words.style.margin = ".3rem 0";
  const controls = document.createElement("div");
  controls.className = "rt-tools";
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: 0, max: total, value: 0 });
  slider.setAttribute("aria-label", label);
  let step = 0;
  let frame = 0;
  let running = false;

  const button = (text, action) => {
    const result = document.createElement("button");
    result.type = "button";
    result.textContent = text;
    result.addEventListener("click", action);
    return result;
  };
  const go = button("Play", () => { running = !running; tell(); run(); });

  function tell() {
    holder.dataset.step = String(step);
    slider.value = step;
    words.textContent = says(step);
    go.textContent = running ? "Pause" : "Play";
  }

  function animate(done) {
    cancelAnimationFrame(frame);
    if (still.matches) { show(step, 1); done?.(); return; }
    const started = performance.now();
    const tick = (now) => {
      if (!holder.isConnected) return;
      const part = Math.max(0, Math.min(1, (now - started) / each)); // a frame may have begun before it was asked for
      show(step, part);
      if (part < 1) frame = requestAnimationFrame(tick);
      else done?.();
    };
    frame = requestAnimationFrame(tick);
  }

  function advance(by) {
    running = false;
    step = Math.max(0, Math.min(total, step + by));
    tell();
    if (by > 0) animate();
    else show(step, 1);
  }

  function run() {
    if (!running) return;
    if (step >= total) step = 0;
    step += 1;
    tell();
    animate(() => {
      if (running && step < total) setTimeout(run, still.matches ? each : each / 8);
      else { running = false; tell(); }
    });
  }

  slider.addEventListener("input", () => { running = false; step = Number(slider.value); tell(); show(step, 1); });
  controls.append(go, button("Step back", () => advance(-1)), button("Step", () => advance(1)), slider);
  holder.append(...(legend ? [legend] : []), picture, words);
  if (total) holder.append(controls);
  tell();
  show(0, 1);
};
