package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	fleetTopic      = "events"
	fleetPartitions = 3
	// step is how many records of each partition lie between one line and the next.
	step = 20
)

// fleetClient writes and reads while brokers come and go.
type fleetClient interface {
	// sendEach sends one record to each partition, and returns once all are acknowledged.
	sendEach(ctx context.Context, values []string) error
	// readAll reads all partitions from their beginning on, until the context ends.
	readAll(ctx context.Context, came func(partition int32, offset int64, value []byte)) error
}

// ledger keeps what came back, by partition and offset.
type ledger struct {
	lock  sync.Mutex
	grown *sync.Cond
	read  [fleetPartitions]map[int64]int
	told  int
}

func (l *ledger) came(partition int32, offset int64, value []byte) {
	number, err := strconv.Atoi(string(value))
	must(err)
	l.lock.Lock()
	defer l.lock.Unlock()
	if known, there := l.read[partition][offset]; there && known != number {
		fail(fmt.Errorf("partition %d has two records at %d", partition, offset))
	}
	l.read[partition][offset] = number
	lowest := len(l.read[0])
	for _, read := range l.read {
		lowest = min(lowest, len(read))
	}
	if lowest >= l.told+step {
		l.told = lowest
		fmt.Println(lowest, "of each")
	}
	l.grown.Broadcast()
}

// fleetHolds says how far it has come, goes on until the input ends, and fails unless every record was acknowledged, and came back once and in
// order.
func fleetHolds(ctx context.Context, client fleetClient) {
	account := &ledger{}
	account.grown = sync.NewCond(&account.lock)
	for partition := range account.read {
		account.read[partition] = map[int64]int{}
	}
	var stop atomic.Bool
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		must(err)
		stop.Store(true)
	}()
	reading, ended := context.WithCancel(ctx)
	defer ended()
	go func() {
		if err := client.readAll(reading, account.came); err != nil && reading.Err() == nil {
			fail(err)
		}
	}()
	acknowledged := 0
	for !stop.Load() {
		values := slices.Repeat([]string{strconv.Itoa(acknowledged)}, fleetPartitions)
		must(client.sendEach(ctx, values))
		acknowledged++
	}
	account.lock.Lock()
	defer account.lock.Unlock()
	for partition := range account.read {
		for len(account.read[partition]) < acknowledged {
			account.grown.Wait()
		}
		for offset := range int64(acknowledged) {
			if number, there := account.read[partition][offset]; !there || int64(number) != offset {
				fail(fmt.Errorf("partition %d has %d at %d", partition, number, offset))
			}
		}
		expect("records", len(account.read[partition]), acknowledged)
	}
	fmt.Println(acknowledged*fleetPartitions, "records there and back")
}

func (f *franz) sendEach(ctx context.Context, values []string) error {
	sent := make([]*kgo.Record, 0, len(values))
	for partition, value := range values {
		sent = append(sent, &kgo.Record{Topic: fleetTopic, Partition: int32(partition), Value: []byte(value)})
	}
	return f.client.ProduceSync(ctx, sent...).FirstErr()
}

func (f *franz) readAll(ctx context.Context, came func(partition int32, offset int64, value []byte)) error {
	from := map[int32]kgo.Offset{}
	for partition := range int32(fleetPartitions) {
		from[partition] = kgo.NewOffset().AtStart()
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(f.seeds...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{fleetTopic: from}))
	if err != nil {
		return err
	}
	defer reader.Close()
	for ctx.Err() == nil {
		fetched := reader.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return err
		}
		fetched.EachRecord(func(record *kgo.Record) { came(record.Partition, record.Offset, record.Value) })
	}
	return nil
}

func (s *saramaClient) sendEach(_ context.Context, values []string) error {
	if s.steady == nil {
		config := *s.config
		config.Producer.Idempotent = true
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Net.MaxOpenRequests = 1
		// An idempotent batch is sent again without a pause, to whoever is said to lead: for as long as it takes to elect somebody.
		config.Producer.Retry.Max = 1_000_000
		steady, err := sarama.NewSyncProducer(s.brokers, &config)
		if err != nil {
			return err
		}
		s.steady = steady
	}
	sent := make([]*sarama.ProducerMessage, 0, len(values))
	for partition, value := range values {
		message := sarama.ProducerMessage{Topic: fleetTopic, Partition: int32(partition), Value: sarama.StringEncoder(value)}
		sent = append(sent, &message)
	}
	return s.steady.SendMessages(sent)
}

func (s *saramaClient) readAll(ctx context.Context, came func(partition int32, offset int64, value []byte)) error {
	reader, err := sarama.NewConsumer(s.brokers, s.config)
	if err != nil {
		return err
	}
	var each sync.WaitGroup
	for partition := range int32(fleetPartitions) {
		records, err := reader.ConsumePartition(fleetTopic, partition, sarama.OffsetOldest)
		if err != nil {
			return err
		}
		each.Go(func() {
			for {
				select {
				case record := <-records.Messages():
					came(record.Partition, record.Offset, record.Value)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	each.Wait()
	return reader.Close()
}
