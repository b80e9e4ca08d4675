// The form that makes exceptions. The API checks the values, and its errors are shown at the field that they name.

/** Fields of the API, and where people write them. All other errors are shown below the form. */
const EXCEPTION_FIELDS = ['token', 'who', 'domain', 'entries', 'effect', 'requests_per_unit', 'burst', 'from', 'until', 'why', 'id', 'for'];

/** An id that a second press of the button replaces. */
let replaced = null;

const problemOf = (field) => [byId(`exception-${field}`), byId(`exception-${field}-problem`)];

const clearProblems = () => {
  tellExceptions('');
  EXCEPTION_FIELDS.map(problemOf).forEach(([input, problem]) => {
    input.removeAttribute('aria-invalid');
    say(problem, '');
  });
};

const showProblem = (field, error) => {
  const [input, problem] = problemOf(field);
  input.setAttribute('aria-invalid', 'true');
  say(problem, reasonOf(error));
  (input.tagName === 'FIELDSET' ? input.querySelector('input:checked') : input).focus();
};

/** Shows why something was not done: at its field, if it has one. */
const refuse = (error) => {
  if (error.status === 403) {
    lock();
    showProblem('token', error);
  } else if (EXCEPTION_FIELDS.includes(error.field)) {
    showProblem(error.field, error);
  } else {
    tellExceptions(`Not done: ${reasonOf(error)}`, true);
  }
};

const written = (field) => byId(`exception-${field}`).value;

/** A number if it is one, or else the text, which the API refuses. */
const numberOf = (field) => {
  const text = written(field).trim();
  return { ...(text !== '' && { [field]: /^\d+$/.test(text) ? Number(text) : text }) };
};

/** A time of this browser's zone as the API takes it. */
const timeOf = (field) => {
  if (byId(`exception-${field}`).validity.badInput) throw new Refusal(0, `${field}: is not a complete date and time`);
  const text = written(field);
  return { ...(text !== '' && { [field]: new Date(text).toISOString() }) };
};

const writtenEffect = () => {
  const effect = byId('except').elements.effect.value;
  return effect === 'limit' ? { ...numberOf('requests_per_unit'), ...numberOf('burst') } : { [effect]: true };
};

const exceptionOfForm = () => ({
  domain: written('domain'),
  entries: entriesOf(written('entries')).map(([key, value]) => ({ key, ...(value !== undefined && { value }) })),
  ...writtenEffect(),
  ...timeOf('from'),
  ...timeOf('until'),
  who: who(),
  why: written('why').trim(),
});

/** An id that says what the exception is for: `user-alice`. */
const idFor = ({ entries }) => {
  const words = entries.flatMap(({ key, value }) => [key, value ?? 'any']).join('-').replaceAll('*', 'any');
  return words.replace(/[^\w.-]+/g, '-').slice(0, 60) || 'exception';
};

const putException = (id, exception, isReplacing) => admin.change('PUT', `exceptions/${encodeURIComponent(id)}`, {
  body: exception,
  headers: isReplacing ? {} : { 'if-none-match': '*' },
});

/** Makes an exception under the first id of this kind that is free. */
const putUnderFreeId = async (exception) => {
  const wanted = idFor(exception);
  for (let number = 1; ; number += 1) {
    try {
      return await putException(number === 1 ? wanted : `${wanted}-${number}`, exception, false);
    } catch (error) {
      if (error.status !== 412 || number === 100) throw error;
    }
  }
};

const putUnderId = async (id, exception) => {
  try {
    return await putException(id, exception, replaced === id);
  } catch (error) {
    if (error.status !== 412) throw error;
    replaced = id;
    throw new Refusal(412, `id: there is ${id} already. Press again to replace it.`);
  }
};

const sayMade = ({ id, done, survives_restart: survives }) => {
  const what = { made: 'is made', replaced: 'is replaced', unchanged: 'was so already' }[done];
  tellExceptions(`${id} ${what}. ${survives ? 'It survives a restart.' : 'It ends with this process: EXCEPTIONS_FILE is not set.'}`);
};

const clearForm = () => {
  replaced = null;
  ['entries', 'requests_per_unit', 'burst', 'from', 'until', 'why', 'id', 'for'].forEach((field) => { byId(`exception-${field}`).value = ''; });
};

byId('except').addEventListener('submit', (event) => {
  event.preventDefault();
  changing(async () => {
    const [id, exception] = [written('id').trim(), exceptionOfForm()];
    sayMade(await (id === '' ? putUnderFreeId(exception) : putUnderId(id, exception)));
    clearForm();
  });
});

byId('exception-effect').addEventListener('change', (event) => {
  byId('exception-numbers').hidden = event.target.value !== 'limit';
});

byId('reset').addEventListener('click', () => changing(async () => {
  const { domain, entries, who: name, why } = exceptionOfForm();
  await admin.change('POST', 'counters/reset', { body: { domain, entries, who: name, why } });
  tellExceptions(`The counter of ${linesOf(entries)} was reset.`);
}));

/** Takes a key into the form. */
const changeKey = ({ domain, entries }) => {
  // A client chooses values: one with the end of a line in it would read as two entries.
  if (entries.some(({ key, value }) => /[\r\n=]/.test(key) || /[\r\n]/.test(value))) {
    tellExceptions('This key cannot be written as lines: use `tidegate exception put`.', true);
    return;
  }
  byId('exception-domain').value = domain;
  byId('exception-entries').value = linesOf(entries);
  byId(admin.isOpen() ? 'exception-requests_per_unit' : 'exception-token').focus();
};

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
say(byId('exception-zone'), `Times are those of ${zone}.`);

