// The box that asks what a request would get. Nothing is counted: /ask explains, it does not decide.

/** Keys and values from lines of key=value. A key alone has no value. */
const entriesOf = (text) => text.split('\n').filter((line) => line.trim() !== '').map((line) => {
  const at = line.indexOf('=');
  return at < 0 ? [line] : [line.slice(0, at), line.slice(at + 1)];
});

/** Descriptors from lines of key=value; an empty line ends one. */
const descriptors = (text) => text.split(/\n[ \t]*\n+/).filter((part) => part.trim() !== '').map((part) => ({
  entries: entriesOf(part).map(([key, value = '']) => ({ key, value })),
}));

const fillAsk = (example) => {
  if (example === null || byId('ask-domain').value !== '' || byId('ask-entries').value !== '') return;
  byId('ask-domain').value = example.domain;
  byId('ask-entries').value = example.entries.map(([key, value]) => `${key}=${value}`).join('\n');
};

const codeOf = (code) => element('span', { class: `code ${code === 'OK' ? '' : 'denied'}` }, code);

const pathOf = ({ entries, path: met }) => met.map((node, at) => {
  const { key, value } = entries[at];
  if (node.met === 'pattern') return `${key}=${node.pattern} (pattern)`;
  return node.met === 'any' ? `${key} (any value)` : `${key}=${value}`;
}).join(' › ');

const limitOf = (limit) => {
  if (!limit) return 'none';
  const window = limit.unit_multiplier === 1 ? limit.unit : `${limit.unit_multiplier} ${limit.unit}s`;
  const burst = limit.burst === limit.requests_per_unit ? '' : `, burst ${count(limit.burst)}`;
  const debts = limit.carry_debt ? ', carry_debt' : '';
  return `${count(limit.requests_per_unit)} per ${window}${debts}, ${limit.algorithm}${burst}`;
};

const instead = (own, what) => (own ? ` instead of ${count(own[what])}` : '');

/** Other numbers: those of an exception are the limit's own by now. */
const numbersOf = ({ instead_of: own }, { requests_per_unit: requests, burst }) => (
  own && own.requests_per_unit === requests && burst !== null && own.burst !== burst
    ? `burst ${count(burst)}${instead(own, 'burst')}`
    : `${count(requests)}${instead(own, 'requests_per_unit')}`);

const exceptionOf = (exception, limit) => {
  const does = { deny: 'nothing passes', unlimited: 'counted and never denied' }[exception.effect] ?? numbersOf(exception, limit);
  const author = exception.who === undefined ? '' : `, made by ${exception.who}: ${exception.why}`;
  return `${exception.id}: ${does}, until ${exception.until === null ? 'somebody ends it' : shortTime(exception.until)}${author}`;
};

const recordOf = (record) => {
  if (record === null) return 'none: the limit is the rule’s';
  if (record.not_known) return 'not known: the store of records does not answer';
  const last = record.known_last ? ', by the last known record: the store of records does not answer' : '';
  if (record.requests_per_unit === undefined && !record.unlimited) return `none${last}`;
  const shadow = record.shadow_mode === true ? ', in shadow mode' : '';
  return `${record.unlimited ? 'counted and never denied' : numbersOf(record, record)}${shadow}${last}`;
};

const candidateOf = (candidate) => `${count(candidate.requests_per_unit)} instead: ${count(candidate.counter.counted)} counted, the request would ${candidate.passes ? 'pass' : 'be denied'}`;

const capacityOf = ({ capacity_in_seconds: seconds, wait_for_one_seconds: wait }) => {
  if (wait === null) return 'none: the limit is 0';
  return seconds > 0 ? `comes back in ${span(seconds * 1000)}` : null;
};

const denialsOf = (denials) => {
  const least = atLeast(denials);
  return `${count(denials.count)} times in the last ten minutes${least && `, ${least}`}; first ${moment(denials.first)}, last ${moment(denials.last)}`;
};

