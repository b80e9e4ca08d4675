// Numbers, durations and times as people read them.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

/** A count: 12,345; from ten million on 12.3M. */
const count = (number) => (number < 1e7 ? whole : short).format(number);

/** A rate a second. */
const rate = (number) => {
  if (number === 0) return '0';
  if (number < 0.05) return '<0.1';
  return (number < 10 ? tenths : whole).format(number);
};

const percent = (part, all) => {
  if (all === 0 || part === 0) return '0 %';
  const share = (100 * part) / all;
  return share < 0.1 ? '<0.1 %' : `${(share < 10 ? tenths : whole).format(share)} %`;
};

const bytes = (number) => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let value = number;
  for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024;
  return `${(value < 10 && unit > 0 ? tenths : whole).format(value)} ${units[unit]}`;
};

/** A short duration as a number and its unit. */
const nanos = (number) => {
  const units = ['ns', 'µs', 'ms', 's'];
  let unit = 0;
  let value = number;
  for (; value >= 1000 && unit < units.length - 1; unit += 1) value /= 1000;
  return [(value < 10 && unit > 0 ? tenths : whole).format(value), units[unit]];
};

/** How long something lasts: 3 d 4 h, 5 min 6 s. */
const span = (millis) => {
  const seconds = Math.floor(millis / 1000);
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const from = parts.findIndex(([length]) => seconds >= length);
  if (from < 0) return '0 s';
  let rest = seconds;
  const shown = parts.slice(from, from + 2).map(([length, unit]) => {
    const number = Math.floor(rest / length);
    rest %= length;
    return number > 0 ? `${number} ${unit}` : '';
  });
  return shown.join(' ').trim();
};

const clockTime = (millis) => new Date(millis).toLocaleTimeString('en-GB');

