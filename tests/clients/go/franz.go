package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// franz is franz-go.
type franz struct {
	seeds  []string
	client *kgo.Client
	admin  *kadm.Client
	// balancing says who decides in a group, and how.
	balancing []kgo.Opt
}

func newFranz(bootstrap, promise string) (*franz, error) {
	seeds := strings.Split(bootstrap, ",")
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	balancing := []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}
	switch promise {
	case "consumer":
		balancing = append(balancing, kgo.ServerSideBalancer())
	case "cooperative":
		balancing = []kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer())}
	}
	return &franz{seeds, client, kadm.NewClient(client), balancing}, nil
}

func (f *franz) create(ctx context.Context) error {
	_, err := f.admin.CreateTopic(ctx, partitions, -1, nil, topic)
	return err
}

func (f *franz) produce(ctx context.Context, from, to int) error {
	sent := make([]*kgo.Record, 0, to-from)
	for number := from; number < to; number++ {
		value := []byte(strconv.Itoa(number))
		sent = append(sent, &kgo.Record{Topic: topic, Partition: int32(number % partitions), Value: value})
	}
	return f.client.ProduceSync(ctx, sent...).FirstErr()
}

type franzMember struct {
	client *kgo.Client
	stop   context.CancelFunc
	ended  chan struct{}
}

func (f *franz) join(seen *account, instance string) (member, error) {
	owned := map[int32]bool{}
	tell := func() {
		all := make([]int32, 0, len(owned))
		for partition := range owned {
			all = append(all, partition)
		}
		seen.owns(all)
	}
	given := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		for _, partition := range partitions[topic] {
			owned[partition] = true
		}
		tell()
	}
	taken := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		for _, partition := range partitions[topic] {
			delete(owned, partition)
		}
		tell()
	}
	options := f.balancing
	if instance != "" {
		options = append(options, kgo.InstanceID(instance))
	}
	client, err := kgo.NewClient(append(options,
		kgo.SeedBrokers(f.seeds...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(500e6),
		kgo.OnPartitionsAssigned(given),
		kgo.OnPartitionsRevoked(taken),
		kgo.OnPartitionsLost(taken),
	)...)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			client.PollFetches(ctx).EachRecord(func(record *kgo.Record) { seen.add(record.Partition, record.Offset, record.Value) })
		}
	}()
	return &franzMember{client, stop, ended}, nil
}

func (m *franzMember) commit() error {
	return m.client.CommitUncommittedOffsets(context.Background())
}

func (m *franzMember) leave() error {
	m.stop()
	<-m.ended
	m.client.Close()
	return nil
}

func (f *franz) committed(ctx context.Context) (map[int32]int64, error) {
	fetched, err := f.admin.FetchOffsets(ctx, group)
	if err != nil {
		return nil, err
	}
	offsets := map[int32]int64{}
	fetched.Each(func(found kadm.OffsetResponse) { offsets[found.Partition] = found.At })
	return offsets, fetched.Error()
}

func (f *franz) groups(ctx context.Context) ([]string, error) {
	listed, err := f.admin.ListGroups(ctx)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range listed.Groups() {
		if listed[name].GroupType == "consumer" {
			described, err := f.admin.DescribeConsumerGroups(ctx, name)
			if err != nil {
				return nil, err
			}
			found = append(found, fmt.Sprint(name, " ", described[name].State, " ", len(described[name].Members)))
			continue
		}
		described, err := f.admin.DescribeGroups(ctx, name)
		if err != nil {
			return nil, err
		}
		found = append(found, fmt.Sprint(name, " ", described[name].State, " ", len(described[name].Members)))
	}
	return found, nil
}

func (f *franz) deleteGroup(ctx context.Context) error {
	deleted, err := f.admin.DeleteGroup(ctx, group)
	return errors.Join(err, deleted.Err)
}
