// The official Node client of RocketMQ 5: node grpc_peer.js ENDPOINT tls|plain SCENARIO,… TOPIC GROUP COUNT; what
// the scenarios do is in tests/support/grpc_scenarios.py.
'use strict';

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [ endpoints, security, scenarios, topicPrefix, groupPrefix, countText ] = process.argv.slice(2);
const count = Number(countText);
const awaitDuration = 5000;
const quiet = { debug() {}, info() {}, warn() {}, error(...words) { console.error(...words); }, close() {} };
const accessKey = process.env.PEER_ACCESS_KEY;
const sessionCredentials = accessKey ? { accessKey, accessSecret: process.env.PEER_SECRET_KEY } : undefined;
const options = { endpoints, namespace: '', sslEnabled: security === 'tls', requestTimeout: 10000, logger: quiet, sessionCredentials };
const sleep = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
const numberOf = view => Number(view.body.toString().split('-').pop());

class Scenario {
  constructor(name) {
    this.name = name;
    this.topic = `${topicPrefix}-${name}`;
    this.group = `${groupPrefix}-${name}`;
  }

  say(event, fields = {}) {
    process.stdout.write(JSON.stringify({ scenario: this.name, event, at: Date.now(), ...fields }) + '\n');
  }

  sayDone() {
    if (!this.done) this.say('done');
    this.done = true;
  }

  sayGot(view) {
    this.say('got', {
      id: view.messageId,
      body: view.body.toString(),
      attempt: view.deliveryAttempt,
      topic: view.topic,
      tag: view.tag ?? null,
      keys: view.keys,
      group: view.messageGroup || null,
      properties: Object.fromEntries(view.properties),
    });
  }

  async run() {
    try {
      const steps = {
        'send-normal': this.send, 'send-fifo': this.send, 'send-delay': this.send, recall: this.send,
        'send-refused': this.sendRefused, 'send-transaction': this.sendTransactions,
        'simple-receive-ack': this.receiveAndAck, 'simple-change-invisible': this.changeInvisible,
        'filter-tag': this.filter, 'filter-sql': this.filter, 'simple-fifo': this.receiveInOrder,
        'push-consume': this.push, 'push-fifo': this.push, 'push-dead': this.push, 'push-fifo-dead': this.push,
      };
      await steps[this.name].call(this);
      this.sayDone();
    } catch (error) {
      this.say('failed', { error: String(error.stack) });
    }
  }

  async producer(checker) {
    const producer = new Producer({ ...options, topic: this.topic, checker });
    await producer.startup();
    return producer;
  }

  async send() {
    const producer = await this.producer();
    for (let number = 0; number < count; number++) {
      const body = `${this.name}-${number}`;
      const message = { topic: this.topic, body: Buffer.from(body) };
      let due = 0;
      if (this.name === 'send-normal') {
        message.tag = number % 2 ? 'TagB' : 'TagA';
        message.keys = [ `key-${number}`, `other-${number}` ];
        message.properties = new Map([[ 'number', String(number) ], [ 'text', 'Grüße 你好' ]]);
      } else if (this.name === 'send-fifo') {
        message.messageGroup = `group-${number % 2}`;
      } else {
        due = Date.now() + (this.name === 'recall' ? 8000 : 3000);
        message.deliveryTimestamp = new Date(due);
      }
      const receipt = await producer.send(message);
      this.say('sent', { id: receipt.messageId, body, due });
      if (this.name === 'recall' && number % 2) {
        const recalled = await producer.recallMessage(this.topic, receipt.recallHandle);
        this.say('recalled', { id: recalled.messageId, body });
      }
    }
    await producer.shutdown();
  }

  async sendRefused() {
    const producer = await this.producer();
    const deliveryTimestamp = new Date(Date.now() + 3000);
    try {
      await producer.send({ topic: this.topic, body: Buffer.from('delayed'), deliveryTimestamp });
      this.say('sent', { body: 'delayed' });
    } catch (error) {
      this.say('refused', { error: String(error) });
    }
    const receipt = await producer.send({ topic: this.topic, body: Buffer.from('plain') });
    this.say('sent', { id: receipt.messageId, body: 'plain' });
    await producer.shutdown();
  }

