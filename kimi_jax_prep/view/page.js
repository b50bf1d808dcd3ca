"use strict";
(function () {
  const $ = (id) => document.getElementById(id);
  const canvas = $("view"), context = canvas.getContext("2d");
  const group = (n) => n.toLocaleString("en");
  const state = { row: 0, frame: 0, budget: null, zoom: 1, x: 0, y: 0, cursor: null, fitted: true };
  let row, plan, exact, picture = new Image(), pixels = null, shown = 0;

  function option(select, value, text) {
    const o = document.createElement("option");
    o.value = value; o.textContent = text; select.append(o);
  }
  DATA.rows.forEach((r, i) => option($("row"), i, r.name));
  Object.keys(DATA.models).forEach((name) => option($("model"), name, name));
  $("model").value = DATA.model;

  function limitKey() { return row.chunk && config().in_patch_limit_each_frame ? "in_patch_limit_each_frame" : "in_patch_limit"; }
  function config() { return DATA.models[$("model").value]; }
  function changed() {
    const values = { ...config() };
    if (state.budget !== null) values[limitKey()] = state.budget;
    return values;
  }

  function chooseRow() {
    row = DATA.rows[state.row];
    state.frame = Math.min(state.frame, row.frames - 1);
    $("name").textContent = row.name;
    $("frame").max = row.frames - 1;
    $("frame").value = state.frame;
    $("frameBox").hidden = row.frames < 2;
    load();
  }

  function load() {
    const ticket = ++shown, loading = new Image();
    $("frameOut").textContent = `${state.frame + 1} of ${row.frames}`;
    loading.onload = () => {
      if (ticket !== shown) return;
      picture = loading;
      const copy = document.createElement("canvas");
      copy.width = picture.width; copy.height = picture.height;
      const c = copy.getContext("2d", { willReadFrequently: true });
      c.drawImage(picture, 0, 0);
      pixels = c.getImageData(0, 0, picture.width, picture.height).data;
      replan(true);
    };
    loading.src = row.pictures[state.frame];
  }

  // The picture was made for this plan; other plans scale it in the browser.
  function madeFor() { return planMedia(row.size[0], row.size[1], row.frames, row.chunk, DATA.models[DATA.model]); }

  function replan(fitToo) {
    plan = planMedia(row.size[0], row.size[1], row.frames, row.chunk, changed());
    const made = madeFor();
    exact = made.width === plan.width && made.height === plan.height && config().patch_size === DATA.models[DATA.model].patch_size &&
      samePixels();
    const [t, rows, columns] = plan.grid_thw;
    const limit = changed()[limitKey()];
    $("budgetOut").textContent = group(limit);
    $("budget").value = Math.log2(limit);
    $("budget").setAttribute("aria-valuetext", `${group(limit)} patches`);
    $("original").textContent = row.size.join(" x ");
    $("resized").textContent = `${plan.width} x ${plan.height}`;
    $("padded").textContent = `${plan.width + plan.pad_right} x ${plan.height + plan.pad_bottom}`;
    $("thw").textContent = `${t} x ${rows} x ${columns}`;
    $("patches").textContent = group(t * rows * columns);
    $("tokens").textContent = plan.error ? "too many patches on one side" : group(plan.num_tokens);
    $("note").textContent = exact ? "" : "Preview of another plan: sizes and counts are exact, the picture is scaled by the browser.";
    canvas.setAttribute("aria-label", `${row.name}: ${columns} by ${rows} patches, ${plan.num_tokens} tokens`);
    if (state.cursor) {
      state.cursor[0] = Math.min(state.cursor[0], width() - 1);
      state.cursor[1] = Math.min(state.cursor[1], height() - 1);
    }
    if (fitToo) fit(); else draw();
    describe();
  }
  // The K2 models share their pixels; others may have another background behind transparent pixels.
  function samePixels() {
    const names = [$("model").value, DATA.model];
    return names[0] === names[1] || names.every((name) => name.startsWith("k2."));
  }
  function width() { return plan.width + plan.pad_right; }
  function height() { return plan.height + plan.pad_bottom; }

  function fit() {
    const box = canvas.getBoundingClientRect();
    state.zoom = Math.min((box.width - 16) / width(), (box.height - 16) / height());
    state.x = (box.width - width() * state.zoom) / 2;
    state.y = (box.height - height() * state.zoom) / 2;
    state.fitted = true;
    draw();
  }

  function draw() {
    const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(box.width * ratio); canvas.height = Math.round(box.height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = getComputedStyle(document.body).getPropertyValue("--panel");
    context.fillRect(0, 0, box.width, box.height);
    if (!plan) return;
    const z = state.zoom, made = madeFor();
    context.imageSmoothingEnabled = z < 1 || !exact;
    hatch(state.x, state.y, width() * z, height() * z);
    context.drawImage(picture, 0, 0, made.width, made.height, state.x, state.y, plan.width * z, plan.height * z);
    if ($("grid").checked) {
      const patch = config().patch_size;
      if (patch * z >= 12) lines(patch, "rgba(0,0,0,0.3)", 3); // a dark edge: visible on light pictures too
      lines(patch, "rgba(255,255,255,0.5)", 1);
      lines(patch * config().merge_kernel_size, "rgba(255,176,0,0.9)", 1);
    }
    if (state.cursor) {
      const patch = config().patch_size, token = patch * config().merge_kernel_size;
      box2(token, "#ffb000", 3); box2(patch, "#ffffff", 2);
      if (z >= 4) box2(1, "#ff2d78", 2);
    }
  }
  function box2(step, color, thick) {
    const [x, y] = state.cursor, z = state.zoom;
    const at = [state.x + Math.floor(x / step) * step * z, state.y + Math.floor(y / step) * step * z];
    context.strokeStyle = "rgba(0,0,0,0.7)"; context.lineWidth = thick + 2; context.strokeRect(...at, step * z, step * z);
    context.strokeStyle = color; context.lineWidth = thick; context.strokeRect(...at, step * z, step * z);
  }
  function hatch(x, y, w, h) {
    context.save();
    context.beginPath(); context.rect(x, y, w, h); context.clip();
    context.fillStyle = "#464a54"; context.fillRect(x, y, w, h);
    // Stripes only in the strips of padding that are in sight.
    const box = canvas.getBoundingClientRect(), z = state.zoom;
    context.beginPath();
    context.rect(x + plan.width * z, y, plan.pad_right * z, h); context.rect(x, y + plan.height * z, w, plan.pad_bottom * z);
    context.clip();
    context.strokeStyle = "#9aa1af"; context.lineWidth = 3; context.beginPath();
    for (let k = -box.height; k < box.width; k += 9) { context.moveTo(k, box.height); context.lineTo(k + box.height, 0); }
    context.stroke(); context.restore();
  }
  function lines(step, color, thick) {
    const z = state.zoom, box = canvas.getBoundingClientRect();
    if (step * z < 5) return;
    const right = state.x + width() * z, bottom = state.y + height() * z;
    context.strokeStyle = color; context.lineWidth = thick; context.beginPath();
    for (let k = 0; k <= width(); k += step) {
      const at = Math.round(state.x + k * z) + 0.5;
      if (at >= 0 && at <= box.width) { context.moveTo(at, Math.max(0, state.y)); context.lineTo(at, Math.min(box.height, bottom)); }
    }
    for (let k = 0; k <= height(); k += step) {
      const at = Math.round(state.y + k * z) + 0.5;
      if (at >= 0 && at <= box.height) { context.moveTo(Math.max(0, state.x), at); context.lineTo(Math.min(box.width, right), at); }
    }
    context.stroke();
  }

  function describe() {
    const set = (texts) => ["position", "patch", "token", "bytes", "values"].forEach((id, i) => { $(id).textContent = texts[i]; });
    if (!state.cursor || !pixels) { set(["-", "-", "-", "-", "-"]); return; }
    const [x, y] = state.cursor, patch = config().patch_size, merge = config().merge_kernel_size;
    const [, rows, columns] = plan.grid_thw;
    const px = Math.floor(x / patch), py = Math.floor(y / patch);
    const index = state.frame * rows * columns + py * columns + px;
    const token = Math.floor(py / merge) * (columns / merge) + Math.floor(px / merge);
    const padding = x >= plan.width || y >= plan.height;
    const texts = [`x ${x}, y ${y}${padding ? " (padding)" : ""}`, `${index} (row ${py}, column ${px})`,
      `${token} (row ${Math.floor(py / merge)}, column ${Math.floor(px / merge)})`];
    if (!exact) { set([...texts, "not for a preview", "not for a preview"]); return; }
    const at = 4 * (y * picture.width + x), bytes = [pixels[at], pixels[at + 1], pixels[at + 2]];
    const values = bytes.map((b, c) => Math.fround(Math.fround(Math.fround(Math.fround(b / 255) - DATA.mean[c]) * (1 / DATA.std[c]))));
    set([...texts, bytes.join(", "), values.map((v) => v.toFixed(4)).join(", ")]);
  }

  function zoomAt(factor, x, y) {
    const next = Math.min(64, Math.max(0.02, state.zoom * factor)), by = next / state.zoom;
    state.x = x - (x - state.x) * by; state.y = y - (y - state.y) * by; state.zoom = next;
    state.fitted = false;
    draw();
  }
  function middle() {
    const box = canvas.getBoundingClientRect();
    if (!state.cursor) return [box.width / 2, box.height / 2];
    return [state.x + (state.cursor[0] + 0.5) * state.zoom, state.y + (state.cursor[1] + 0.5) * state.zoom];
  }
  function inside(event) {
    const x = Math.floor((event.offsetX - state.x) / state.zoom), y = Math.floor((event.offsetY - state.y) / state.zoom);
    return x >= 0 && y >= 0 && x < width() && y < height() ? [x, y] : null;
  }
  function point(cursor) { state.cursor = cursor; draw(); describe(); }

  const fingers = new Map();
  canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); fingers.set(e.pointerId, [e.offsetX, e.offsetY]); });
  const up = (e) => fingers.delete(e.pointerId);
  canvas.addEventListener("pointerup", up); canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointermove", (e) => {
    if (!plan) return;
    const before = fingers.get(e.pointerId);
    if (before) {
      const now = [e.offsetX, e.offsetY];
      const other = [...fingers].find(([id]) => id !== e.pointerId);
      if (other) {
        const length = (a) => Math.hypot(a[0] - other[1][0], a[1] - other[1][1]);
        zoomAt(length(now) / Math.max(1, length(before)), ...other[1]);
      } else { state.x += now[0] - before[0]; state.y += now[1] - before[1]; state.fitted = false; }
      fingers.set(e.pointerId, now);
    }
    point(inside(e));
  });
  canvas.addEventListener("wheel", (e) => { e.preventDefault(); if (plan) zoomAt(2 ** (-e.deltaY / 300), e.offsetX, e.offsetY); }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    if (!plan || e.ctrlKey || e.metaKey || e.altKey) return;
    const step = e.shiftKey ? config().patch_size : 1;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (moves[e.key]) {
      const [x, y] = state.cursor || [0, 0], [dx, dy] = state.cursor ? moves[e.key] : [0, 0];
      state.cursor = [Math.min(width() - 1, Math.max(0, x + dx)), Math.min(height() - 1, Math.max(0, y + dy))];
      const box = canvas.getBoundingClientRect(), [cx, cy] = middle();
      if (cx < 0) state.x -= cx - 20; else if (cx > box.width) state.x -= cx - box.width + 20;
      if (cy < 0) state.y -= cy - 20; else if (cy > box.height) state.y -= cy - box.height + 20;
      point(state.cursor);
    } else if (e.key === "+" || e.key === "=") zoomAt(1.25, ...middle());
    else if (e.key === "-") zoomAt(0.8, ...middle());
    else if (e.key === "0") fit();
    else return;
    e.preventDefault();
  });

  $("row").addEventListener("change", () => { state.row = Number($("row").value); state.cursor = null; chooseRow(); });
  $("frame").addEventListener("input", () => { state.frame = Number($("frame").value); load(); });
  $("model").addEventListener("change", () => { state.budget = null; replan(true); });
  $("budget").addEventListener("input", () => { state.budget = Math.round(2 ** Number($("budget").value)); replan(true); });
  $("grid").addEventListener("change", draw);
  $("in").addEventListener("click", () => zoomAt(1.25, ...middle()));
  $("out").addEventListener("click", () => zoomAt(0.8, ...middle()));
  $("fit").addEventListener("click", fit);
  $("reset").addEventListener("click", () => { state.budget = null; $("model").value = DATA.model; replan(true); });
  window.addEventListener("resize", () => plan && (state.fitted ? fit() : draw()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  if (DATA.rows.length) chooseRow();
})();