const explained = (domain, descriptor) => element('section', { class: 'answer' },
  element('p', null, codeOf(descriptor.code), ' ', element('b', null, descriptor.entries.map(({ key, value }) => `${key}=${value}`).join(' '))),
  element('dl', null, ...[
    ['Why', descriptor.why],
    descriptor.path.length === 0 ? null : ['Path', pathOf(descriptor)],
    descriptor.rule === null ? null : ['Rule', `${descriptor.rule.path} at ${descriptor.rule.file}:${descriptor.rule.line}`],
    ['Limit', limitOf(descriptor.limit)],
    descriptor.class ? ['Class', `${descriptor.class.name}: ${count(descriptor.class.hits)} of ${count(descriptor.limit.burst)}`] : null,
    descriptor.counted_as ? ['Counts as', descriptor.counted_as] : null,
    descriptor.exception ? ['Exception', exceptionOf(descriptor.exception, descriptor.limit)] : null,
    descriptor.record === undefined ? null : ['Record', recordOf(descriptor.record)],
    descriptor.counter ? ['Counter', `${count(descriptor.counter.counted)} counted, ${count(descriptor.counter.remaining)} left`] : null,
    descriptor.held ? ['Held', `${count(descriptor.held)} of them by reservations`] : null,
    descriptor.counter ? ['Capacity', capacityOf(descriptor.counter)] : null,
    descriptor.settled ? ['Settled', descriptor.settled.why] : null,
    descriptor.candidate ? ['Candidate', candidateOf(descriptor.candidate)] : null,
    descriptor.denials ? ['Denied', denialsOf(descriptor.denials)] : null,
  ].filter((pair) => pair !== null && pair[1] !== null).flatMap(([name, value]) => [element('dt', null, name), element('dd', null, value)])),
  ...keyButtons({ domain, entries: descriptor.entries }, false));

const showAnswer = (answer) => {
  const hits = answer.hits === 1 ? 'A hit' : `${count(answer.hits)} hits`;
  const but = answer.shadowed ? ' (over the limit, but for SHADOW_MODE)' : '';
  byId('ask-answer').replaceChildren(
    element('p', { class: 'answer' }, `${hits} in ${answer.domain} would get `, codeOf(answer.code), but),
    ...answer.descriptors.map((descriptor) => explained(answer.domain, descriptor)));
};

const answer = async (question) => {
  try {
    showAnswer(await ask('/ask?format=json', { method: 'POST', headers: admin.headers(), body: JSON.stringify(question) }));
  } catch (error) {
    byId('ask-answer').replaceChildren(element('p', { class: 'trouble bad', role: 'alert' }, element('b', null, 'No answer:'), error.message));
  }
};

byId('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  answer({
    domain: byId('ask-domain').value,
    descriptors: descriptors(byId('ask-entries').value),
    hitsAddend: Number(byId('ask-hits').value),
  });
});

/** Asks about a key, as if its entries had been written there. */
const explainKey = async ({ domain, entries }) => {
  byId('ask-domain').value = domain;
  byId('ask-entries').value = linesOf(entries);
  byId('ask-hits').value = 1;
  // Not what is written there: a value may have the end of a line in it.
  await answer({ domain, descriptors: [{ entries }] });
  byId('ask-answer').focus();
};

const linesOf = (entries) => entries.map(({ key, value }) => `${key}=${value}`).join('\n');

/** What can be done about a key: to have it explained, if it is not yet, and with an admin API to change it. */
const keyButtons = (question, mayExplain) => {
  const button = (text, press) => {
    const made = element('button', { type: 'button' }, text);
    made.addEventListener('click', () => press(question));
    return made;
  };
  const mayChange = !byId('exceptions').hidden;
  return [...(mayExplain ? [button('Explain', explainKey)] : []), ...(mayChange ? [button('Exception or reset', changeKey)] : [])];
};

