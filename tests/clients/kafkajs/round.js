// Round trips and the admin client of kafkajs, one promise a run.
//
// NODE_PATH=MODULES node round.js HOST:PORT records|topics. Ends 0 only if the promise held, and says so in one line.

const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')
const { randomBytes } = require('crypto')
require('./codecs')

const RECORDS = 300
const FIRST_TIME = 1700000000000
const LARGE = 3 << 20
const TIMEOUT_MS = 60000

const kafka = new Kafka({ clientId: 'app', brokers: [process.argv[2]], logLevel: logLevel.NOTHING })

const expect = (what, got, wanted) => {
  const [g, w] = [JSON.stringify(got), JSON.stringify(wanted)]
  if (g !== w) throw new Error(`${what}: got ${g}, wanted ${w}`)
}

const refused = async (what, asked, wanted) => {
  const { type, errors } = await asked.then(() => ({ type: 'none' }), error => error)
  expect(what, type || (errors && errors[0].type), wanted)
}

// A record by its number: null and empty keys, values and headers are among them.
const some = number => ({
  partition: 0,
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

const roundTrip = async (admin, topic, sent, { compression, idempotent }) => {
  const producer = kafka.producer({ idempotent })
  await producer.connect()
  await producer.send({ topic, acks: -1, compression, messages: sent })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: `of-${topic}`, maxBytesPerPartition: 2 * LARGE, maxBytes: 4 * LARGE })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const got = []
  await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`${topic}: only ${got.length} of ${sent.length} records came`)), TIMEOUT_MS)
    const eachMessage = async ({ message }) => {
      got.push(message)
      if (got.length === sent.length) {
        clearTimeout(late)
        resolve()
      }
    }
    consumer.run({ autoCommit: false, eachMessage }).catch(reject)
  })
  await consumer.disconnect()
  expect(`records of ${topic}`, got.map(shown), sent.map(shown))
  const at = async time => (await admin.fetchTopicOffsetsByTimestamp(topic, time))[0].offset
  const middle = sent.length >> 1
  expect('offset by time', await at(FIRST_TIME + middle), `${middle}`)
  // kafkajs gives the end where no record is late enough.
  expect('late', await at(FIRST_TIME + sent.length), `${sent.length}`)
}

const records = async admin => {
  const sent = Array.from({ length: RECORDS }, (_, number) => some(number))
  for (const compression of Object.values(CompressionTypes)) {
    for (const idempotent of [false, true]) {
      const topic = `${compression}-${idempotent}`
      await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] })
      await roundTrip(admin, topic, sent, { compression, idempotent })
    }
  }
  const configEntries = [{ name: 'max.message.bytes', value: `${2 * LARGE}` }]
  await admin.createTopics({ topics: [{ topic: 'large', numPartitions: 1, configEntries }] })
  await roundTrip(admin, 'large', [{ ...some(1), value: randomBytes(LARGE), timestamp: `${FIRST_TIME}` }], { idempotent: false })
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
  expect('set', await setting('retention.ms'), ['1000', 1, ['retention.ms', 'log.retention.ms']])
  const alter = value => admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'segment.ms', value }] }] })
  await alter('5000')
  expect('altered', await setting('segment.ms'), ['5000', 1, ['segment.ms', 'log.roll.ms']])
  expect('replaced', await setting('retention.ms'), ['604800000', 5, ['log.retention.ms']])
  await refused('a bad value', alter('x'), 'INVALID_CONFIG')

  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  await refused('growing to less', admin.createPartitions({ topicPartitions: [{ topic, count: 2 }] }), 'INVALID_PARTITIONS')
  const { topics: [{ partitions }] } = await admin.fetchTopicMetadata({ topics: [topic] })
  expect('partitions', partitions.length, 3)
  await roundTrip(admin, topic, Array.from({ length: 10 }, (_, number) => some(number)), { idempotent: true })
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
  const offsets = await admin.fetchTopicOffsets(topic)
  const first = offsets.find(({ partition }) => partition === 0)
  expect('what is left', [first.low, first.high], ['4', '10'])

  const move = replicas => admin.alterPartitionReassignments({ topics: [{ topic, partitionAssignment: [{ partition: 0, replicas }] }] })
  const { brokers: [{ nodeId }] } = await admin.describeCluster()
  await move([nodeId])
  await refused('moving to nobody', move([77]), 'INVALID_REPLICA_ASSIGNMENT')
  const moves = await admin.listPartitionReassignments({ topics: [{ topic, partitions: [0] }] })
  expect('moves', moves.topics, [])
  await admin.deleteTopics({ topics: [topic] })
  expect('topics', await admin.listTopics(), [])
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
