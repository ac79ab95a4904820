// The neighbours benchmark for sarama: the argument is a JSON object with settings, the output one with figures.
//
// One consumer group member with sarama's defaults, except for the fetch size, which is the same for all clients. Each
// claim has its goroutine, as sarama intends; the settings say how fast it reads.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type settings struct {
	BootstrapServers string   `json:"bootstrap_servers"`
	GroupID          string   `json:"group_id"`
	Topics           []string `json:"topics"`
	Watched          string   `json:"watched"`
	Records          int      `json:"records"`
	FetchBytes       int32    `json:"fetch_bytes"`
	Pause            float64  `json:"pause"`
	Every            int      `json:"every"`
	WarmUp           float64  `json:"warm_up"`
	Seconds          float64  `json:"seconds"`
}

// window is the time in which records count; it opens warmUp after the first record of any partition.
type window struct {
	once             sync.Once
	warmUp, length   time.Duration
	opens, closes    time.Time
	begun, exhausted chan struct{}
}

func (w *window) begin(now time.Time) {
	w.once.Do(func() {
		w.opens = now.Add(w.warmUp)
		w.closes = w.opens.Add(w.length)
		close(w.begun)
	})
}

// lane counts one partition's records and its longest gap within the window.
type lane struct {
	sync.Mutex
	window             *window
	counted, spanned   int
	first, last, ended time.Time
	gap                time.Duration
}

func (l *lane) took(now time.Time, records int) {
	l.window.begin(now)
	l.Lock()
	defer l.Unlock()
	l.see(now)
	if now.After(l.window.opens) && now.Before(l.window.closes) {
		l.counted += records
		if l.first.IsZero() {
			l.first = now
		} else {
			l.spanned += records
		}
		l.ended = now
	}
}

func (l *lane) see(now time.Time) {
	from, to := l.last, now
	l.last = now
	if from.Before(l.window.opens) {
		from = l.window.opens
	}
	if to.After(l.window.closes) {
		to = l.window.closes
	}
	if gap := to.Sub(from); gap > l.gap {
		l.gap = gap
	}
}

func (l *lane) figures(end time.Time) map[string]any {
	l.Lock()
	defer l.Unlock()
	if end.After(l.window.closes) {
		end = l.window.closes
	}
	l.see(end)
	return map[string]any{
		"records": l.counted, "seconds": end.Sub(l.window.opens).Seconds(), "gap": l.gap.Seconds(),
		"spanned": l.spanned, "span": l.ended.Sub(l.first).Seconds(),
	}
}

type handler struct {
	settings   settings
	window     *window
	fast, slow *lane
}

func (h *handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	switch {
	case claim.Topic() != h.settings.Watched:
		<-session.Context().Done()
	case claim.Partition() != 0:
		h.readSlowly(session, claim, h.slow)
	case h.settings.Every > 1:
		h.readSlowly(session, claim, h.fast)
	default:
		h.read(session, claim)
	}
	return nil
}

// read reads records at full speed.
func (h *handler) read(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
	left := h.settings.Records
	for message := range claim.Messages() {
		h.fast.took(time.Now(), 1)
		session.MarkMessage(message, "")
		if left--; left == 0 {
			close(h.window.exhausted)
		}
	}
}

// readSlowly pauses after every `every` records; with 0 it reads nothing.
func (h *handler) readSlowly(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim, lane *lane) {
	if h.settings.Every == 0 {
		<-session.Context().Done()
		return
	}
	gathered := 0
	for message := range claim.Messages() {
		gathered++
		if gathered < h.settings.Every {
			continue
		}
		lane.took(time.Now(), gathered)
		gathered = 0
		select {
		case <-time.After(time.Duration(h.settings.Pause * float64(time.Second))):
		case <-session.Context().Done():
			return
		}
		session.MarkMessage(message, "")
	}
}

func main() {
	var given settings
	fail(json.Unmarshal([]byte(os.Args[1]), &given))
	config := sarama.NewConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Fetch.Default = given.FetchBytes
	group, err := sarama.NewConsumerGroup([]string{given.BootstrapServers}, given.GroupID, config)
	fail(err)

	w := &window{
		warmUp: seconds(given.WarmUp), length: seconds(given.Seconds),
		begun: make(chan struct{}), exhausted: make(chan struct{}),
	}
	h := &handler{settings: given, window: w, fast: &lane{window: w}, slow: &lane{window: w}}
	go func() {
		for {
			err := group.Consume(context.Background(), given.Topics, h)
			if errors.Is(err, sarama.ErrClosedConsumerGroup) {
				return
			}
			fail(err)
		}
	}()

	<-w.begun
	select {
	case <-time.After(time.Until(w.closes)):
	case <-w.exhausted:
	}
	end := time.Now()
	out, err := json.Marshal(map[string]any{"fast": h.fast.figures(end), "slow": h.slow.figures(end)})
	fail(err)
	fmt.Println(string(out))
	leave(group)
}

// leave closes the group without waiting long for stuck handlers.
func leave(group sarama.ConsumerGroup) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := group.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
	}
}

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
