// The codecs that kafkajs leaves to others: Snappy, LZ4 and zstd.

const { CompressionCodecs, CompressionTypes } = require('kafkajs')
const SnappyCodec = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const zstd = require('@bokuweb/zstd-wasm')

const codec = (compress, decompress) => () => ({
  compress: async encoder => Buffer.from(await compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(await decompress(buffer))
})

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = codec(lz4.compressFrame, lz4.decompressFrame)
// Once: each time it begins with an empty memory.
const ready = zstd.init()
CompressionCodecs[CompressionTypes.ZSTD] = codec(
  async bytes => { await ready; return zstd.compress(bytes) },
  async bytes => { await ready; return zstd.decompress(bytes) })
