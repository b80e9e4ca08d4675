// The lower part of the page: stores, changes of the rules, settings.

const STATES = { up: 'answers', never: 'never answered', lost: 'does not answer', unusable: 'cannot be used' };
const MODES = { error: 'an error', deny: 'a denial', allow: 'a pass, uncounted', local: 'a decision of this node alone' };

const showStore = (store, redis, samples) => {
  const meter = element('meter', { min: 0, max: store.bytes_max, high: store.bytes_max * 0.9, value: store.bytes, 'aria-label': 'Memory of counters' });
  const parts = () => [
    element('h3', null, 'In memory'),
    facts([
      ['Counters', count(store.counters)],
      ['Memory', `${bytes(store.bytes)} of ${bytes(store.bytes_max)} (${percent(store.bytes, store.bytes_max)})`],
      store.full === 0 ? null : ['Was full', `for ${count(store.full)} descriptors since the start`],
    ]),
    meter,
    ...(redis === null ? [] : showRedis(redis, samples)),
  ];
  replace(byId('store'), JSON.stringify([store, redis]), parts);
};

const showRedis = (redis, samples) => {
  const trips = samples.filter(({ trip }) => trip > 0);
  const { leases } = redis;
  return [
    ...redis.servers.flatMap(showServer),
    facts([
      ['Round trip', trips.length === 0 ? 'none yet' : `${nanos(recently(trips, ({ trip }) => trip)).join(' ')} mean, 99 % within ${redis.p99_nanos === null ? '–' : nanos(redis.p99_nanos).join(' ')}`],
      ['Without an answer', `a request gets ${MODES[redis.failure_mode]} (REDIS_FAILURE_MODE)`],
      leases.taken === 0 ? null : ['Leases', `${count(leases.taken)} taken with ${count(leases.hits_taken)} hits; ${count(leases.hits_spent)} spent, ${count(leases.hits_given_back)} given back`],
      redis.deny_cache_hits === 0 ? null : ['Deny cache', `answered ${count(redis.deny_cache_hits)} descriptors`],
    ]),
  ];
};

const showServer = (server) => {
  const failed = Object.entries(server.failures).filter(([, number]) => number > 0);
  const isUp = server.state === 'up';
  return [
    element('h3', null, `Redis${server.name === 'main' ? '' : ` (${server.name})`} `,
      element('span', { class: `code ${isUp ? '' : 'denied'}` }, STATES[server.state] ?? server.state)),
    facts([
      ['Where', server.place],
      server.why === null ? null : ['Why', server.why],
      ['Circuit breaker', isUp ? 'closed' : 'open: requests are not sent there'],
      ['Connections', `${count(server.connections)}, ${count(server.in_flight)} calls wait`],
      ['Calls', count(server.round_trips)],
      ['Failed', failed.length === 0 ? 'none' : failed.map(([kind, number]) => `${kind} ${count(number)}`).join(', ')],
      server.memory_lost === 0 ? null : ['Lost its data', `${count(server.memory_lost)} times`],
    ]),
  ];
};

const showReloads = (reloads) => {
  const problem = ({ text, excerpt }) => element('li', null, text, excerpt === null ? null : element('pre', null, excerpt));
  const item = ({ unix_secs: at, in_force: isInForce, what, problems, more }) => element('li', null,
    element('time', { datetime: new Date(at * 1000).toISOString() }, new Date(at * 1000).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' })),
    element('span', { class: isInForce ? '' : 'over' }, isInForce ? what : `Wrong: ${what}`),
    problems.length === 0 ? null : element('ul', null, ...problems.map(problem), ...(more > 0 ? [element('li', { class: 'soft' }, `and ${count(more)} more`)] : [])));
  byId('reloads').replaceChildren(...(reloads.length === 0 ? [element('li', { class: 'soft' }, 'There are no rules yet.')] : reloads.map(item)));
};

const showSettings = (settings) => {
  const row = ({ name, value, origin }) => element('tr', null,
    element('th', { scope: 'row' }, element('code', null, name)), element('td', null, element('code', null, value)), element('td', { class: 'soft' }, origin));
  const head = element('thead', null, element('tr', null, ...['Setting', 'Value', 'From'].map((name) => element('th', { scope: 'col' }, name))));
  byId('settings').replaceChildren(settings.length === 0
    ? element('p', { class: 'soft' }, 'There are none.')
    : element('table', { 'aria-labelledby': 'settings-title' }, head, element('tbody', null, ...settings.map(row))));
};

