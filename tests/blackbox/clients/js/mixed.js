// grpc-js as a client: `mixed.js <port>` makes calls of every kind on one connection, side by side, and says `ok` when
// each got the answer that is its own. Messages are written by hand: bytes in, bytes out.
'use strict';

const grpc = require('@grpc/grpc-js');

const DECIDE = '/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit';
const CHECK = '/grpc.health.v1.Health/Check';
const WATCH = '/grpc.health.v1.Health/Watch';
const UNKNOWN = '/no.Such/Method';
const SERVING = Buffer.from([8, 1]);
const NOTHING = Buffer.alloc(0);
// No call takes so long that is answered.
const PATIENCE_MILLIS = 20_000;
// Of a message's flags, as the library numbers them.
const NO_COMPRESS = 2;
const { UNIMPLEMENTED, INVALID_ARGUMENT } = grpc.status;

const same = (bytes) => bytes;
const field = (number, payload) => Buffer.concat([Buffer.from([(number << 3) | 2, payload.length]), payload]);

// Users are from u1 to u7, and each has a limit of its own: so many millions.
const question = (user) => {
  const entry = Buffer.concat([field(1, Buffer.from('user')), field(2, Buffer.from(`u${user}`))]);
  return Buffer.concat([field(1, Buffer.from('shop')), field(2, field(1, entry))]);
};

const varint = (number) => {
  const bytes = [];
  for (; number >= 128; number = Math.floor(number / 128)) bytes.push((number % 128) | 128);
  return Buffer.from([...bytes, number]);
};

const options = () => ({ deadline: Date.now() + PATIENCE_MILLIS });
const expect = (good, what, error, answer) => {
  if (!good) throw new Error(`${what}: ${error || answer?.toString('hex')}`);
};

// The client compresses unless it is set otherwise, message by message.
class Plain extends grpc.InterceptingCall {
  sendMessageWithContext(context, message) {
    super.sendMessageWithContext({ ...context, flags: NO_COMPRESS }, message);
  }
}
const PLAIN = { interceptors: [(options, next) => new Plain(next(options))] };

const call = (client, method, request, how = PLAIN) =>
  new Promise((resolve) => {
    const answered = (error, answer) => resolve([error, answer]);
    client.makeUnaryRequest(method, same, same, request, new grpc.Metadata(), { ...how, ...options() }, answered);
  });

const decided = async (client, number) => {
  const user = (number % 7) + 1;
  const [error, answer] = await call(client, DECIDE, question(user));
  const good = !error && answer.subarray(0, 2).equals(SERVING) && answer.includes(varint(user * 1_000_000));
  expect(good, `decision about u${user}`, error, answer);
};

const healthy = async (client) => {
  const [error, answer] = await call(client, CHECK, NOTHING);
  expect(!error && answer.equals(SERVING), 'health', error, answer);
};

const refused = (what, code, method, request, how) => async (client) => {
  const [error, answer] = await call(client, method, request, how);
  expect(error?.code === code, what, error, answer);
};

const bidirectional = (client, method) => {
  const stream = client.makeBidiStreamRequest(method, same, same, new grpc.Metadata(), { ...PLAIN, ...options() });
  stream.write(NOTHING);
  return stream;
};

const watched = (client) =>
  new Promise((resolve, reject) => {
    const stream = bidirectional(client, WATCH);
    stream.end();
    stream.on('data', (answer) => {
      stream.cancel();
      if (answer.equals(SERVING)) resolve();
      else reject(new Error(`watch: ${answer.toString('hex')}`));
    });
    stream.on('error', (error) => reject(new Error(`watch: ${error}`)));
  });

// The call is answered though it is not ended.
const missingStream = (client) =>
  new Promise((resolve, reject) => {
    const stream = bidirectional(client, UNKNOWN);
    stream.on('data', () => reject(new Error('unknown stream: an answer')));
    stream.on('error', (error) => {
      if (error.code === UNIMPLEMENTED) resolve();
      else reject(new Error(`unknown stream: ${error}`));
    });
  });

const missing = refused('unknown method', UNIMPLEMENTED, UNKNOWN, question(1));
const broken = refused('broken message', INVALID_ARGUMENT, DECIDE, Buffer.from([0xff, 0xff]));
const compressed = refused('compressed message', UNIMPLEMENTED, DECIDE, question(1), {});

// A client that may compress says so with every call, and tonic then refuses to answer it about health.
const MIXES = [
  [{}, [decided, healthy, decided, watched, decided, missing, decided, missingStream, decided, broken]],
  [
    { 'grpc.default_compression_algorithm': grpc.compressionAlgorithms.gzip },
    [decided, compressed, decided, missing, decided, missingStream, decided, broken],
  ],
];

// So many callers on one connection, each with its next call once the last is answered.
const mix = async (port, callers, calls, [settings, kinds]) => {
  // Clients of different settings share no connection.
  const client = new grpc.Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), { ...settings, callers });
  const ask = async (caller) => {
    for (let number = 0; number < calls; number++) {
      await kinds[(caller + number) % kinds.length](client, number).catch((error) => {
        throw new Error(`of ${callers} callers, caller ${caller}, call ${number}: ${error.message}`);
      });
    }
  };
  await Promise.all(Array.from({ length: callers }, (_, caller) => ask(caller)));
  client.close();
};

const main = async (port) => {
  for (const callers of [2, 3, 16, 64]) {
    await Promise.all(MIXES.map((kinds) => mix(port, callers, Math.floor(200 / callers), kinds)));
  }
  console.log('ok');
};

main(process.argv[2]).catch((error) => {
  console.log(error.message);
  process.exit(1);
});
