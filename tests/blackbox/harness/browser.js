// A real Chromium with one page, driven by lines of JSON on standard input; each is answered by one line:
// {"ok": …} or {"error": …}. `browser.rs` beside it writes the lines. Packages: puppeteer-core, axe-core.
//
// Whatever the page complains about is kept until it is asked for: errors of scripts and of the console (breaches of a
// Content-Security-Policy among them), requests that failed, requests to another origin than the page's.
'use strict';

const fs = require('fs');
const path = require('path');
const readline = require('readline');
const puppeteer = require('puppeteer-core');

const AXE = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
// The first start reads all of Chromium from the disk: over 30 s were seen beside a build.
const START_MILLIS = 180_000;
// Nothing else here takes so long, also on a busy machine.
const PATIENCE_MILLIS = 60_000;
// Of it, for what is said of a wait that fails.
const LAST_WORDS_MILLIS = 5_000;

const chromium = () => {
  const folders = process.env.PATH.split(':').map((folder) => path.join(folder, 'chromium'));
  const found = folders.find((file) => fs.existsSync(file));
  if (!found) throw new Error('no chromium in the PATH: tests/run installs it');
  return found;
};

const complaints = [];

const listen = (page) => {
  page.on('pageerror', (error) => complaints.push(`error: ${error.message}`));
  page.on('console', (message) => {
    if (message.type() === 'error') complaints.push(`console: ${message.text()}`);
  });
  page.on('requestfailed', (request) => {
    complaints.push(`failed: ${request.url()} ${request.failure()?.errorText}`);
  });
  page.on('request', (request) => {
    const url = new URL(request.url());
    const isForeign = url.protocol !== 'data:' && url.origin !== new URL(page.url()).origin;
    if (isForeign && !request.isNavigationRequest()) complaints.push(`foreign: ${url}`);
  });
};

const commands = {
  open: async (page, { url }) => (await page.goto(url, { waitUntil: 'load' }))?.status() ?? null,
  // Runs outside of the page's policy, which is for what the page itself runs.
  eval: (page, { script }) => page.evaluate(script),
  wait: async (page, { script }) => {
    try {
      const handle = await page.waitForFunction(script, { timeout: PATIENCE_MILLIS - LAST_WORDS_MILLIS, polling: 50 });
      return await handle.jsonValue();
    } catch (error) {
      throw new Error(`${error.message}; the page shows: ${await page.evaluate('document.body.innerText')}`);
    }
  },
  look: async (page, { scheme, width, height }) => {
    await page.emulateMediaFeatures([
      { name: 'prefers-color-scheme', value: scheme },
      { name: 'prefers-reduced-motion', value: 'reduce' },
    ]);
    await page.setViewport({ width, height, isMobile: width < 600, hasTouch: width < 600 });
    return null;
  },
  press: async (page, { key }) => (await page.keyboard.press(key), null),
  type: async (page, { text }) => (await page.keyboard.type(text), null),
  click: async (page, { selector }) => (await page.click(selector), null),
  screenshot: async (page, { file, whole }) => (await page.screenshot({ path: file, fullPage: whole }), null),
  // The rules of axe-core that the page breaks, each with the places where it does.
  audit: async (page) => {
    await page.evaluate(AXE);
    const { violations } = await page.evaluate('axe.run(document)');
    return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).join(' ')}`);
  },
  complaints: () => complaints.splice(0),
};

const within = (promise) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done in ${PATIENCE_MILLIS} ms`)), PATIENCE_MILLIS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

const main = async () => {
  const browser = await puppeteer.launch({
    executablePath: chromium(),
    timeout: START_MILLIS,
    // Tests run as root, where Chromium has no sandbox. It loads nothing but what the tests serve.
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-crash-reporter'],
  });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(PATIENCE_MILLIS);
    listen(page);
    // Not before: lines that come while nobody iterates are lost.
    const lines = readline.createInterface({ input: process.stdin });
    for await (const line of lines) {
      const command = JSON.parse(line);
      const answer = await within(Promise.resolve(commands[command.do](page, command))).then(
        (ok) => ({ ok: ok ?? null }),
        (error) => ({ error: String(error.message) }),
      );
      process.stdout.write(`${JSON.stringify(answer)}\n`);
    }
  } finally {
    await browser.close();
  }
};

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
