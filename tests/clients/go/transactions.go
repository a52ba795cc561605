// Transactions with both clients: rounds that are committed or aborted, offsets inside them, and an older producer that is fenced.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const rounds = 6

// transactional is a producer with a transactional id.
type transactional interface {
	begin() error
	send(ctx context.Context, partition int32, value string) error
	// offset has the group commit an offset of partition 0 in the transaction.
	offset(ctx context.Context, offset int64) error
	end(ctx context.Context, commits bool) error
}

type transactor interface {
	transactional(ctx context.Context) (transactional, error)
	// committedValues reads values of committed transactions by partition, up to the last of each.
	committedValues(ctx context.Context, last string) ([partitions][]string, error)
}

func transactionsHold(ctx context.Context, client interface {
	client
	transactor
}) {
	must(client.create(ctx))
	older, err := client.transactional(ctx)
	must(err)
	var committed [partitions][]string
	for round := range rounds {
		commits := round%3 != 1
		must(older.begin())
		for partition := range committed {
			value := fmt.Sprintf("%d-%d", round, partition)
			must(older.send(ctx, int32(partition), value))
			if commits {
				committed[partition] = append(committed[partition], value)
			}
		}
		must(older.offset(ctx, int64(round+1)))
		must(older.end(ctx, commits))
	}
	must(older.begin())
	must(older.send(ctx, 0, "of the older"))
	must(older.offset(ctx, 77))
	newer, err := client.transactional(ctx)
	must(err)
	must(newer.begin())
	for partition := range committed {
		must(newer.send(ctx, int32(partition), "last"))
		committed[partition] = append(committed[partition], "last")
	}
	must(newer.end(ctx, true))
	if older.end(ctx, true) == nil {
		fail(errors.New("the older producer committed"))
	}
	seen, err := client.committedValues(ctx, "last")
	must(err)
	expect("read_committed", seen, committed)
	offsets, err := client.committed(ctx)
	must(err)
	expect("offsets", offsets, map[int32]int64{0: rounds})
}

type franzTransactional struct{ client *kgo.Client }

func (f *franz) transactional(ctx context.Context) (transactional, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(f.seeds...), kgo.TransactionalID("writer"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	// It is fenced by whoever is next from here on.
	_, _, err = client.ProducerID(ctx)
	return &franzTransactional{client}, err
}

func (t *franzTransactional) begin() error { return t.client.BeginTransaction() }

func (t *franzTransactional) send(ctx context.Context, partition int32, value string) error {
	return t.client.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)}).FirstErr()
}

func (t *franzTransactional) offset(ctx context.Context, offset int64) error {
	id, epoch, err := t.client.ProducerID(ctx)
	if err != nil {
		return err
	}
	add := kmsg.NewAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = "writer", id, epoch, group
	added, err := add.RequestWith(ctx, t.client)
	if err != nil {
		return err
	}
	commit := kmsg.NewTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch, commit.Group = "writer", id, epoch, group
	partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	partition.Offset = offset
	of := kmsg.NewTxnOffsetCommitRequestTopic()
	of.Topic, of.Partitions = topic, append(of.Partitions, partition)
	commit.Topics = append(commit.Topics, of)
	committed, err := commit.RequestWith(ctx, t.client)
	if err != nil {
		return err
	}
	code := committed.Topics[0].Partitions[0].ErrorCode
	if added.ErrorCode != 0 || code != 0 {
		return fmt.Errorf("offsets in a transaction: %d and %d", added.ErrorCode, code)
	}
	return nil
}

func (t *franzTransactional) end(ctx context.Context, commits bool) error {
	return t.client.EndTransaction(ctx, kgo.TransactionEndTry(commits))
}

func (f *franz) committedValues(ctx context.Context, last string) ([partitions][]string, error) {
	var values [partitions][]string
	from := map[int32]kgo.Offset{}
	for partition := range int32(partitions) {
		from[partition] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(f.seeds...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return values, err
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for ended := 0; ended < partitions; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return values, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			value := string(record.Value)
			values[record.Partition] = append(values[record.Partition], value)
			if value == last {
				ended++
			}
		})
	}
	return values, nil
}

type saramaTransactional struct{ producer sarama.SyncProducer }

func (s *saramaClient) transactional(context.Context) (transactional, error) {
	config := *s.config
	config.Producer.Transaction.ID = "writer"
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(s.brokers, &config)
	return &saramaTransactional{producer}, err
}

func (t *saramaTransactional) begin() error { return t.producer.BeginTxn() }

func (t *saramaTransactional) send(_ context.Context, partition int32, value string) error {
	message := sarama.ProducerMessage{Topic: topic, Partition: partition, Value: sarama.StringEncoder(value)}
	_, _, err := t.producer.SendMessage(&message)
	return err
}

func (t *saramaTransactional) offset(_ context.Context, offset int64) error {
	at := []*sarama.PartitionOffsetMetadata{{Partition: 0, Offset: offset}}
	return t.producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{topic: at}, group)
}

func (t *saramaTransactional) end(_ context.Context, commits bool) error {
	if commits {
		return t.producer.CommitTxn()
	}
	return t.producer.AbortTxn()
}

func (s *saramaClient) committedValues(ctx context.Context, last string) ([partitions][]string, error) {
	var values [partitions][]string
	config := *s.config
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer, err := sarama.NewConsumer(s.brokers, &config)
	if err != nil {
		return values, err
	}
	defer consumer.Close()
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	// One after the other: each goes to its own leader.
	for number := range values {
		partition, err := consumer.ConsumePartition(topic, int32(number), sarama.OffsetOldest)
		if err != nil {
			return values, err
		}
		defer partition.Close()
		for len(values[number]) == 0 || values[number][len(values[number])-1] != last {
			select {
			case message := <-partition.Messages():
				values[number] = append(values[number], string(message.Value))
			case <-ctx.Done():
				return values, fmt.Errorf("only %q came", values)
			}
		}
	}
	return values, nil
}
