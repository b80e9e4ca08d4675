// Bans that this node has seen, and the buttons that lift one or ban a key by hand. Rows are kept by their bans.

const banRows = new Map();

const liftButton = ({ domain, entries }) => (!admin.isOpen() ? null
  : buttonPressedTwice('Lift', `the ban of ${linesOf(entries)}`, async () => {
    const { done } = await admin.change('DELETE', 'bans', { body: { domain, entries, who: who(), why: written('why').trim() } });
    return done === 'lifted' ? `The ban of ${linesOf(entries)} is lifted.` : `${linesOf(entries)} was not banned.`;
  }));

const banRow = (ban) => {
  const cell = (label, ...children) => element('td', { role: 'cell', 'data-label': label }, ...children);
  const [since, until] = [cell('Since'), cell('Until')];
  const node = element('tr', { role: 'row' },
    element('th', { scope: 'row', role: 'rowheader' }, element('span', { class: 'name' }, fittedBy(ban)), element('span', { class: 'note' }, ban.rule)),
    since, until, element('td', { role: 'cell', class: 'actions' }, liftButton(ban)));
  return { node, since, until };
};

const aboutBans = ({ count: all, first }) => {
  const number = `${count(all)} in force, as far as this node has seen them.`;
  if (first === null) return `${number} Who is banned is shown to those who may see values of requests.`;
  return all > first.length ? `${number} These are the ${first.length} that last longest.` : number;
};

const showBans = (bans) => {
  const known = new Map(banRows);
  banRows.clear();
  for (const ban of bans.first ?? []) {
    const id = JSON.stringify([admin.isOpen(), ban.domain, ban.rule, ban.entries]);
    const row = known.get(id) ?? banRow(ban);
    say(row.since, moment(ban.since));
    say(row.until, moment(ban.until));
    banRows.set(id, row);
  }
  keep(byId('ban-rows').tBodies[0], [...banRows.values()].map(({ node }) => node));
  byId('ban-rows').hidden = banRows.size === 0;
  byId('bans').hidden = bans.count === 0;
  say(byId('bans-about'), aboutBans(bans));
};

byId('ban').addEventListener('click', () => changing(async () => {
  const { domain, entries, who: name, why } = exceptionOfForm();
  const lasts = written('for').trim();
  await admin.change('POST', 'bans', { body: { domain, entries, for: lasts, who: name, why } });
  tellExceptions(`${linesOf(entries)} is banned for ${lasts}. The list shows it when it has denied a request.`);
}));

