// Numbers, times and counts as people read them.

const NONE = "–";

export function fixed(value, digits = 2) {
  return value === null || value === undefined || !Number.isFinite(value) ? NONE : value.toFixed(digits);
}

/** 0.734 as 73 %. */
export function percent(value, digits = 0) {
  return value === null || value === undefined || !Number.isFinite(value) ? NONE : `${(value * 100).toFixed(digits)} %`;
}

/** About three digits: 3.1, 42, 1,240. */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en");
  if (size >= 10) return value.toFixed(1).replace(/\.0$/, "");
  return value.toFixed(2).replace(/\.?0+$/, "") || "0";
}

export function count(value) {
  return value === null || value === undefined ? NONE : value.toLocaleString("en");
}

/** "1 token", "3 tokens". */
export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Milliseconds in the unit that fits. */
export function milliseconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} s`;
  return value >= 100 ? `${Math.round(value)} ms` : `${short(value)} ms`;
}

/** Seconds since something: 8 s, 2 min 5 s. */
export function age(seconds) {
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** Unix seconds as the local time of day. */
export function clock(unix) {
  return unix ? new Date(unix * 1e3).toLocaleTimeString("en-GB") : NONE;
}
