// A compacted log from its first record on, committed records alone, by kafkajs.
//
// NODE_PATH=MODULES node compacted.js HOST:PORT TOPIC. Prints each record of partition 0 as `OFFSET KEY VALUE TIME`, NULL for what is null, between
// tabs, and ends after the one whose key is `last`.

const { Kafka, logLevel } = require('kafkajs')
require('./codecs')

const [bootstrap, topic] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'app', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING })

const read = async () => {
  const consumer = kafka.consumer({ groupId: 'follower', maxWaitTimeInMs: 20, readUncommitted: false })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise((resolve, reject) => {
    const eachMessage = async ({ message: { offset, key, value, timestamp } }) => {
      console.log([offset, key, value === null ? 'NULL' : value, timestamp].join('\t'))
      if (`${key}` === 'last') resolve()
    }
    consumer.run({ autoCommit: false, eachMessage }).catch(reject)
  })
  await consumer.disconnect()
}

read().catch(error => {
  console.error(error)
  process.exit(1)
})
