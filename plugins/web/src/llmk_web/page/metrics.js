// Reads the server's metrics, which are in Prometheus' text format.

const LINE = /^([\w:]+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** A reading of all metrics at one time. */
export class Reading {
  constructor(text, at) {
    this.at = at;
    this.samples = new Map();
    for (const line of text.split("\n")) {
      const found = line.startsWith("#") ? null : line.match(LINE);
      if (!found) continue;
      const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]));
      if (!this.samples.has(found[1])) this.samples.set(found[1], []);
      this.samples.get(found[1]).push({ labels, value: Number(found[3]) });
    }
  }

  /** The sum over all samples of a metric for which `where` holds. */
  sum(name, where = () => true) {
    return (this.samples.get(`llmk_${name}`) ?? []).filter(({ labels }) => where(labels)).reduce((sum, { value }) => sum + value, 0);
  }

  /** Counts up to each bound of a histogram. */
  buckets(name) {
    return (this.samples.get(`llmk_${name}_bucket`) ?? []).map(({ labels, value }) => [labels.le === "+Inf" ? Infinity : Number(labels.le), value]);
  }
}

/** How much a counter grows in a second. A counter that fell was started again. */
export function rate(before, now, name) {
  const grown = now.sum(name) - before.sum(name);
  return grown < 0 ? 0 : (1000 * grown) / Math.max(1, now.at - before.at);
}

/** The quantile `q` of what a histogram counted since `before`, or of all that it counted; null if nothing. */
export function quantile(before, now, name, q) {
  const earlier = new Map(before ? before.buckets(name) : []);
  const counts = now.buckets(name).map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let low = 0;
  let below = 0;
  for (const [bound, count] of counts) {
    if (count >= q * all) return bound === Infinity ? low : low + ((bound - low) * (q * all - below)) / Math.max(1, count - below);
    [low, below] = [bound, count];
  }
  return low;
}
