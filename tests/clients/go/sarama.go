package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// saramaClient is sarama.
type saramaClient struct {
	brokers []string
	config  *sarama.Config
	admin   sarama.ClusterAdmin
	// steady writes while brokers come and go.
	steady sarama.SyncProducer
}

func newSarama(bootstrap, promise string) (*saramaClient, error) {
	config := sarama.NewConfig()
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	// Its end, and a question on the same connection, wait for a fetch that waits for records.
	config.Consumer.MaxWaitTime = 50 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	if promise == "cooperative" {
		strategy := sarama.NewBalanceStrategyCooperativeSticky()
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	}
	brokers := strings.Split(bootstrap, ",")
	admin, err := sarama.NewClusterAdmin(brokers, config)
	if err != nil {
		return nil, err
	}
	return &saramaClient{brokers: brokers, config: config, admin: admin}, nil
}

func (s *saramaClient) create(context.Context) error {
	return s.admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: -1}, false)
}

func (s *saramaClient) produce(_ context.Context, from, to int) error {
	producer, err := sarama.NewSyncProducer(s.brokers, s.config)
	if err != nil {
		return err
	}
	sent := make([]*sarama.ProducerMessage, 0, to-from)
	for number := from; number < to; number++ {
		value := sarama.StringEncoder(strconv.Itoa(number))
		sent = append(sent, &sarama.ProducerMessage{Topic: topic, Partition: int32(number % partitions), Value: value})
	}
	return errors.Join(producer.SendMessages(sent), producer.Close())
}

type saramaMember struct {
	group   sarama.ConsumerGroup
	seen    *account
	session sarama.ConsumerGroupSession
	stop    context.CancelFunc
	ended   chan struct{}
	// running is what is consumed at present; a session of a cooperative member outlives what it is given.
	running map[int32]bool
	telling sync.Mutex
}

func (s *saramaClient) join(seen *account, instance string) (member, error) {
	config := *s.config
	config.Consumer.Group.InstanceId = instance
	joined, err := sarama.NewConsumerGroup(s.brokers, group, &config)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &saramaMember{group: joined, seen: seen, stop: stop, ended: make(chan struct{}), running: map[int32]bool{}}
	go func() {
		defer close(m.ended)
		for ctx.Err() == nil {
			// It returns at every rebalance.
			if err := joined.Consume(ctx, []string{topic}, m); err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
				fail(err)
			}
		}
	}()
	return m, nil
}

func (m *saramaMember) Setup(session sarama.ConsumerGroupSession) error {
	m.seen.lock.Lock()
	m.session = session
	m.seen.lock.Unlock()
	return nil
}

// runs notes that a partition is consumed from now on, or is not any more.
func (m *saramaMember) runs(partition int32, runs bool) {
	m.telling.Lock()
	defer m.telling.Unlock()
	if runs {
		m.running[partition] = true
	} else {
		delete(m.running, partition)
	}
	m.seen.owns(slices.Collect(maps.Keys(m.running)))
}

func (m *saramaMember) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	m.runs(claim.Partition(), true)
	defer m.runs(claim.Partition(), false)
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(message, "")
			m.seen.add(message.Partition, message.Offset, message.Value)
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *saramaMember) commit() error {
	m.seen.lock.Lock()
	session := m.session
	m.seen.lock.Unlock()
	session.Commit()
	return nil
}

func (m *saramaMember) leave() error {
	m.stop()
	<-m.ended
	return m.group.Close()
}

func (s *saramaClient) committed(context.Context) (map[int32]int64, error) {
	answer, err := s.admin.ListConsumerGroupOffsets(group, nil)
	if err != nil {
		return nil, err
	}
	offsets := map[int32]int64{}
	for partition, found := range answer.Blocks[topic] {
		offsets[partition] = found.Offset
	}
	return offsets, nil
}

func (s *saramaClient) groups(context.Context) ([]string, error) {
	listed, err := s.admin.ListConsumerGroups()
	if err != nil {
		return nil, err
	}
	var found []string
	for name := range listed {
		described, err := s.admin.DescribeConsumerGroups([]string{name})
		if err != nil {
			return nil, err
		}
		found = append(found, fmt.Sprint(name, " ", described[0].State, " ", len(described[0].Members)))
	}
	return found, nil
}

func (s *saramaClient) deleteGroup(context.Context) error { return s.admin.DeleteConsumerGroup(group) }