  async sendTransactions() {
    const open = new Set();
    for (let number = 2; number < count; number += 3) open.add(`unknown-${number}`);
    const checker = {
      check: async view => {
        const body = view.body.toString();
        const commits = body.startsWith('commit') || (body.startsWith('unknown') && numberOf(view) % 2 === 0);
        const resolution = commits ? 'COMMIT' : 'ROLLBACK';
        this.say('checked', { id: view.messageId, body, resolution });
        open.delete(body);
        return TransactionResolution[resolution];
      },
    };
    const producer = await this.producer(checker);
    for (let number = 0; number < count; number++) {
      const how = [ 'commit', 'rollback', 'unknown' ][number % 3];
      const body = `${how}-${number}`;
      const transaction = producer.beginTransaction();
      const message = { topic: this.topic, body: Buffer.from(body), keys: [ `key-${number}` ] };
      const receipt = await producer.send(message, transaction);
      this.say('sent', { id: receipt.messageId, body });
      if (how === 'commit') await transaction.commit();
      if (how === 'rollback') await transaction.rollback();
    }
    for (let waited = 0; open.size && waited < 60000; waited += 100) await sleep(100);
    if (open.size) throw new Error(`not asked about ${[ ...open ]}`);
    this.sayDone();
    await sleep(20000); // the last answer is on its way, and the broker may ask again
    await producer.shutdown();
  }

  async simpleConsumer(expression = FilterExpression.SUB_ALL) {
    const subscriptions = new Map([[ this.topic, expression ]]);
    const consumer = new SimpleConsumer({ ...options, consumerGroup: this.group, subscriptions, awaitDuration });
    await consumer.startup();
    return consumer;
  }

  // An error is printed and counts as no messages, as an application would do.
  async receive(consumer, invisibleDuration, most = 10) {
    this.say('asked');
    try {
      return await consumer.receive(most, invisibleDuration);
    } catch (error) {
      this.say('again', { error: String(error) });
      await sleep(200);
      return [];
    }
  }

  async receiveAndAck() {
    const consumer = await this.simpleConsumer();
    for (let got = 0; got < count + 1;) {
      for (const view of await this.receive(consumer, 30000)) {
        got++;
        this.sayGot(view);
        if (numberOf(view) || view.deliveryAttempt > 1) await consumer.ack(view);
      }
    }
    (await this.receive(consumer, 30000)).forEach(view => this.sayGot(view));
    await consumer.shutdown();
  }

  async changeInvisible() {
    const consumer = await this.simpleConsumer();
    for (let got = 0; got < 2 * count;) {
      for (const view of await this.receive(consumer, 300000)) {
        got++;
        this.sayGot(view);
        if (view.deliveryAttempt === 1) await consumer.changeInvisibleDuration(view, 2000);
        else await consumer.ack(view);
      }
    }
    await consumer.shutdown();
  }

  async filter() {
    const byTag = this.name === 'filter-tag';
    const expression = byTag
      ? new FilterExpression('TagA || TagB')
      : new FilterExpression("number >= 3 AND color = 'red'", FilterType.SQL);
    const expected = byTag ? count - Math.floor(count / 3) : Math.floor((count - 3) / 2);
    const consumer = await this.simpleConsumer(expression);
    for (let got = 0; got < expected;) {
      for (const view of await this.receive(consumer, 60000)) {
        got++;
        this.sayGot(view);
        await consumer.ack(view);
      }
    }
    (await this.receive(consumer, 60000)).forEach(view => this.sayGot(view));
    await consumer.shutdown();
  }

  async receiveInOrder() {
    const consumer = await this.simpleConsumer();
    let held = null;
    let later = 0;
    for (let got = 0; got < count || held;) {
      for (const view of await this.receive(consumer, 60000, 1)) {
        this.sayGot(view);
        if (got++ === 0) held = view;
        else await this.acknowledge(consumer, view);
      }
      if (held && later++ === 3) {
        await this.acknowledge(consumer, held);
        held = null;
      }
    }
    await consumer.shutdown();
  }

  async acknowledge(consumer, view) {
    this.say('acked', { body: view.body.toString() }); // before it is: what comes next comes later
    await consumer.ack(view);
  }

  async push() {
    const many = this.name === 'push-consume';
    const dies = this.name.endsWith('-dead');
    let missing = count + (many ? Math.floor(count / 2) : 1);
    const seen = new Set();
    const consume = async view => {
      this.sayGot(view);
      missing--;
      const number = numberOf(view);
      const fails = (many ? number % 2 === 1 : number === 2) && (dies || !seen.has(number));
      seen.add(number);
      return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    };
    const subscriptions = new Map([[ this.topic, FilterExpression.SUB_ALL ]]);
    const consumer = new PushConsumer({
      ...options, consumerGroup: this.group, subscriptions, messageListener: { consume },
    });
    await consumer.startup();
    for (let waited = 0; missing > 0 && waited < 90000; waited += 100) await sleep(100);
    if (missing > 0) throw new Error(`${missing} deliveries are missing`);
    await sleep(2000); // what comes too much
    this.sayDone(); // to close takes as long as a poll
    await sleep(dies ? 20000 : 0); // the server makes the dead letter when it is asked for more
    await consumer.shutdown();
  }
}

process.on('unhandledRejection', error => console.error(error));
Promise.all(scenarios.split(',').map(name => new Scenario(name).run())).then(() => process.exit(0));
