package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var franzRefusals = refusals{
	invalidConfig:     kerr.InvalidConfig,
	invalidPartitions: kerr.InvalidPartitions,
	outOfRange:        kerr.OffsetOutOfRange,
	electionNotNeeded: kerr.ElectionNotNeeded,
	invalidAssignment: kerr.InvalidReplicaAssignment,
}

func (f *franz) make(ctx context.Context, topic string, partitions int32, settings map[string]string) error {
	configs := map[string]*string{}
	for name, value := range settings {
		configs[name] = &value
	}
	_, err := f.admin.CreateTopic(ctx, partitions, -1, configs, topic)
	return err
}

func (f *franz) send(ctx context.Context, topic, codec string, idempotent bool, sent []item) error {
	compression := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}[codec]
	options := []kgo.Opt{
		kgo.SeedBrokers(f.seeds...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(compression),
		kgo.ProducerBatchMaxBytes(2 * large),
	}
	if !idempotent {
		// More requests at once could change the order of their records.
		options = append(options, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	records := make([]*kgo.Record, 0, len(sent))
	for number, item := range sent {
		record := &kgo.Record{Topic: topic, Partition: int32(number % spread), Key: item.key, Value: item.value, Timestamp: timeOf(item.time)}
		for _, header := range item.headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.key, Value: header.value})
		}
		records = append(records, record)
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

func (f *franz) read(ctx context.Context, topic string, count int) ([spread][]item, error) {
	var got [spread][]item
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	start := map[int32]kgo.Offset{}
	for partition := range int32(spread) {
		start[partition] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(f.seeds...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: start}))
	if err != nil {
		return got, err
	}
	defer client.Close()
	for came := 0; came < count; {
		fetched := client.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return got, err
		}
		came += fetched.NumRecords()
		fetched.EachRecord(func(record *kgo.Record) {
			found := item{key: record.Key, value: record.Value, time: record.Timestamp.UnixMilli()}
			for _, each := range record.Headers {
				found.headers = append(found.headers, header{each.Key, each.Value})
			}
			got[record.Partition] = append(got[record.Partition], found)
		})
	}
	return got, nil
}

func (f *franz) offsetAt(ctx context.Context, topic string, partition int32, time int64) (int64, error) {
	// kadm gives the end where there is none: asked plainly.
	place := kmsg.NewListOffsetsRequestTopicPartition()
	place.Partition, place.Timestamp = partition, time
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic, asked.Partitions = topic, append(asked.Partitions, place)
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID, request.Topics = -1, append(request.Topics, asked)
	// To whoever leads the partition, which the client finds out.
	answer, err := request.RequestWith(ctx, f.client)
	if err != nil {
		return 0, err
	}
	found := answer.Topics[0].Partitions[0]
	return found.Offset, kerr.ErrorForCode(found.ErrorCode)
}

func (f *franz) setting(ctx context.Context, topic, name string) (string, bool, error) {
	described, err := f.admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return "", false, err
	}
	found, err := described.On(topic, nil)
	if err != nil {
		return "", false, err
	}
	for _, config := range found.Configs {
		if config.Key == name {
			return config.MaybeValue(), config.Source == kmsg.ConfigSourceDynamicTopicConfig, found.Err
		}
	}
	return "", false, found.Err
}

func altered(answer kadm.AlterConfigsResponses, err error) error {
	if err != nil {
		return err
	}
	return answer[0].Err
}

func (f *franz) alter(ctx context.Context, topic string, changes map[string]*string) error {
	var configs []kadm.AlterConfig
	for name, value := range changes {
		operation := kadm.SetConfig
		if value == nil {
			operation = kadm.DeleteConfig
		}
		configs = append(configs, kadm.AlterConfig{Op: operation, Name: name, Value: value})
	}
	return altered(f.admin.AlterTopicConfigs(ctx, configs, topic))
}

func (f *franz) replace(ctx context.Context, topic string, all map[string]*string) error {
	var configs []kadm.AlterConfig
	for name, value := range all {
		configs = append(configs, kadm.AlterConfig{Name: name, Value: value})
	}
	return altered(f.admin.AlterTopicConfigsState(ctx, configs, topic))
}

func (f *franz) grow(ctx context.Context, topic string, partitions int) error {
	answer, err := f.admin.UpdatePartitions(ctx, partitions, topic)
	if err != nil {
		return err
	}
	return answer[topic].Err
}

func (f *franz) leaders(ctx context.Context, topic string) ([]int32, error) {
	listed, err := f.admin.ListTopics(ctx, topic)
	var leaders []int32
	for _, partition := range listed[topic].Partitions {
		leaders = append(leaders, partition.Leader)
	}
	return leaders, err
}

func (f *franz) nodes(ctx context.Context) ([]int32, error) {
	listed, err := f.admin.ListBrokers(ctx)
	return listed.NodeIDs(), err
}

func (f *franz) cut(ctx context.Context, topic string, before int64) error {
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, before, -1)
	answer, err := f.admin.DeleteRecords(ctx, offsets)
	if err != nil {
		return err
	}
	return answer[topic][0].Err
}

func (f *franz) earliest(ctx context.Context, topic string) (int64, error) {
	listed, err := f.admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	found, _ := listed.Lookup(topic, 0)
	return found.Offset, found.Err
}

func partitionZero(topic string) kadm.TopicsSet {
	set := kadm.TopicsSet{}
	set.Add(topic, 0)
	return set
}

func (f *franz) elect(ctx context.Context, topic string) error {
	answer, err := f.admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, partitionZero(topic))
	if err != nil {
		return err
	}
	return answer[topic][0].Err
}

func (f *franz) move(ctx context.Context, topic string, to []int32) error {
	var request kadm.AlterPartitionAssignmentsReq
	request.Assign(topic, 0, to)
	answer, err := f.admin.AlterPartitionAssignments(ctx, request)
	if err != nil {
		return err
	}
	return answer[topic][0].Err
}

func (f *franz) moving(ctx context.Context, topic string) (int, error) {
	answer, err := f.admin.ListPartitionReassignments(ctx, partitionZero(topic))
	return len(answer[topic]), err
}

func (f *franz) onDisk(ctx context.Context, topic string) (int, error) {
	described, err := f.admin.DescribeAllLogDirs(ctx, nil)
	count := 0
	described.Each(func(dir kadm.DescribedLogDir) { count += len(dir.Topics[topic]) })
	return count, err
}

func (f *franz) remove(ctx context.Context, topic string) error {
	answer, err := f.admin.DeleteTopics(ctx, topic)
	if err != nil {
		return err
	}
	return answer[topic].Err
}

func (f *franz) topics(ctx context.Context) ([]string, error) {
	listed, err := f.admin.ListTopics(ctx)
	return listed.Names(), err
}
