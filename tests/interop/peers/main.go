// Go's Kafka clients against the broker whose addresses are the first argument: sarama and franz-go, each told by the
// second argument. Prints what it has seen as one JSON object.
//
// Each produces, consumes in a group of two members of which the second comes later, commits, leaves, resumes where the
// group has left off, and writes transactions, one committed and one aborted, that it reads with read_committed.
//
// With the arguments `cooperative CLIENT TOPIC GROUP` or `consumer franz-go TOPIC GROUP` after the addresses it is a member
// of that group instead, with that protocol (incremental.go). With `read CLIENT TOPIC GROUP PARTITIONS RECORDS` it only reads
// (reading.go).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	topic      = "orders"
	payments   = "payments"
	partitions = 4
	records    = 200
	limit      = 60 * time.Second
)

// seen is what the group's members have handled, by member, and who takes part in it.
type seen struct {
	sync.Mutex
	Values map[string][]string `json:"values"`
}

func newSeen() *seen { return &seen{Values: map[string][]string{}} }

func (s *seen) add(member, value string) {
	s.Lock()
	defer s.Unlock()
	s.Values[member] = append(s.Values[member], value)
}

func (s *seen) count() int {
	s.Lock()
	defer s.Unlock()
	total := 0
	for _, values := range s.Values {
		total += len(values)
	}
	return total
}

func (s *seen) until(total int) {
	for end := time.Now().Add(limit); s.count() < total; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			fail(fmt.Errorf("%d of %d records came", s.count(), total))
		}
	}
}

type client interface {
	// produce writes value-first, value-first+1, … with keys.
	produce(ctx context.Context, first, count int)
	// member joins the group and handles records until ctx is done; then it commits and leaves.
	member(ctx context.Context, name string, seen *seen, assigned chan<- int)
	// transactions commits the values, and aborts the lost ones between them.
	transactions(ctx context.Context, values, lost []string)
	// committed reads so many values with read_committed.
	committed(ctx context.Context, count int) []string
}

func main() {
	servers := strings.Split(os.Args[1], ",")
	if os.Args[2] == "cooperative" || os.Args[2] == "consumer" {
		incrementalMember(servers, os.Args[2], os.Args[3], os.Args[4], os.Args[5])
		return
	}
	if os.Args[2] == "read" {
		read(servers, os.Args[3:])
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var c client = &saramaClient{servers}
	if os.Args[2] == "franz-go" {
		c = &franzClient{servers}
	}
	together, resumed := newSeen(), newSeen()
	share(ctx, c, together)
	c.produce(ctx, records, 20)
	alone, leave := context.WithCancel(ctx)
	done := run(func() { c.member(alone, "late", resumed, make(chan int, 100)) })
	resumed.until(20)
	leave()
	<-done
	values := []string{"c0", "c1", "c2", "c3"}
	c.transactions(ctx, values, []string{"lost", "lost"})
	out, err := json.Marshal(map[string]any{
		"together": together.Values, "resumed": resumed.Values, "committed": c.committed(ctx, len(values)),
	})
	fail(err)
	fmt.Println(string(out))
}

// share lets two members read everything: the second joins when the first has all partitions.
func share(ctx context.Context, c client, together *seen) {
	both, leave := context.WithCancel(ctx)
	first, second := make(chan int, 100), make(chan int, 100)
	one := run(func() { c.member(both, "first", together, first) })
	wait(first, partitions)
	two := run(func() { c.member(both, "second", together, second) })
	wait(second, partitions/2)
	wait(first, partitions/2)
	c.produce(ctx, 0, records)
	together.until(records)
	leave()
	<-one
	<-two
}

func run(task func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		task()
	}()
	return done
}

// wait takes numbers of assigned partitions until the wanted one comes.
func wait(assigned <-chan int, wanted int) {
	end := time.After(limit)
	for {
		select {
		case count := <-assigned:
			if count == wanted {
				return
			}
		case <-end:
			fail(fmt.Errorf("no assignment of %d partitions", wanted))
		}
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
