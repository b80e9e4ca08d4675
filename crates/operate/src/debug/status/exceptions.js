// The list of exceptions, for bearers of the admin token. Rows are kept by their ids, so that the focus stays in them.

const EXCEPTIONS_SHOWN = 50;
/** Those that begin or end by themselves are asked for again after so long. */
const TIMED_MILLIS = 5000;

const exceptionRows = new Map();
/** The state of the exceptions that is listed; `null`: it has to be asked for. */
let listedState = null;
let listedAt = 0;
let isTimed = false;
let listings = 0;

const who = () => byId('exception-who').value.trim();

/** `shop: user=alice › tier (any value)` */
const fittedBy = ({ domain, entries }) => `${domain}: ${entries.map(({ key, value }) => (value === undefined ? `${key} (any value)` : `${key}=${value}`)).join(' › ')}`;

const effectOf = ({ requests_per_unit: requests, burst, unlimited, deny }) => {
  if (unlimited) return 'unlimited';
  if (deny) return 'nothing passes';
  return [
    requests === undefined ? null : `${count(requests)} per unit`,
    burst === undefined ? null : `burst ${count(burst)}`,
  ].filter(Boolean).join(', ');
};

const shortTime = (text) => new Date(text).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' });

const timesOf = ({ from, until }) => [
  from === undefined ? null : `from ${shortTime(from)}`,
  until === undefined ? 'until somebody ends it' : `until ${shortTime(until)}`,
].filter(Boolean).join(' ');

const stateOf = (exception) => {
  if (exception.in_force) return 'in force';
  return exception.until !== undefined && Date.parse(exception.until) <= Date.now() ? 'over' : 'not yet in force';
};

const sayOfExceptions = (text, isBad) => {
  const said = byId('exceptions-said');
  said.className = isBad ? 'trouble bad' : 'trouble';
  say(said, text);
};

/** Shows the outcome of a change, or an error that belongs to no field, and scrolls to it. */
const tellExceptions = (text, isBad) => {
  sayOfExceptions(text, isBad);
  if (text !== '') byId('exceptions-said').scrollIntoView({ block: 'nearest' });
};

/** A button that changes something if it is pressed twice: `End`, and what. The button stays where it is meanwhile. */
const buttonPressedTwice = (verb, what, change) => {
  const [word, name] = [element('span', null, verb), element('span', { class: 'hidden' }, ` ${what}`)];
  const button = element('button', { type: 'button' }, word, name);
  const reset = () => say(word, verb);
  button.addEventListener('blur', reset);
  button.addEventListener('click', async () => {
    if (word.textContent === verb) {
      say(word, `Really ${verb.toLowerCase()}`);
      sayOfExceptions(`Press again to ${verb.toLowerCase()} ${what}.`);
      return;
    }
    reset();
    await changing(async () => {
      tellExceptions(await change());
      byId('exception-find').focus();
    });
  });
  return button;
};

const endButton = (id) => buttonPressedTwice('End', id, async () => {
  await admin.change('DELETE', `exceptions/${encodeURIComponent(id)}`, { body: { who: who() } });
  return `${id} has ended.`;
});

const exceptionRow = (exception) => {
  const cell = (label, ...children) => element('td', { role: 'cell', 'data-label': label }, ...children);
  const name = element('th', { scope: 'row', role: 'rowheader' }, element('span', { class: 'name' }, exception.id),
    element('span', { class: 'note' }, stateOf(exception)));
  return element('tr', { role: 'row' }, name,
    cell('For', fittedBy(exception)),
    cell('What', effectOf(exception), element('span', { class: 'note' }, timesOf(exception))),
    cell('Why', exception.why, element('span', { class: 'note' }, `${exception.who}, ${shortTime(exception.made)}`)),
    element('td', { role: 'cell', class: 'n' }, endButton(exception.id)));
};

const showExceptions = (found) => {
  const shown = found.slice(0, EXCEPTIONS_SHOWN);
  const rows = shown.map((exception) => {
    const key = JSON.stringify(exception);
    const known = exceptionRows.get(exception.id);
    return [exception.id, known?.key === key ? known : { key, node: exceptionRow(exception) }];
  });
  exceptionRows.clear();
  rows.forEach(([id, row]) => exceptionRows.set(id, row));
  keep(byId('exception-rows').tBodies[0], rows.map(([, { node }]) => node));
  byId('exception-rows').hidden = rows.length === 0;
  const none = byId('exception-find').value.trim() === '' ? 'There are none.' : 'There is none with this in it.';
  say(byId('exceptions-none'), rows.length === 0 ? none : found.length > shown.length ? `These are the first ${EXCEPTIONS_SHOWN}. The search finds others.` : '');
  isTimed = shown.some(({ from, until }) => from !== undefined || until !== undefined);
};

/** Asks for the exceptions again. Fails with a `Refusal`, or as `fetch` does; then the next state asks again. */
const listExceptions = async () => {
  listings += 1;
  const number = listings;
  listedAt = Date.now();
  const wanted = encodeURIComponent(byId('exception-find').value.trim());
  // One more, to know whether there are more.
  const found = await admin.list(`exceptions?find=${wanted}&most=${EXCEPTIONS_SHOWN + 1}`).catch((error) => {
    if (number === listings) listedState = null;
    throw error;
  });
  // Only the last question counts, and nothing is shown without the token.
  if (number === listings && admin.isOpen()) showExceptions(found);
};

/** Asks for the exceptions without a click, so the focus stays. If nothing answers, the top of the page says so. */
const relist = () => listExceptions().catch((error) => {
  if (error.status === 403) lock(error.message);
});

/** Does something with the API, shows what it refuses, and then the exceptions as they are. */
const changing = async (change) => {
  clearProblems();
  try {
    await change();
  } catch (error) {
    refuse(error);
    return;
  }
  // A change that is done stays done, whether the list can be shown or not.
  await relist();
};

/** Called with each state: shows the number of exceptions, and asks for them when they have changed. */
const followExceptions = ({ process, exceptions }) => {
  byId('exceptions').hidden = exceptions === null;
  if (exceptions === null) return;
  const refused = exceptions.refused === 0 ? '' : ` · ${count(exceptions.refused)} requests with a wrong token`;
  say(byId('exceptions-count'), `${exceptions.count === 0 ? 'none' : `${count(exceptions.count)} in all`}${refused}`);
  if (!admin.isOpen()) return;
  const state = `${process} ${exceptions.changes}`;
  if (state === listedState && !(isTimed && Date.now() - listedAt > TIMED_MILLIS)) return;
  listedState = state;
  relist();
};

byId('unlock').addEventListener('submit', async (event) => {
  event.preventDefault();
  clearProblems();
  const [field, button] = [byId('exception-token'), byId('unlock').querySelector('button')];
  button.disabled = true;
  try {
    await admin.open(field.value);
    await listExceptions();
    field.value = '';
    byId('unlock').hidden = true;
    byId('unlocked').hidden = false;
    byId('exception-who').focus();
  } catch (error) {
    showProblem('token', error);
  }
  button.disabled = false;
});

/** Forgets the token, and what it has shown. */
const lock = (why = '') => {
  admin.close();
  clearProblems();
  showExceptions([]);
  listedState = null;
  byId('unlocked').hidden = true;
  byId('unlock').hidden = false;
  say(byId('exception-token-problem'), why);
};

byId('lock').addEventListener('click', () => {
  lock();
  byId('exception-token').focus();
});

let searchingExceptions = 0;
byId('exception-find').addEventListener('input', () => {
  clearTimeout(searchingExceptions);
  searchingExceptions = setTimeout(() => listExceptions().catch(refuse), 250);
});

