package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"time"
)

const (
	firstTime = int64(1_700_000_000_000)
	each      = 300
	// spread is over how many partitions records are sent, one after the other.
	spread   = 3
	large    = 3 << 20
	lookedAt = "looked-after"
)

var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// item is one record, in the words that both clients share. What is nil is null on the wire.
type item struct {
	key, value []byte
	time       int64
	headers    []header
}

type header struct {
	key   string
	value []byte
}

// rounder is one of the two libraries, for what is sent and read and for what is looked after.
type rounder interface {
	make(ctx context.Context, topic string, partitions int32, settings map[string]string) error
	send(ctx context.Context, topic, codec string, idempotent bool, sent []item) error
	// read gives so many records, by partition.
	read(ctx context.Context, topic string, count int) ([spread][]item, error)
	// offsetAt gives the offset of the first record of a partition that is not before a time; -1 if there is none.
	offsetAt(ctx context.Context, topic string, partition int32, time int64) (int64, error)

	// setting gives a value, and whether it is set on the topic.
	setting(ctx context.Context, topic, name string) (string, bool, error)
	// alter sets what has a value and unsets the others; replace sets these alone.
	alter(ctx context.Context, topic string, changes map[string]*string) error
	replace(ctx context.Context, topic string, all map[string]*string) error
	grow(ctx context.Context, topic string, partitions int) error
	// leaders gives the leader of each partition.
	leaders(ctx context.Context, topic string) ([]int32, error)
	// nodes gives the brokers' ids.
	nodes(ctx context.Context) ([]int32, error)
	cut(ctx context.Context, topic string, before int64) error
	earliest(ctx context.Context, topic string) (int64, error)
	// elect and move give what the broker says of partition 0.
	elect(ctx context.Context, topic string) error
	move(ctx context.Context, topic string, to []int32) error
	moving(ctx context.Context, topic string) (int, error)
	// onDisk counts the replicas of a topic.
	onDisk(ctx context.Context, topic string) (int, error)
	remove(ctx context.Context, topic string) error
	topics(ctx context.Context) ([]string, error)
}

// some is a record by its number: null and empty keys and values are among them.
func some(number int) item {
	key := [][]byte{nil, {}, []byte(fmt.Sprintf("key-%d", number))}[number%3]
	value := []byte(strings.Repeat(fmt.Sprintf("value %d ", number), 20))
	if number%7 == 0 {
		value = [][]byte{value, {}, nil}[number/7%3]
	}
	found := item{key: key, value: value, time: firstTime + int64(number)}
	if number%5 == 0 {
		found.headers = []header{{"h", []byte("1")}, {"h", []byte{}}, {"n", []byte(fmt.Sprint(number))}}
	}
	return found
}

func theSame(a, b item) bool {
	same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	return same(a.key, b.key) && same(a.value, b.value) && a.time == b.time && reflect.DeepEqual(a.headers, b.headers)
}

func roundTrip(ctx context.Context, client rounder, topic, codec string, idempotent bool, sent []item) {
	must(client.send(ctx, topic, codec, idempotent, sent))
	got, err := client.read(ctx, topic, len(sent))
	must(err)
	var wanted [spread][]item
	for number, item := range sent {
		wanted[number%spread] = append(wanted[number%spread], item)
	}
	for partition := range wanted {
		expect("records of "+topic, len(got[partition]), len(wanted[partition]))
		for number, item := range wanted[partition] {
			if found := got[partition][number]; !theSame(found, item) {
				fail(fmt.Errorf("record %d of partition %d of %s: got %v, wanted %v", number, partition, topic, found, item))
			}
		}
		for _, at := range []int64{firstTime + int64(len(sent)/2), firstTime + int64(len(sent))} {
			offset, err := client.offsetAt(ctx, topic, int32(partition), at)
			must(err)
			first := slices.IndexFunc(wanted[partition], func(of item) bool { return of.time >= at })
			expect("offset by time", offset, int64(first))
		}
	}
}

