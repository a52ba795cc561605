// An idempotent producer and a group of one consumer with kafkajs while brokers come and go.
//
// NODE_PATH=MODULES node fleet.js HOST:PORT,... TOPIC PARTITIONS. Says how far it has come, goes on until its input ends, and ends 0 only if
// every record was acknowledged, and came back once and in order.

const { Kafka, Partitioners, logLevel } = require('kafkajs')

// Records of each partition from one line to the next.
const STEP = 20

const [bootstrap, topic, count] = process.argv.slice(2)
// Longer than a broker takes to be found dead and another to be elected.
const retry = { retries: 50, maxRetryTime: 2000 }
const kafka = new Kafka({ clientId: 'app', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry })

const partitions = Array.from({ length: Number(count) }, (_, n) => n)
const acknowledged = partitions.map(() => 0)
// By partition: what was read, by offset. One that is read again is the same.
const read = partitions.map(() => new Map())
let [told, stop, wake] = [0, false, () => {}]

process.stdin.on('end', () => { stop = true }).resume()

const came = (partition, offset, number) => {
  const known = read[partition].get(offset)
  if (known !== undefined && known !== number) throw new Error(`partition ${partition} has two records at ${offset}`)
  read[partition].set(offset, number)
  const lowest = Math.min(...read.map(one => one.size))
  if (lowest >= told + STEP) {
    told = lowest
    console.log(`${lowest} of each`)
  }
  wake()
}

const main = async () => {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, createPartitioner: Partitioners.DefaultPartitioner })
  const consumer = kafka.consumer({ groupId: 'fleet', sessionTimeout: 10000, heartbeatInterval: 500 })
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ eachMessage: async ({ partition, message }) => came(partition, Number(message.offset), Number(message.value)) })
  while (!stop) {
    await producer.send({ topic, acks: -1, messages: partitions.map(partition => ({ partition, value: `${acknowledged[partition]}` })) })
    partitions.forEach(partition => { acknowledged[partition]++ })
  }
  while (partitions.some(partition => read[partition].size < acknowledged[partition])) {
    await new Promise(resolve => { wake = resolve })
  }
  await consumer.disconnect()
  await producer.disconnect()
  for (const partition of partitions) {
    const numbers = [...read[partition]].sort(([a], [b]) => a - b).map(([, number]) => number)
    if (numbers.length !== acknowledged[partition] || numbers.some((number, place) => number !== place)) {
      throw new Error(`partition ${partition}: ${acknowledged[partition]} were acknowledged, and ${numbers} came back`)
    }
  }
  console.log(`${acknowledged.reduce((a, b) => a + b)} records there and back`)
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
