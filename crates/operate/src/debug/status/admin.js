// The admin API of this process, for exceptions. The token is a variable in here: it is in no attribute, in no storage
// and in no URL, and it is gone with the page.

/** What the API refuses: the field that is wrong, if it names one, and why. */
class Refusal extends Error {
  constructor(status, text) {
    const [, field, entry, part, why] = /^(\w+)(?:\[(\d+)\]\.(\w+))?: (.*)$/s.exec(text) ?? [];
    super(entry === undefined ? (why ?? text) : `entry ${Number(entry) + 1}: ${part} ${why}`);
    this.status = status;
    this.field = field ?? null;
  }
}

const admin = (() => {
  let token = null;

  // A header has bytes, so characters beyond ASCII go as their bytes in UTF-8.
  const headersOf = (bearer) => ({ authorization: `Bearer ${String.fromCharCode(...new TextEncoder().encode(bearer))}` });

  const send = async (bearer, method, path, { body, headers } = {}) => {
    const answer = await fetch(`/admin/${path}`, {
      method,
      cache: 'no-store',
      signal: AbortSignal.timeout(PATIENCE_MILLIS),
      headers: { ...headers, ...headersOf(bearer) },
      ...(body && { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    if (answer.ok) return text;
    let error = text;
    try { error = JSON.parse(text).error ?? text; } catch { /* It is no JSON: all of it is the reason. */ }
    throw new Refusal(answer.status, error);
  };

  return {
    isOpen: () => token !== null,
    /** What shows the token to other pages, if there is one. */
    headers: () => (token === null ? {} : headersOf(token)),
    /** Keeps this token, if it is the right one. */
    open: async (given) => {
      await send(given, 'GET', 'exceptions?most=0');
      token = given;
    },
    close: () => { token = null; },
    change: async (method, path, options) => JSON.parse(await send(token, method, path, options)),
    /** A list, which has a value in each line. */
    list: async (path) => (await send(token, 'GET', path)).split('\n').filter(Boolean).map((line) => JSON.parse(line)),
  };
})();