// records come back as they were sent, whatever their codec, and large.
func recordsHold(ctx context.Context, client rounder) {
	sent := make([]item, 0, each)
	for number := 0; number < each; number++ {
		sent = append(sent, some(number))
	}
	for _, codec := range codecs {
		for _, idempotent := range []bool{false, true} {
			topic := fmt.Sprintf("%s-%v", codec, idempotent)
			must(client.make(ctx, topic, spread, nil))
			roundTrip(ctx, client, topic, codec, idempotent, sent)
		}
	}
	must(client.make(ctx, "large", spread, map[string]string{"max.message.bytes": fmt.Sprint(2 * large)}))
	value := make([]byte, large)
	rand.New(rand.NewSource(7)).Read(value)
	roundTrip(ctx, client, "large", "none", true, []item{{value: value, time: firstTime}})
}

// settles asks until it is so: brokers learn a little later of what another has done.
func settles(what string, ask func() any, wanted any) {
	deadline := time.Now().Add(patience)
	got := ask()
	for !reflect.DeepEqual(got, wanted) && time.Now().Before(deadline) {
		got = ask()
	}
	expect(what, got, wanted)
}

func refused(what string, err error, wanted error) {
	if !errors.Is(err, wanted) {
		fail(fmt.Errorf("%s: got %v, wanted %v", what, err, wanted))
	}
}

// refusals are how a library tells codes of Kafka.
type refusals struct {
	invalidConfig, invalidPartitions, outOfRange, electionNotNeeded, invalidAssignment error
}

// topics are made, altered, grown, cut and deleted.
func topicsHold(ctx context.Context, client rounder, refusal refusals) {
	setting := func(name, wanted string, wantedSet bool) {
		settles(name, func() any {
			value, set, err := client.setting(ctx, lookedAt, name)
			must(err)
			return fmt.Sprint(value, set)
		}, fmt.Sprint(wanted, wantedSet))
	}
	five, bad := "5000", "x"
	must(client.make(ctx, lookedAt, 1, map[string]string{"retention.ms": "1000"}))
	setting("retention.ms", "1000", true)
	must(client.alter(ctx, lookedAt, map[string]*string{"retention.ms": nil, "segment.ms": &five}))
	setting("retention.ms", "604800000", false)
	setting("segment.ms", five, true)
	refused("a bad value", client.alter(ctx, lookedAt, map[string]*string{"segment.ms": &bad}), refusal.invalidConfig)
	must(client.replace(ctx, lookedAt, map[string]*string{"retention.ms": &five}))
	setting("retention.ms", five, true)
	setting("segment.ms", "604800000", false)

	must(client.grow(ctx, lookedAt, spread))
	refused("growing to less", client.grow(ctx, lookedAt, 2), refusal.invalidPartitions)
	var leaders []int32
	settles("partitions", func() any {
		var err error
		leaders, err = client.leaders(ctx, lookedAt)
		must(err)
		return len(leaders)
	}, spread)
	brokers, err := client.nodes(ctx)
	must(err)
	slices.Sort(leaders)
	slices.Sort(brokers)
	expect("leaders", slices.Compact(leaders), brokers)
	sent := make([]item, 0, 10*spread)
	for number := 0; number < 10*spread; number++ {
		sent = append(sent, some(number))
	}
	roundTrip(ctx, client, lookedAt, "none", true, sent)
	must(client.cut(ctx, lookedAt, 4))
	offset, err := client.earliest(ctx, lookedAt)
	must(err)
	expect("earliest", offset, int64(4))
	refused("cutting beyond the end", client.cut(ctx, lookedAt, 11), refusal.outOfRange)

	refused("an election", client.elect(ctx, lookedAt), refusal.electionNotNeeded)
	refused("moving to nobody", client.move(ctx, lookedAt, []int32{77}), refusal.invalidAssignment)
	moves, err := client.moving(ctx, lookedAt)
	must(err)
	expect("moves", moves, 0)
	held, err := client.onDisk(ctx, lookedAt)
	must(err)
	expect("on disk", held, spread*len(brokers))
	must(client.remove(ctx, lookedAt))
	settles("topics", func() any {
		left, err := client.topics(ctx)
		must(err)
		return len(left)
	}, 0)
}
