'use strict';
// The status page. It asks for /status once a second while somebody looks, and shows what it gets. Texts are set as
// text, never as markup, because names of rules and values of requests may be anybody's.
//
// Parts, in this order: this file (elements), format, plots, overview, rules, details, ask, denied, admin, exceptions,
// exception_form, bans, updates.

const byId = (id) => document.getElementById(id);

/** An element with these attributes and children. A text among the children stays text. */
const element = (name, attributes, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
};

/** The same for drawings. */
const drawing = (name, attributes, ...children) => {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

/** Sets a text, if it is another one: what did not change is not read out again, and a selection stays. */
const say = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

/** Puts these nodes into another one, if they differ from what `key` was before. */
const shownKeys = new WeakMap();
const replace = (node, key, children) => {
  if (shownKeys.get(node) === key) return;
  shownKeys.set(node, key);
  node.replaceChildren(...children());
};

/** Makes these nodes the children of another one. Those that stay are not touched, so that the focus stays in them. */
const keep = (node, children) => {
  children.forEach((child, at) => {
    if (node.children[at] !== child) node.insertBefore(child, node.children[at] ?? null);
  });
  while (node.children.length > children.length) node.lastElementChild.remove();
};

/** A list of names and values. */
const facts = (pairs) => {
  const known = pairs.filter((pair) => pair !== null);
  return element('dl', { class: 'facts' }, ...known.flatMap(([name, value]) => [
    element('dt', null, name), element('dd', null, value),
  ]));
};

