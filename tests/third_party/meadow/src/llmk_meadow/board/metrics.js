// Reads Prometheus' text format.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)$/;

/** The sum of each metric over its labels. */
export function sums(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (match) {
      found.set(match[1], (found.get(match[1]) ?? 0) + Number(match[2]));
    }
  }
  return found;
}

/** The points of a polyline: the newest value at the right. */
export function points(values, width, height, most) {
  const step = width / Math.max(values.length - 1, 1);
  return values.map((value, at) => `${at * step},${height - (height * value) / Math.max(most, 1)}`).join(" ");
}
