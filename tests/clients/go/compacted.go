// A compacted log with both clients, which do not tell where they stand: they read on until the last record comes.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

const compactedTopic, lastKey = "compacted", "last"

// follower is one of the two libraries, for committed records of partition 0 from the first on.
type follower interface {
	// follow shows each record as it comes, until it is told that there are no more.
	follow(ctx context.Context, topic string, show func(offset int64, found item) (more bool)) error
}

// compactedHolds prints each record as `OFFSET KEY VALUE TIME`, NULL for what is null, between tabs.
func compactedHolds(ctx context.Context, client follower) {
	must(client.follow(ctx, compactedTopic, func(offset int64, found item) bool {
		value := string(found.value)
		if found.value == nil {
			value = "NULL"
		}
		fmt.Printf("%d\t%s\t%s\t%d\n", offset, found.key, value, found.time)
		return string(found.key) != lastKey
	}))
}

func (f *franz) follow(ctx context.Context, topic string, show func(int64, item) bool) error {
	start := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(f.seeds...),
		kgo.ConsumePartitions(start),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for more := true; more; {
		fetched := client.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return err
		}
		fetched.EachRecord(func(record *kgo.Record) {
			more = show(record.Offset, item{key: record.Key, value: record.Value, time: record.Timestamp.UnixMilli()}) && more
		})
	}
	return nil
}

func (s *saramaClient) follow(_ context.Context, topic string, show func(int64, item) bool) error {
	config := *s.config
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer(s.brokers, &config)
	if err != nil {
		return err
	}
	of, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return errors.Join(err, consumer.Close())
	}
	for more := true; more; {
		select {
		case message := <-of.Messages():
			more = show(message.Offset, item{key: message.Key, value: message.Value, time: message.Timestamp.UnixMilli()})
		case err := <-of.Errors():
			return err
		}
	}
	return errors.Join(of.Close(), consumer.Close())
}
