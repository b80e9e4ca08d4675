// The table of rules: the first few in one order, or those that a search found. Rows are kept by the number of their
// rule, so that what somebody selects or reads stays where it is.

const ORDERS = {
  denied: 'First hits over the limit, then hits near it. Rates are averages over about ten seconds.',
  tight: 'By the share of hits that are near the limit or over it.',
  near: 'By hits within the limit, but near it (NEAR_LIMIT_RATIO).',
  busy: 'By hits, whatever becomes of them.',
};

/** Steps of a plot of a rule, five seconds each. */
const STEPS_SHOWN = 60;

const ruleRows = new Map();
/** The numbers of the rules that a search found; `null`: nobody searches. */
let found = null;
let order = 'denied';

const ruleRow = () => {
  const cell = (name, label, attributes) => element(name, { role: name === 'th' ? 'rowheader' : 'cell', ...(label && { 'data-label': label }), ...attributes });
  const [name, place] = [element('span', { class: 'name' }), element('span', { class: 'place' })];
  const [limit, note] = [element('span'), element('span', { class: 'note' })];
  const numbers = ['Hits /s', 'Near /s', 'Over /s', 'Hits', 'Over'].map((label) => cell('td', label, { class: 'n' }));
  const plot = smallPlot(STEPS_SHOWN, '', 'over');
  const rule = cell('th', null, { scope: 'row' });
  rule.append(name, place);
  const limits = cell('td', null);
  limits.append(limit, note);
  const plotted = cell('td', null, { class: 'plotted' });
  plotted.append(plot.svg);
  const node = element('tr', { role: 'row' }, rule, limits, ...numbers.slice(0, 3), plotted, ...numbers.slice(3));
  return { node, name, place, limit, note, numbers, plot };
};

const notes = ({ limit, more, shadow }) => [
  limit?.algorithm,
  limit?.carries ? 'carry_debt' : null,
  limit?.shadow ? `shadow mode let ${count(shadow)} pass` : null,
  limit?.quota ? 'quota mode' : null,
  more > 0 ? `and ${count(more)} more rule${more === 1 ? '' : 's'} that count here` : null,
].filter(Boolean).join(', ');

const textOf = ({ requests, window: of }) => (requests === null ? 'unlimited' : `${count(requests)} per ${of}`);

const showRow = (row, shown) => {
  say(row.name, shown.path === '' ? shown.domain : `${shown.domain}.${shown.path}`);
  say(row.place, shown.limit?.place ?? '');
  say(row.limit, shown.limit ? textOf(shown.limit) : 'named by requests');
  say(row.note, notes(shown));
  const [hits, over, near] = shown.rate;
  const texts = [rate(hits), rate(near), rate(over), count(shown.hits), count(shown.over)];
  const kinds = [hits && '', near && 'near', over && 'over', shown.hits && '', shown.over && ''];
  row.numbers.forEach((cell, at) => {
    say(cell, texts[at]);
    cell.className = `n ${kinds[at] === 0 ? 'zero' : kinds[at]}`;
  });
  const steps = shown.plot ?? [];
  row.plot.show(steps.map(([all]) => all), steps.map(([, denied]) => denied));
};

const showRules = ({ hash, limits, domains, rows }) => {
  say(byId('rules-count'), `${count(limits)} limit${limits === 1 ? '' : 's'} in ${count(domains)} domain${domains === 1 ? '' : 's'}`);
  say(byId('rules-hash'), hash ?? 'none');
  const nodes = rows.map((shown) => {
    if (!ruleRows.has(shown.id)) ruleRows.set(shown.id, ruleRow());
    showRow(ruleRows.get(shown.id), shown);
    return ruleRows.get(shown.id).node;
  });
  keep(byId('rules').tBodies[0], nodes);
  for (const [id, { node }] of ruleRows) if (!node.isConnected) ruleRows.delete(id);
  byId('rules').hidden = rows.length === 0;
  const none = found === null ? 'No rule was hit within the last minute.' : 'No rule has this in its name.';
  say(byId('rules-none'), rows.length === 0 ? none : '');
  say(byId('rules-about'), found === null ? ORDERS[order] : `The first ${about?.rows ?? ''} rules with this in their names, hit or not.`);
};

/** What to ask for, as a part of a query. */
const wantedRules = () => (found === null ? `order=${order}` : `rules=${found.join(',')}`);

byId('orders').addEventListener('change', (event) => {
  order = event.target.value;
  byId('find').value = '';
  found = null;
  update();
});

let searching = 0;
byId('find').addEventListener('input', () => {
  clearTimeout(searching);
  searching = setTimeout(search, 250);
});

const search = async () => {
  const wanted = byId('find').value.trim();
  if (wanted === '') {
    found = null;
  } else {
    const answer = await ask(`/status?find=${encodeURIComponent(wanted)}`).catch(() => null);
    // Only the last search counts.
    if (answer === null || byId('find').value.trim() !== wanted) return;
    found = answer.found;
  }
  update();
};

