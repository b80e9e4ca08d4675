// Plots: areas over some minutes or hours, and small lines. Drawings are made once, and only their paths change.

/** One a second, for five minutes; longer times have one a minute. */
const SAMPLES_SHOWN = 300;
const MINUTES_SHOWN = 24 * 60;
const WIDTH = 600;
const HEIGHT = 100;

/** The least round number that is not less than this. */
const ceiling = (number) => {
  if (number <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= number);
};

/** The area between two lines: each point is [x, lower, upper]. */
const area = (points) => {
  if (points.length < 2) return '';
  const there = points.map(([x, , upper]) => `${x.toFixed(1)},${upper.toFixed(2)}`);
  const back = points.map(([x, lower]) => `${x.toFixed(1)},${lower.toFixed(2)}`).reverse();
  return `M${there.join('L')}L${back.join('L')}Z`;
};

/** A line through these values, the last one at the right. There is room for `slots` values; `max` is at the top. */
const path = (values, slots, max, height) => {
  if (values.length < 2) return '';
  const x = (at) => (WIDTH - ((values.length - 1 - at) * WIDTH) / (slots - 1)).toFixed(1);
  const y = (value) => (height - 1 - (Math.min(value, max) * (height - 2)) / max).toFixed(2);
  return `M${values.map((value, at) => `${x(at)},${y(value)}`).join('L')}`;
};

/** A small plot of one or two lines, with room for so many values. */
const smallPlot = (slots, ...kinds) => {
  const lines = kinds.map((kind) => drawing('path', { class: `line ${kind}` }));
  const svg = drawing('svg', { viewBox: `0 0 ${WIDTH} 40`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, ...lines);
  const show = (...series) => {
    const max = Math.max(1e-9, ...series.flat());
    lines.forEach((line, at) => line.setAttribute('d', path(series[at], slots, max, 40)));
  };
  return { svg, show };
};

/** The plot of all requests: what passes, what is denied on top of it, errors on top of these. */
const trafficPlot = (box) => {
  const areas = ['ok', 'over', 'failed'].map((kind) => drawing('path', { class: kind }));
  const grid = [0, 50, 100].map((y) => drawing('line', { class: 'grid', x1: 0, x2: WIDTH, y1: y, y2: y }));
  const cursor = drawing('line', { class: 'cursor', y1: 0, y2: HEIGHT, visibility: 'hidden' });
  const svg = drawing('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none' }, ...grid, ...areas, cursor);
  const labels = Object.fromEntries(['top', 'half', 'zero', 'from', 'to'].map((name) => [name, element('span', { class: name })]));
  box.append(svg, ...Object.values(labels));
  say(labels.zero, '0');
  say(labels.to, 'now');

  let samples = [];
  let end = 0;
  let length = 1;
  let pointed = null;
  const x = (at) => WIDTH - ((end - at) * WIDTH) / length;

  const show = (all, now, millis) => {
    [samples, end, length] = [all, now, millis];
    say(labels.from, `${span(millis)} ago`);
    const max = ceiling(Math.max(0, ...samples.map(({ ok, over, failed }) => ok + over + failed)));
    const y = (value) => HEIGHT - (value * HEIGHT) / max;
    const stacked = samples.map(({ at, ok, over, failed }) => [x(at), y(0), y(ok), y(ok + over), y(ok + over + failed)]);
    areas.forEach((drawn, kind) => drawn.setAttribute('d', area(stacked.map((point) => [point[0], point[1 + kind], point[2 + kind]]))));
    say(labels.top, rate(max));
    say(labels.half, rate(max / 2));
    point();
  };

  /** The sample under the pointer, or else the last one. */
  const current = () => {
    if (pointed === null || samples.length === 0) return samples.at(-1) ?? null;
    const wanted = end - (1 - pointed) * length;
    return samples.reduce((best, one) => (Math.abs(one.at - wanted) < Math.abs(best.at - wanted) ? one : best));
  };

  const point = () => {
    const sample = current();
    const isPast = pointed !== null && sample !== null;
    cursor.setAttribute('visibility', isPast ? 'visible' : 'hidden');
    if (isPast) {
      cursor.setAttribute('x1', x(sample.at));
      cursor.setAttribute('x2', x(sample.at));
    }
    showLegend(sample, isPast ? span(end - sample.at) : null);
  };

  box.addEventListener('pointermove', (event) => {
    const { left, width } = svg.getBoundingClientRect();
    pointed = Math.min(1, Math.max(0, (event.clientX - left) / width));
    point();
  });
  box.addEventListener('pointerleave', () => {
    pointed = null;
    point();
  });
  return { show };
};

const showLegend = (sample, ago) => {
  for (const kind of ['ok', 'over', 'failed']) say(byId(`legend-${kind}`), sample === null ? '' : rate(sample[kind]));
  say(byId('legend-time'), ago === null ? '' : `${ago} ago`);
};

