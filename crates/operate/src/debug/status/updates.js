// Asks for the state once a second while the page is visible and not paused, and shows it.

const INTERVAL_MILLIS = 1000;
const PATIENCE_MILLIS = 5000;

/** What does not change while the process runs; `null` before the first answer. */
let about = null;
let samples = [];
let minutes = [];
let taken = 0;
let reloadsKnown = null;
let lostSince = null;
let isPaused = false;
let timer = 0;
let asked = 0;

const traffic = trafficPlot(byId('traffic'));

/** Asks this port. Fails with a sentence. */
const ask = async (url, options) => {
  const answer = await fetch(url, { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE_MILLIS), ...options });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return answer.json();
};

const sampleOf = ([at, millis, ok, over, failed, cpu, decision, calls, trip, failures, size, connections]) => {
  const seconds = Math.max(millis, 1) / 1000;
  return {
    at, ok: ok / seconds, over: over / seconds, failed: failed / seconds, cpu: cpu / 1e9 / seconds, decision,
    calls: calls / seconds, trip, failures: failures / seconds, bytes: size, connections,
  };
};

/** Another process answers than before: nothing of the old one counts. */
const begin = (process) => {
  about = { process };
  samples = [];
  minutes = [];
  taken = 0;
};

const show = (state) => {
  if (state.about) {
    if (about?.process !== state.process) begin(state.process);
    about = { ...state.about, process: state.process };
    showSettings(about.settings);
    fillAsk(about.example);
  }
  samples = [...samples, ...state.samples.map(sampleOf)].slice(-SAMPLES_SHOWN);
  minutes = [...minutes, ...state.minutes.map(sampleOf)].slice(-MINUTES_SHOWN);
  taken = state.taken;
  showIdentity(state, about);
  showTroubles(state.troubles, null);
  showTiles(state, samples);
  showTraffic(state.now);
  showRules(state.rules);
  showStore(state.store, state.redis, samples);
  followExceptions(state);
  showDenied(state.denied);
  showBans(state.bans);
  if (state.reloads) showReloads(state.reloads);
  reloadsKnown = state.reloads_known;
};

/** The requests of the chosen time, drawn and in words. Rounded, so that it is not read out again each second. */
const showTraffic = (now) => {
  const millis = Number(document.querySelector('#lengths input:checked').value) * 60_000;
  // The minute that is not over yet is known by its seconds.
  const old = minutes.filter(({ at }) => at < (samples[0]?.at ?? 0));
  const shown = [...old, ...samples].filter(({ at }) => at > now - millis);
  traffic.show(shown, now, millis);
  const [pass, denied, errors] = ['ok', 'over', 'failed'].map((kind) => rate(Math.max(0, ...shown.map((sample) => sample[kind]))));
  byId('traffic').setAttribute('aria-label', `Requests of the last ${span(millis)}: at most ${pass} a second pass, ${denied} are denied, ${errors} get an error`);
};

byId('lengths').addEventListener('change', () => update());

const showLiveness = (text, kind) => {
  say(byId('liveness'), text);
  byId('liveness').className = `live ${kind}`;
};

/** Why there is no answer. */
const reasonOf = ({ name, message }) => (name === 'TypeError' || name === 'TimeoutError' ? 'nothing answers at this address' : message);

const showLost = (error) => {
  lostSince ??= Date.now();
  showLiveness('no answer', 'off');
  showTroubles([], `No answer from Tidegate since ${clockTime(lostSince)}: ${reasonOf(error)}. What is below is from before.`);
};

const update = async () => {
  clearTimeout(timer);
  if (isPaused || document.hidden) return;
  asked += 1;
  const number = asked;
  // A later question was asked meanwhile, whose answer is newer; or the page was paused, and shows what it showed then.
  const isPast = () => number !== asked || isPaused;
  const known = about === null ? 'about=1' : `since=${taken}&reloads=${reloadsKnown}`;
  try {
    const headers = admin.headers();
    const state = await ask(`/status?${known}&${wantedRules()}`, { headers });
    if (isPast()) return;
    if ('authorization' in headers && !state.is_for_bearer) lock('The token is not the one of this limiter any more.');
    if (about !== null && about.process !== state.process) {
      about = null;
      return await update();
    }
    lostSince = null;
    show(state);
    showLiveness('live', 'on');
  } catch (error) {
    if (!isPast()) showLost(error);
  }
  if (!isPast()) timer = setTimeout(update, INTERVAL_MILLIS);
};

byId('pause').addEventListener('click', () => {
  isPaused = !isPaused;
  byId('pause').setAttribute('aria-pressed', String(isPaused));
  say(byId('pause'), isPaused ? 'Go on' : 'Pause');
  if (isPaused) showLiveness('paused', '');
  update();
});
document.addEventListener('visibilitychange', update);
update();
