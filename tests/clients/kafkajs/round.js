// Round trips and the admin client of kafkajs, one promise a run.
//
// NODE_PATH=MODULES node round.js HOST:PORT records|topics. Ends 0 only if the promise held, and says so in one line.

const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')
const { randomBytes } = require('crypto')
require('./codecs')

const PARTITIONS = 3
const RECORDS = 300
const FIRST_TIME = 1700000000000
const LARGE = 3 << 20
const TIMEOUT_MS = 60000

const kafka = new Kafka({ clientId: 'app', brokers: process.argv[2].split(','), logLevel: logLevel.NOTHING })

const expect = (what, got, wanted) => {
  const [g, w] = [JSON.stringify(got), JSON.stringify(wanted)]
  if (g !== w) throw new Error(`${what}: got ${g}, wanted ${w}`)
}

// Asks until it is so: brokers learn a little later of what another has done.
const settles = async (what, ask, wanted) => {
  const late = Date.now() + TIMEOUT_MS
  let got = await ask()
  while (JSON.stringify(got) !== JSON.stringify(wanted) && Date.now() < late) got = await ask()
  expect(what, got, wanted)
}

const refused = async (what, asked, wanted) => {
  const { type, errors } = await asked.then(() => ({ type: 'none' }), error => error)
  expect(what, type || (errors && errors[0].type), wanted)
}

// A record by its number: null and empty keys, values and headers are among them.
const some = number => ({
  partition: number % PARTITIONS,
  key: [null, Buffer.alloc(0), Buffer.from(`key-${number}`)][number % 3],
  value: [Buffer.from(`value ${number} `.repeat(20)), Buffer.alloc(0), null][number % 7 ? 0 : (number / 7) % 3],
  timestamp: `${FIRST_TIME + number}`,
  headers: number % 5 ? {} : { h: [Buffer.from('1'), Buffer.alloc(0)], n: Buffer.from(`${number}`) }
})

const shown = ({ key, value, timestamp, headers }) => {
  const hex = bytes => bytes && bytes.toString('hex')
  const all = Object.entries(headers).map(([name, values]) => [name, [values].flat().map(hex)])
  return [hex(key), hex(value), timestamp, all]
}

const send = async (topic, sent, { compression, idempotent }) => {
  const producer = kafka.producer({ idempotent })
  await producer.connect()
  await producer.send({ topic, acks: -1, compression, messages: sent })
  await producer.disconnect()
}

// All that was sent, by topic, comes back. One consumer reads all of it: each would have to join a group first.
const comeBack = async (admin, all) => {
  // Its end waits for a fetch that waits for records.
  const settings = { maxBytesPerPartition: 2 * LARGE, maxBytes: 4 * LARGE, maxWaitTimeInMs: 20 }
  const consumer = kafka.consumer({ groupId: 'readers', ...settings })
  await consumer.connect()
  await consumer.subscribe({ topics: Object.keys(all), fromBeginning: true })
  const got = Object.fromEntries(Object.keys(all).map(topic => [topic, Array.from({ length: PARTITIONS }, () => [])]))
  let left = Object.values(all).flat().length
  await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`${left} records did not come`)), TIMEOUT_MS)
    const eachMessage = async ({ topic, partition, message }) => {
      got[topic][partition].push(message)
      left--
      if (left === 0) {
        clearTimeout(late)
        resolve()
      }
    }
    consumer.run({ autoCommit: false, eachMessage }).catch(reject)
  })
  await consumer.disconnect()
  for (const [topic, sent] of Object.entries(all)) {
    const wanted = got[topic].map((_, partition) => sent.filter(record => record.partition === partition))
    expect(`records of ${topic}`, got[topic].map(records => records.map(shown)), wanted.map(records => records.map(shown)))
    for (const time of [FIRST_TIME + (sent.length >> 1), FIRST_TIME + sent.length]) {
      const found = await admin.fetchTopicOffsetsByTimestamp(topic, time)
      const offsets = found.sort((x, y) => x.partition - y.partition).map(({ offset }) => Number(offset))
      // kafkajs gives the end where no record is late enough.
      expect('offsets by time', offsets, wanted.map(records => records.filter(({ timestamp }) => Number(timestamp) < time).length))
    }
  }
}

