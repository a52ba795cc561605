// Transactions with kafkajs: rounds that are committed or aborted, offsets inside them, and an older producer that is fenced.
//
// NODE_PATH=MODULES node transactions.js HOST:PORT. Ends 0 only if that held, and says so in one line.

const { Kafka, logLevel } = require('kafkajs')

const PARTITIONS = 3
const ROUNDS = 6
const RECORDS = 5
const TIMEOUT_MS = 60000
const TOPIC = 'ledger'
const GROUP = 'members'

const kafka = new Kafka({ clientId: 'app', brokers: process.argv[2].split(','), logLevel: logLevel.NOTHING })

const expect = (what, got, wanted) => {
  const [g, w] = [JSON.stringify(got), JSON.stringify(wanted)]
  if (g !== w) throw new Error(`${what}: got ${g}, wanted ${w}`)
}

const writer = async () => {
  const producer = kafka.producer({ transactionalId: 'writer', idempotent: true, maxInFlightRequests: 1, retry: { retries: 3 } })
  await producer.connect()
  return producer
}

const send = (to, partition, value) => to.send({ topic: TOPIC, messages: [{ partition, value }] })

const inEach = what => Array.from({ length: PARTITIONS }, (_, partition) => what(partition))

const sendOffset = (transaction, offset) => transaction.sendOffsets({
  consumerGroupId: GROUP, topics: [{ topic: TOPIC, partitions: [{ partition: 0, offset: `${offset}` }] }]
})

// Values that readers of this kind see, by partition, up to the last of each.
const read = async (readUncommitted, last) => {
  const consumer = kafka.consumer({ groupId: `readers-${readUncommitted}`, readUncommitted, maxWaitTimeInMs: 50 })
  await consumer.connect()
  await consumer.subscribe({ topics: [TOPIC], fromBeginning: true })
  const values = inEach(() => [])
  await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`only ${JSON.stringify(values)} came`)), TIMEOUT_MS)
    const eachMessage = async ({ partition, message }) => {
      values[partition].push(`${message.value}`)
      if (values.every(of => of.at(-1) === last)) {
        clearTimeout(late)
        resolve()
      }
    }
    consumer.run({ autoCommit: false, eachMessage }).catch(reject)
  })
  await consumer.disconnect()
  return values
}

const main = async () => {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic: TOPIC, numPartitions: PARTITIONS }] })
  const older = await writer()
  const [all, committed] = [inEach(() => []), inEach(() => [])]
  for (let round = 0; round < ROUNDS; round++) {
    const commits = round % 3 !== 1
    const transaction = await older.transaction()
    for (let record = 0; record < RECORDS; record++) {
      const [partition, value] = [record % PARTITIONS, `${round}-${record}`]
      await send(transaction, partition, value)
      all[partition].push(value)
      if (commits) committed[partition].push(value)
    }
    await sendOffset(transaction, round + 1)
    await (commits ? transaction.commit() : transaction.abort())
  }
  const open = await older.transaction()
  await send(open, 0, 'of the older')
  all[0].push('of the older')
  await sendOffset(open, 77)
  const newer = await writer()
  const last = await newer.transaction()
  for (const partition of inEach(of => of)) await send(last, partition, 'last')
  await last.commit()
  const fenced = await open.commit().then(() => 'none', ({ type }) => type)
  expect('fenced', ['INVALID_PRODUCER_EPOCH', 'PRODUCER_FENCED'].includes(fenced), true)
  expect('read_committed', await read(false, 'last'), committed.map(values => [...values, 'last']))
  expect('read_uncommitted', await read(true, 'last'), all.map(values => [...values, 'last']))
  const [{ partitions: [{ offset }] }] = await admin.fetchOffsets({ groupId: GROUP, topics: [TOPIC] })
  expect('offset', offset, `${ROUNDS}`)
  await newer.disconnect()
  await admin.disconnect()
  console.log('transactions hold')
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })
