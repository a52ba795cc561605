// Groups with kafkajs: two members share, one leaves, the other goes on where it was.
//
// NODE_PATH=MODULES node groups.js HOST:PORT. Ends 0 only if that held, and says so in one line.

const { AssignerProtocol, Kafka, logLevel } = require('kafkajs')

const PARTITIONS = 4
const RECORDS = 400
const TIMEOUT_MS = 60000
const TOPIC = 'shared'

const kafka = new Kafka({ clientId: 'app', brokers: process.argv[2].split(','), logLevel: logLevel.ERROR })

const expect = (what, got, wanted) => {
  const [g, w] = [JSON.stringify(got), JSON.stringify(wanted)]
  if (g !== w) throw new Error(`${what}: got ${g}, wanted ${w}`)
}

const numbers = (from, to) => Array.from({ length: to - from }, (_, n) => from + n)

// Resolves when it holds; looked at whenever something happened to a member.
class Watch {
  constructor () { this.waiting = [] }
  changed () { this.waiting = this.waiting.filter(look => !look()) }
  until (what, holds) {
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`${what} did not come about`)), TIMEOUT_MS)
      this.waiting.push(() => {
        if (!holds()) return false
        clearTimeout(late)
        resolve()
        return true
      })
      this.changed()
    })
  }
}

const watch = new Watch()

const join = async () => {
  const member = { owned: [], read: [], next: {} }
  // Its end waits for a fetch that waits for records.
  member.consumer = kafka.consumer({ groupId: 'members', sessionTimeout: 10000, heartbeatInterval: 500, maxWaitTimeInMs: 50 })
  member.consumer.on(member.consumer.events.GROUP_JOIN, ({ payload }) => {
    member.owned = payload.memberAssignment[TOPIC] || []
    watch.changed()
  })
  await member.consumer.connect()
  await member.consumer.subscribe({ topics: [TOPIC], fromBeginning: true })
  await member.consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      member.read.push(Number(message.value))
      member.next[partition] = Number(message.offset) + 1
      watch.changed()
    }
  })
  return member
}

const commit = member => member.consumer.commitOffsets(
  Object.entries(member.next).map(([partition, offset]) => ({ topic: TOPIC, partition: Number(partition), offset: `${offset}` })))

const main = async () => {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic: TOPIC, numPartitions: PARTITIONS }] })
  const producer = kafka.producer()
  await producer.connect()
  const produce = sent => producer.send({ topic: TOPIC, messages: sent.map(n => ({ value: `${n}`, partition: n % PARTITIONS })) })
  await produce(numbers(0, RECORDS))
  const [a, b] = await Promise.all([join(), join()])
  await watch.until('a fair share', () => a.owned.length === 2 && b.owned.length === 2)
  // What one has read before the other came is read again: it was not committed.
  const hasRead = member => member.owned.every(partition => member.next[partition] === RECORDS / PARTITIONS)
  await watch.until('all records', () => hasRead(a) && hasRead(b))
  expect('records', new Set([...a.read, ...b.read]).size, RECORDS)
  await commit(a)
  await commit(b)
  await b.consumer.disconnect()
  await watch.until('all partitions', () => a.owned.length === PARTITIONS)
  const before = a.read.length
  await produce(numbers(RECORDS, 2 * RECORDS))
  await watch.until('new records', () => a.read.length - before >= RECORDS)
  expect('records', a.read.slice(before).sort((x, y) => x - y), numbers(RECORDS, 2 * RECORDS))
  await commit(a)
  const [{ partitions }] = await admin.fetchOffsets({ groupId: 'members', topics: [TOPIC] })
  const offsets = partitions.sort((x, y) => x.partition - y.partition).map(found => Number(found.offset))
  expect('offsets', offsets, Array(PARTITIONS).fill(2 * RECORDS / PARTITIONS))
  const { groups } = await admin.listGroups()
  expect('groups', groups, [{ groupId: 'members', protocolType: 'consumer' }])
  const described = await admin.describeGroups(['members'])
  const [{ state, members }] = described.groups
  expect('described', [state, members.length, members[0].clientId, members[0].clientHost], ['Stable', 1, 'app', '/127.0.0.1'])
  const assigned = AssignerProtocol.MemberAssignment.decode(members[0].memberAssignment).assignment[TOPIC]
  expect('assigned', assigned.sort(), numbers(0, PARTITIONS))
  await a.consumer.disconnect()
  await admin.deleteGroups(['members'])
  expect('groups', (await admin.listGroups()).groups, [])
  await producer.disconnect()
  await admin.disconnect()
  console.log('share holds')
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })
