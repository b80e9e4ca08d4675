// The keys that are denied most, for those who may see values of requests. Rows are kept by their keys.

const deniedRows = new Map();

const deniedRow = ({ rule, entries, question }) => {
  const cell = (label, attributes) => element('td', { role: 'cell', 'data-label': label, ...attributes });
  const [number, error] = [element('span'), element('span', { class: 'note' })];
  const [denials, first, last] = [cell('Denials', { class: 'n' }), cell('First'), cell('Last')];
  denials.append(number, error);
  const actions = element('td', { role: 'cell', class: 'actions' });
  // What is too long cannot be asked about.
  if (question !== null) actions.append(...keyButtons(question, true));
  const key = element('th', { scope: 'row', role: 'rowheader' }, element('span', { class: 'name' }, entries), element('span', { class: 'note' }, rule));
  return { node: element('tr', { role: 'row' }, key, denials, first, last, actions), number, error, first, last };
};

/** When a key was first or last denied: the time, with the day unless that is today. */
const moment = (text) => (new Date(text).toDateString() === new Date().toDateString() ? clockTime(new Date(text)) : shortTime(text));

const atLeast = ({ count: number, error }) => (error > 0 ? `at least ${count(number - error)}` : '');

const aboutDenied = (denied) => {
  if (denied === null && byId('exceptions').hidden) return 'Names of keys hold values of requests. With KEEP_KEYS=true everybody sees those that are denied most.';
  if (denied === null) return 'Names of keys are for bearers of the admin token (see the exceptions), or for everybody with KEEP_KEYS=true.';
  return denied.keys.length === 0 ? `No key was denied in the last ${span(denied.seconds * 1000)}.` : `In the last ${span(denied.seconds * 1000)}.`;
};

const showDenied = (denied) => {
  const keys = denied?.keys ?? [];
  const known = new Map(deniedRows);
  deniedRows.clear();
  for (const key of keys) {
    const id = JSON.stringify([key.rule, key.entries, key.question]);
    const row = known.get(id) ?? deniedRow(key);
    say(row.number, count(key.denials.count));
    say(row.error, atLeast(key.denials));
    say(row.first, moment(key.denials.first));
    say(row.last, moment(key.denials.last));
    deniedRows.set(id, row);
  }
  keep(byId('denied-rows').tBodies[0], [...deniedRows.values()].map(({ node }) => node));
  byId('denied-rows').hidden = keys.length === 0;
  say(byId('denied-about'), aboutDenied(denied));
};