const records = async admin => {
  const sent = Array.from({ length: RECORDS }, (_, number) => some(number))
  const all = {}
  for (const compression of Object.values(CompressionTypes)) {
    for (const idempotent of [false, true]) {
      const topic = `${compression}-${idempotent}`
      await admin.createTopics({ topics: [{ topic, numPartitions: PARTITIONS }] })
      await send(topic, sent, { compression, idempotent })
      all[topic] = sent
    }
  }
  const configEntries = [{ name: 'max.message.bytes', value: `${2 * LARGE}` }]
  await admin.createTopics({ topics: [{ topic: 'large', numPartitions: PARTITIONS, configEntries }] })
  all.large = [{ ...some(1), value: randomBytes(LARGE), timestamp: `${FIRST_TIME}` }]
  await send('large', all.large, { idempotent: false })
  await comeBack(admin, all)
}

const topics = async admin => {
  const topic = 'looked-after'
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const setting = async name => {
    const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: [name] }], includeSynonyms: true })
    const [{ configValue, configSource, configSynonyms }] = resources[0].configEntries
    return [configValue, configSource, configSynonyms.map(synonym => synonym.configName)]
  }
  await admin.createTopics({ topics: [{ topic, numPartitions: 1, configEntries: [{ name: 'retention.ms', value: '1000' }] }] })
  await settles('set', () => setting('retention.ms'), ['1000', 1, ['retention.ms', 'log.retention.ms']])
  const alter = value => admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'segment.ms', value }] }] })
  await alter('5000')
  await settles('altered', () => setting('segment.ms'), ['5000', 1, ['segment.ms', 'log.roll.ms']])
  await settles('replaced', () => setting('retention.ms'), ['604800000', 5, ['log.retention.ms']])
  await refused('a bad value', alter('x'), 'INVALID_CONFIG')

  await admin.createPartitions({ topicPartitions: [{ topic, count: PARTITIONS }] })
  await refused('growing to less', admin.createPartitions({ topicPartitions: [{ topic, count: 2 }] }), 'INVALID_PARTITIONS')
  const partitionsOf = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions
  await settles('partitions', async () => (await partitionsOf()).length, PARTITIONS)
  const partitions = await partitionsOf()
  const { brokers } = await admin.describeCluster()
  const ids = brokers.map(({ nodeId }) => nodeId).sort()
  expect('leaders', [...new Set(partitions.map(({ leader }) => leader))].sort(), ids)
  expect('replicas', partitions.map(({ replicas }) => [...replicas].sort()), partitions.map(() => ids))
  const sent = Array.from({ length: 10 * PARTITIONS }, (_, number) => some(number))
  await send(topic, sent, { idempotent: true })
  await comeBack(admin, { [topic]: sent })
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
  const offsets = await admin.fetchTopicOffsets(topic)
  const first = offsets.find(({ partition }) => partition === 0)
  expect('what is left', [first.low, first.high], ['4', '10'])

  const move = replicas => admin.alterPartitionReassignments({ topics: [{ topic, partitionAssignment: [{ partition: 0, replicas }] }] })
  await move(partitions.find(({ partitionId }) => partitionId === 0).replicas)
  await refused('moving to nobody', move([77]), 'INVALID_REPLICA_ASSIGNMENT')
  const moves = await admin.listPartitionReassignments({ topics: [{ topic, partitions: [0] }] })
  expect('moves', moves.topics, [])
  await admin.deleteTopics({ topics: [topic] })
  await settles('topics', () => admin.listTopics(), [])
}

const main = async () => {
  const promise = process.argv[3]
  const admin = kafka.admin()
  await admin.connect()
  await { records, topics }[promise](admin)
  await admin.disconnect()
  console.log(`${promise} hold`)
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })
