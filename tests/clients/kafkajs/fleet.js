// An idempotent producer and a consumer with kafkajs while brokers come and go. Its consumers are members of a group: this one is alone in it,
// and commits nothing.
//
// NODE_PATH=MODULES node fleet.js HOST:PORT,... TOPIC PARTITIONS. Sends each partition the numbers from 0 on, each once the one before is
// acknowledged. Says whenever all partitions have come further, goes on until its input ends, and ends 0 only if every record was acknowledged,
// and came back once and in order.

const { Kafka, logLevel } = require('kafkajs')

// Records of each partition from one line to the next.
const STEP = 20

const [,, bootstrap, topic, count] = process.argv
const PARTITIONS = Number(count)

// For as long as it takes to elect somebody, and no longer than that between two tries.
const kafka = new Kafka({
  clientId: 'app', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 1000 }
})

const fail = error => {
  console.error(error)
  process.exit(1)
}

let stopped = false
process.stdin.on('end', () => { stopped = true }).resume()

let acknowledged = 0
let told = 0
// By partition: what was read, by offset.
const read = Array.from({ length: PARTITIONS }, () => new Map())
let further = () => {}

const came = async ({ partition, message }) => {
  const [offset, number] = [Number(message.offset), Number(message.value)]
  const known = read[partition].get(offset)
  if (known !== undefined && known !== number) fail(`partition ${partition} has two records at ${offset}`)
  read[partition].set(offset, number)
  const lowest = Math.min(...read.map(of => of.size))
  if (lowest >= told + STEP) {
    told = lowest
    console.log(`${lowest} of each`)
  }
  further()
}

const main = async () => {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const consumer = kafka.consumer({ groupId: 'alone', sessionTimeout: 10000, heartbeatInterval: 500, maxWaitTimeInMs: 50 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ autoCommit: false, eachMessage: came })
  for (; !stopped; acknowledged++) {
    const messages = read.map((_, partition) => ({ partition, value: `${acknowledged}` }))
    await producer.send({ topic, acks: -1, messages })
  }
  await producer.disconnect()
  const complete = () => read.every(of => of.size >= acknowledged)
  await new Promise(resolve => {
    further = () => { if (complete()) resolve() }
    further()
  })
  for (const [partition, of] of read.entries()) {
    for (const [offset, number] of of) {
      if (offset !== number) throw new Error(`partition ${partition} has ${number} at ${offset}`)
    }
    if (of.size !== acknowledged) throw new Error(`partition ${partition}: ${acknowledged} were acknowledged, and ${of.size} came back`)
  }
  console.log(`${acknowledged * PARTITIONS} records there and back`)
  await consumer.disconnect()
}

main().then(() => process.exit(0), fail)
