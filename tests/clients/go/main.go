// Clients in Go, one promise a run: two members of a group share, one leaves, the other goes on where it was; records come back as they were
// sent; topics are looked after; transactions are seen whole or not at all; a compacted log is read.
//
// groups franz|sarama HOST:PORT [records|topics|compacted|static|transactions|cooperative|fleet], for franz also consumer. Ends 0 only if that
// held, and says so in one line.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
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
	// join joins the group, as the static member of this name if there is one.
	join(seen *account, instance string) (member, error)
	// committed gives the group's offsets by partition.
	committed(ctx context.Context) (map[int32]int64, error)
	// groups lists all groups, described as `NAME STATE MEMBERS`.
	groups(ctx context.Context) ([]string, error)
	deleteGroup(ctx context.Context) error
}

// account keeps what a member owns and has read. What is noted wakes whoever waits.
type account struct {
	lock    *sync.Mutex
	changed *sync.Cond
	owned   []int32
	read    []int
	next    map[int32]int64
	// changes counts how often it was told what it owns, and lost what was taken from it.
	changes int
	lost    int
}

func newAccounts() (*account, *account) {
	lock := &sync.Mutex{}
	one := &account{lock: lock, changed: sync.NewCond(lock), next: map[int32]int64{}}
	return one, one.beside()
}

// beside makes the account of one more member.
func (a *account) beside() *account {
	return &account{lock: a.lock, changed: a.changed, next: map[int32]int64{}}
}

func (a *account) owns(owned []int32) {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.changes++
	for _, before := range a.owned {
		if !slices.Contains(owned, before) {
			a.lost++
		}
	}
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
	first, err := client.join(a, "")
	must(err)
	second, err := client.join(b, "")
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
	found, err := client.groups(ctx)
	must(err)
	expect("groups", found, []string{group + " Stable 1"})
	must(first.leave())
	must(client.deleteGroup(ctx))
	found, err = client.groups(ctx)
	must(err)
	expect("groups", len(found), 0)
}

// cooperative has a second member come, for which the first gives up no more than the second gets.
func cooperative(ctx context.Context, client client) {
	must(client.create(ctx))
	a, b := newAccounts()
	first, err := client.join(a, "")
	must(err)
	a.until("all partitions", func() bool { return len(a.owned) == partitions })
	second, err := client.join(b, "")
	must(err)
	a.until("a fair share", func() bool { return len(a.owned) == 2 && len(b.owned) == 2 })
	expect("given up", a.lost, 2)
	must(second.leave())
	a.until("all partitions", func() bool { return len(a.owned) == partitions })
	expect("given up", a.lost, 2)
	must(first.leave())
}

// static has a member come back under its name: it has what it had, and the other notices nothing.
func static(ctx context.Context, client client) {
	must(client.create(ctx))
	a, b := newAccounts()
	first, err := client.join(a, "one")
	must(err)
	second, err := client.join(b, "two")
	must(err)
	a.until("a fair share", func() bool { return len(a.owned) == 2 && len(b.owned) == 2 })
	had, changes := b.owned, a.changes
	must(second.leave())
	again := a.beside()
	third, err := client.join(again, "two")
	must(err)
	a.until("a share", func() bool { return len(again.owned) == 2 })
	expect("share", again.owned, had)
	expect("changes", a.changes, changes)
	must(third.leave())
	must(first.leave())
}

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 {
		fail(fmt.Errorf("use groups franz|sarama HOST:PORT [PROMISE]"))
	}
	promise := "share"
	if len(os.Args) == 4 {
		promise = os.Args[3]
	}
	var chosen interface {
		client
		rounder
		transactor
		fleetClient
		follower
	}
	var refusal refusals
	var err error
	switch os.Args[1] {
	case "franz":
		chosen, err = newFranz(os.Args[2], promise)
		refusal = franzRefusals
	case "sarama":
		chosen, err = newSarama(os.Args[2], promise)
		refusal = saramaRefusals
	default:
		err = fmt.Errorf("no client %q", os.Args[1])
	}
	must(err)
	ctx := context.Background()
	switch promise {
	case "share", "consumer":
		share(ctx, chosen)
		fmt.Println(promise, "holds")
	case "cooperative":
		cooperative(ctx, chosen)
		fmt.Println("cooperative holds")
	case "static":
		static(ctx, chosen)
		fmt.Println("static holds")
	case "transactions":
		transactionsHold(ctx, chosen)
		fmt.Println("transactions hold")
	case "fleet":
		fleetHolds(ctx, chosen)
	case "records":
		recordsHold(ctx, chosen)
		fmt.Println("records hold")
	case "topics":
		topicsHold(ctx, chosen, refusal)
		fmt.Println("topics hold")
	case "compacted":
		compactedHolds(ctx, chosen)
	default:
		fail(fmt.Errorf("no promise %q", promise))
	}
}
