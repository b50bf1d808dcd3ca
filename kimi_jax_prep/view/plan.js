// The arithmetic of plan.py. Python's float64 and whole numbers up to 2**53 are JavaScript's numbers.
"use strict";
function roundHalfEven(x) {
  const floor = Math.floor(x), rest = x - floor;
  if (rest !== 0.5) return Math.round(x);
  return floor % 2 === 0 ? floor : floor + 1;
}
function ratio(a, b) { return a >= b ? 1 : a / b; }
function scaled(side, scale, most) {
  return Math.min(Math.max(1, scale === 1 ? side : Math.trunc(side * scale)), most);
}
function planMedia(width, height, frames, isChunk, config) {
  let limit = config.in_patch_limit;
  if (isChunk) {
    limit = config.in_patch_limit_each_frame || limit;
    if (config.in_patch_limit_video !== null) {
      limit = Math.min(roundHalfEven(config.in_patch_limit_video / frames), limit);
    }
  }
  const patch = config.patch_size, merge = config.merge_kernel_size, most = config.patch_limit_on_one_side * patch;
  const area = Math.max(1, Math.floor(width / patch)) * Math.max(1, Math.floor(height / patch));
  const scale = Math.min(Math.sqrt(ratio(limit, area)), ratio(most, width), ratio(most, height));
  const w = scaled(width, scale, most), h = scaled(height, scale, most), token = patch * merge;
  const right = (token - w % token) % token, bottom = (token - h % token) % token;
  const rows = (h + bottom) / patch, columns = (w + right) / patch;
  const tooLong = config.fixed_output_tokens === null && Math.max(rows, columns) > config.patch_limit_on_one_side;
  const tokens = config.fixed_output_tokens === null ? (rows / merge) * (columns / merge) : config.fixed_output_tokens;
  return { width: w, height: h, pad_right: right, pad_bottom: bottom, grid_thw: [frames, rows, columns],
    num_tokens: tokens, limit, error: tooLong };
}
