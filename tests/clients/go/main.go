// Clients in Go, one promise a run: two members of a group share, one leaves, the other goes on where it was; records come back as they were
// sent; topics are looked after.
//
// groups franz|sarama HOST:PORT [records|topics]. Ends 0 only if that held, and says so in one line.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"sync"
	"time"
)

const (
	partitions = 4
	records    = 400
	patience   = 60 * time.Second
	topic      = "shared"
	group      = "members"
)

// member is one consumer of the group, in the words that both clients share.
type member interface {
	// commit commits all that was read.
	commit() error
	// leave leaves the group.
	leave() error
}

// client is one of the two libraries.
type client interface {
	create(ctx context.Context) error
	produce(ctx context.Context, from, to int) error
	join(seen *account) (member, error)
	// committed gives the group's offsets by partition.
	committed(ctx context.Context) (map[int32]int64, error)
}

// account keeps what a member owns and has read. What is noted wakes whoever waits.
type account struct {
	lock    *sync.Mutex
	changed *sync.Cond
	owned   []int32
	read    []int
	next    map[int32]int64
}

func newAccounts() (*account, *account) {
	lock := &sync.Mutex{}
	changed := sync.NewCond(lock)
	one := func() *account { return &account{lock: lock, changed: changed, next: map[int32]int64{}} }
	return one(), one()
}

func (a *account) owns(owned []int32) {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.owned = append([]int32(nil), owned...)
	sort.Slice(a.owned, func(i, j int) bool { return a.owned[i] < a.owned[j] })
	a.changed.Broadcast()
}

// hasRead tells whether the member has read so far in every partition that it owns. The lock is held.
func (a *account) hasRead(offset int64) bool {
	for _, partition := range a.owned {
		if a.next[partition] != offset {
			return false
		}
	}
	return true
}

func (a *account) add(partition int32, offset int64, value []byte) {
	number, err := strconv.Atoi(string(value))
	if err != nil {
		fail(err)
	}
	a.lock.Lock()
	defer a.lock.Unlock()
	a.read = append(a.read, number)
	a.next[partition] = offset + 1
	a.changed.Broadcast()
}

// until waits until it holds. The lock is held while it is asked.
func (a *account) until(what string, holds func() bool) {
	late := time.AfterFunc(patience, func() { fail(fmt.Errorf("%s did not come about", what)) })
	defer late.Stop()
	a.lock.Lock()
	defer a.lock.Unlock()
	for !holds() {
		a.changed.Wait()
	}
}

func distinct(of ...[]int) int {
	seen := map[int]bool{}
	for _, numbers := range of {
		for _, number := range numbers {
			seen[number] = true
		}
	}
	return len(seen)
}

func expect(what string, got, wanted any) {
	if !reflect.DeepEqual(got, wanted) {
		fail(fmt.Errorf("%s: got %v, wanted %v", what, got, wanted))
	}
}

func must(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

func share(ctx context.Context, client client) {
	must(client.create(ctx))
	must(client.produce(ctx, 0, records))
	a, b := newAccounts()
	first, err := client.join(a)
	must(err)
	second, err := client.join(b)
	must(err)
	a.until("a fair share", func() bool { return len(a.owned) == 2 && len(b.owned) == 2 })
	// What one has read before the other came is read again: it was not committed.
	each := int64(records / partitions)
	a.until("all records", func() bool { return a.hasRead(each) && b.hasRead(each) })
	expect("records", distinct(a.read, b.read), records)
	must(first.commit())
	must(second.commit())
	must(second.leave())
	before := 0
	a.until("all partitions", func() bool { before = len(a.read); return len(a.owned) == partitions })
	must(client.produce(ctx, records, 2*records))
	a.until("new records", func() bool { return distinct(a.read[before:]) >= records })
	read := append([]int(nil), a.read[before:]...)
	sort.Ints(read)
	wanted := make([]int, 0, records)
	for number := records; number < 2*records; number++ {
		wanted = append(wanted, number)
	}
	expect("records", read, wanted)
	must(first.commit())
	committed, err := client.committed(ctx)
	must(err)
	expect("offsets", committed, map[int32]int64{0: 2 * each, 1: 2 * each, 2: 2 * each, 3: 2 * each})
	must(first.leave())
}

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 {
		fail(fmt.Errorf("use groups franz|sarama HOST:PORT [records|topics]"))
	}
	var chosen interface {
		client
		rounder
	}
	var refusal refusals
	var err error
	switch os.Args[1] {
	case "franz":
		chosen, err = newFranz(os.Args[2])
		refusal = franzRefusals
	case "sarama":
		chosen, err = newSarama(os.Args[2])
		refusal = saramaRefusals
	default:
		err = fmt.Errorf("no client %q", os.Args[1])
	}
	must(err)
	ctx, promise := context.Background(), "share"
	if len(os.Args) == 4 {
		promise = os.Args[3]
	}
	switch promise {
	case "share":
		share(ctx, chosen)
		fmt.Println("share holds")
	case "records":
		recordsHold(ctx, chosen)
		fmt.Println("records hold")
	case "topics":
		topicsHold(ctx, chosen, refusal)
		fmt.Println("topics hold")
	default:
		fail(fmt.Errorf("no promise %q", promise))
	}
}
