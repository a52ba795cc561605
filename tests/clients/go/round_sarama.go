package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

var saramaRefusals = refusals{
	invalidConfig:     sarama.ErrInvalidConfig,
	invalidPartitions: sarama.ErrInvalidPartitions,
	outOfRange:        sarama.ErrOffsetOutOfRange,
	electionNotNeeded: sarama.ErrElectionNotNeeded,
	invalidAssignment: sarama.ErrInvalidReplicaAssignment,
}

func timeOf(millis int64) time.Time { return time.UnixMilli(millis) }

func (s *saramaClient) make(_ context.Context, topic string, partitions int32, settings map[string]string) error {
	configs := map[string]*string{}
	for name, value := range settings {
		configs[name] = &value
	}
	return s.admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: -1, ConfigEntries: configs}, false)
}

// encoder tells what is null from what is empty.
func encoder(bytes []byte) sarama.Encoder {
	if bytes == nil {
		return nil
	}
	return sarama.ByteEncoder(bytes)
}

func (s *saramaClient) send(_ context.Context, topic, codec string, idempotent bool, sent []item) error {
	config := *s.config
	config.Producer.MaxMessageBytes = 2 * large
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = idempotent
	// More requests at once could change the order of their records.
	config.Net.MaxOpenRequests = 1
	config.Producer.Compression = map[string]sarama.CompressionCodec{
		"none":   sarama.CompressionNone,
		"gzip":   sarama.CompressionGZIP,
		"snappy": sarama.CompressionSnappy,
		"lz4":    sarama.CompressionLZ4,
		"zstd":   sarama.CompressionZSTD,
	}[codec]
	producer, err := sarama.NewSyncProducer(s.brokers, &config)
	if err != nil {
		return err
	}
	messages := make([]*sarama.ProducerMessage, 0, len(sent))
	for number, item := range sent {
		message := &sarama.ProducerMessage{Topic: topic, Partition: int32(number % spread), Timestamp: timeOf(item.time)}
		message.Key, message.Value = encoder(item.key), encoder(item.value)
		for _, header := range item.headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.key), Value: header.value})
		}
		messages = append(messages, message)
	}
	return errors.Join(producer.SendMessages(messages), producer.Close())
}

func (s *saramaClient) read(_ context.Context, topic string, count int) ([spread][]item, error) {
	var got [spread][]item
	consumer, err := sarama.NewConsumer(s.brokers, s.config)
	if err != nil {
		return got, err
	}
	defer consumer.Close()
	messages := make(chan *sarama.ConsumerMessage)
	done := make(chan struct{})
	defer close(done)
	for partition := range int32(spread) {
		of, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		if err != nil {
			return got, err
		}
		defer of.Close()
		go func() {
			for message := range of.Messages() {
				select {
				case messages <- message:
				case <-done:
					return
				}
			}
		}()
	}
	late := time.After(patience)
	for came := 0; came < count; came++ {
		select {
		case message := <-messages:
			found := item{key: message.Key, value: message.Value, time: message.Timestamp.UnixMilli()}
			for _, each := range message.Headers {
				found.headers = append(found.headers, header{string(each.Key), each.Value})
			}
			got[message.Partition] = append(got[message.Partition], found)
		case <-late:
			return got, fmt.Errorf("%s: only %d of %d records came", topic, came, count)
		}
	}
	return got, nil
}

func (s *saramaClient) offset(topic string, partition int32, time int64) (int64, error) {
	client, err := sarama.NewClient(s.brokers, s.config)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	return client.GetOffset(topic, partition, time)
}

func (s *saramaClient) offsetAt(_ context.Context, topic string, partition int32, time int64) (int64, error) {
	return s.offset(topic, partition, time)
}

func (s *saramaClient) earliest(_ context.Context, topic string) (int64, error) {
	return s.offset(topic, 0, sarama.OffsetOldest)
}

func (s *saramaClient) setting(_ context.Context, topic, name string) (string, bool, error) {
	entries, err := s.admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{name}})
	if err != nil || len(entries) != 1 {
		return "", false, errors.Join(err, fmt.Errorf("%d entries", len(entries)))
	}
	return entries[0].Value, entries[0].Source == sarama.SourceTopic, nil
}

func (s *saramaClient) alter(_ context.Context, topic string, changes map[string]*string) error {
	entries := map[string]sarama.IncrementalAlterConfigsEntry{}
	for name, value := range changes {
		operation := sarama.IncrementalAlterConfigsOperationSet
		if value == nil {
			operation = sarama.IncrementalAlterConfigsOperationDelete
		}
		entries[name] = sarama.IncrementalAlterConfigsEntry{Operation: operation, Value: value}
	}
	return s.admin.IncrementalAlterConfig(sarama.TopicResource, topic, entries, false)
}

func (s *saramaClient) replace(_ context.Context, topic string, all map[string]*string) error {
	return s.admin.AlterConfig(sarama.TopicResource, topic, all, false)
}

func (s *saramaClient) grow(_ context.Context, topic string, partitions int) error {
	return s.admin.CreatePartitions(topic, int32(partitions), nil, false)
}

func (s *saramaClient) leaders(_ context.Context, topic string) ([]int32, error) {
	described, err := s.admin.DescribeTopics([]string{topic})
	if err != nil {
		return nil, err
	}
	var leaders []int32
	for _, partition := range described[0].Partitions {
		leaders = append(leaders, partition.Leader)
	}
	return leaders, nil
}

func (s *saramaClient) nodes(context.Context) ([]int32, error) {
	found, _, err := s.admin.DescribeCluster()
	ids := make([]int32, 0, len(found))
	for _, broker := range found {
		ids = append(ids, broker.ID())
	}
	return ids, err
}

func (s *saramaClient) cut(_ context.Context, topic string, before int64) error {
	return s.admin.DeleteRecords(topic, map[int32]int64{0: before})
}

func (s *saramaClient) elect(_ context.Context, topic string) error {
	answer, err := s.admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{topic: {0}})
	if err != nil {
		return err
	}
	return answer[topic][0].ErrorCode
}

func (s *saramaClient) move(_ context.Context, topic string, to []int32) error {
	return s.admin.AlterPartitionReassignments(topic, [][]int32{to})
}

func (s *saramaClient) moving(_ context.Context, topic string) (int, error) {
	answer, err := s.admin.ListPartitionReassignments(topic, []int32{0})
	return len(answer[topic]), err
}

func (s *saramaClient) onDisk(ctx context.Context, topic string) (int, error) {
	ids, err := s.nodes(ctx)
	if err != nil {
		return 0, err
	}
	described, err := s.admin.DescribeLogDirs(ids)
	count := 0
	for _, dirs := range described {
		for _, dir := range dirs {
			for _, found := range dir.Topics {
				if found.Topic == topic {
					count += len(found.Partitions)
				}
			}
		}
	}
	return count, err
}

func (s *saramaClient) remove(_ context.Context, topic string) error {
	return s.admin.DeleteTopic(topic)
}

func (s *saramaClient) topics(context.Context) ([]string, error) {
	listed, err := s.admin.ListTopics()
	names := make([]string, 0, len(listed))
	for name := range listed {
		names = append(names, name)
	}
	return names, err
}
