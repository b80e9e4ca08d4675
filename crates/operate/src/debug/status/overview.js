// The top of the page: what is wrong, and the numbers of now.

const showTroubles = (troubles, lost) => {
  const all = lost === null ? troubles : [{ level: 'bad', about: 'page', text: lost }, ...troubles];
  document.title = all.length === 0 ? 'Tidegate' : `(${all.length}) Tidegate`;
  const item = ({ level, about, text }) => element('li', { class: `trouble ${level}`, 'data-about': about },
    element('b', null, level === 'bad' ? 'Wrong:' : 'Note:'), text);
  const nothing = () => [element('li', { class: 'trouble' }, element('b', null, 'All is well.'), 'Nothing is wrong that this process knows of.')];
  replace(byId('troubles'), JSON.stringify(all), () => (all.length === 0 ? nothing() : all.map(item)));
};

/** A tile: a name, a value with its unit, a line beneath it, a plot. */
const tile = (id, name, kind) => {
  const value = element('span');
  const unit = element('small');
  const more = element('dd', { class: 'more', id: `${id}-more` });
  const plot = smallPlot(SAMPLES_SHOWN, kind);
  const node = element('div', { id }, element('dt', null, name),
    element('dd', { class: 'value' }, value, ' ', unit), more, element('dd', { 'aria-hidden': 'true' }, plot.svg));
  return {
    node,
    show: (text, unitText, moreText, values) => {
      say(value, text);
      say(unit, unitText);
      say(more, moreText);
      plot.show(values);
    },
  };
};

const tiles = {
  requests: tile('tile-requests', 'Requests', ''),
  denied: tile('tile-denied', 'Denied', 'over'),
  failed: tile('tile-failed', 'Errors', 'failed'),
  decision: tile('tile-decision', 'Decision', ''),
  cpu: tile('tile-cpu', 'CPU', ''),
  store: tile('tile-store', 'Counters', ''),
  connections: tile('tile-connections', 'Connections', ''),
  redis: tile('tile-redis', 'Redis', ''),
};
byId('tiles').append(...Object.values(tiles).map(({ node }) => node));

/** The mean of what `of` gives for the last few samples. */
const recently = (samples, of) => {
  const last = samples.slice(-3);
  return last.length === 0 ? 0 : last.reduce((sum, sample) => sum + of(sample), 0) / last.length;
};

const showTiles = ({ totals, store, redis, connections }, samples) => {
  const values = (of) => samples.map(of);
  const asked = ({ ok, over, failed }) => ok + over + failed;
  const [all, over, failed] = [asked, (sample) => sample.over, (sample) => sample.failed].map((of) => recently(samples, of));
  const sum = totals.ok + totals.over_limit + totals.failed;
  tiles.requests.show(rate(all), '/s', `${count(sum)} in all`, values(asked));
  tiles.denied.show(rate(over), `/s · ${percent(over, all)}`, `${count(totals.over_limit)} in all`, values((sample) => sample.over));
  tiles.failed.show(rate(failed), '/s', `${count(totals.failed)} in all`, values((sample) => sample.failed));
  const deciding = samples.filter(({ decision }) => decision > 0);
  tiles.decision.show(...(deciding.length === 0 ? ['–', ''] : nanos(recently(deciding, ({ decision }) => decision))),
    'mean in the engine', values(({ decision }) => decision));
  tiles.cpu.show(rate(100 * recently(samples, ({ cpu }) => cpu)), '%', 'of one core', values(({ cpu }) => cpu));
  tiles.store.show(count(store.counters), '', `${bytes(store.bytes)} of ${bytes(store.bytes_max)}`, values((sample) => sample.bytes));
  tiles.connections.show(count(connections), '', 'of clients', values((sample) => sample.connections));
  tiles.redis.node.hidden = redis === null;
  if (redis !== null) showRedisTile(redis, samples);
};

const showRedisTile = ({ servers, p99_nanos: p99 }, samples) => {
  const isDown = servers.some(({ state }) => state !== 'up');
  const calls = recently(samples, ({ calls: number }) => number);
  const [number, unit] = p99 === null ? ['–', ''] : nanos(p99);
  tiles.redis.show(isDown ? 'no answer' : `≤ ${number}`, isDown ? '' : unit,
    isDown ? `${rate(calls)} calls/s` : `99 % of ${rate(calls)} calls/s`, samples.map(({ trip }) => trip));
};

const showIdentity = ({ now }, about) => {
  const workers = `${about.workers} worker${about.workers === 1 ? '' : 's'}`;
  say(byId('identity'), `${about.version} · up ${span(now)} · ${workers}`);
};

