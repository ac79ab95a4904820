// A group member for the rebalance benchmark, as `benchmarks.member` is for clients in Python: sarama or franz-go.
//
// Arguments: the client, and the settings as a JSON object. Prints `ready`, joins when it reads a line, leaves at the
// second line, and prints a JSON object with what it received. After each change it prints the number of its partitions.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"
)

type settings struct {
	BootstrapServers string  `json:"bootstrap_servers"`
	GroupID          string  `json:"group_id"`
	Topic            string  `json:"topic"`
	Heartbeat        float64 `json:"heartbeat"`
	SessionTimeout   float64 `json:"session_timeout"`
	CommitInterval   float64 `json:"commit_interval"`
	Strategy         string  `json:"strategy"`
}

func (s settings) servers() []string { return strings.Split(s.BootstrapServers, ",") }

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }

// now is the clock of Python's time.monotonic_ns(), which is the same for all processes.
func now() int64 {
	var at unix.Timespec
	fail(unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
	return at.Nano()
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// log has the partition, offset and time of each record, and the number of partitions.
type log struct {
	sync.Mutex
	receipts [][3]int64
	held     int
}

func (l *log) received(partition int32, offset int64) {
	at := now()
	l.Lock()
	defer l.Unlock()
	l.receipts = append(l.receipts, [3]int64{int64(partition), offset, at})
}

func (l *log) change(by int) {
	l.Lock()
	defer l.Unlock()
	l.held += by
	fmt.Println("assigned", l.held, now())
}

func franz(ctx context.Context, given settings, log *log) {
	balancer := kgo.CooperativeStickyBalancer() // by the consumer protocol the assignor "uniform", the brokers' default
	if given.Strategy == "range" {
		balancer = kgo.RangeBalancer() // by the consumer protocol the assignor "range"
	}
	change := func(by int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			log.change(by * len(partitions[given.Topic]))
		}
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(given.servers()...), kgo.ConsumerGroup(given.GroupID), kgo.ConsumeTopics(given.Topic),
		kgo.Balancers(balancer), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(seconds(given.Heartbeat)), kgo.SessionTimeout(seconds(given.SessionTimeout)),
		kgo.AutoCommitInterval(seconds(given.CommitInterval)),
		kgo.OnPartitionsAssigned(change(1)), kgo.OnPartitionsLost(change(-1)),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
			fail(client.CommitUncommittedOffsets(ctx))
			change(-1)(ctx, client, partitions)
		}),
	}
	if given.Strategy == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	client, err := kgo.NewClient(options...)
	fail(err)
	for ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(record *kgo.Record) { log.received(record.Partition, record.Offset) })
	}
	fail(client.CommitUncommittedOffsets(context.Background()))
	client.Close()
}

type handler struct{ log *log }

func (h *handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	h.log.change(1)
	defer h.log.change(-1)
	for message := range claim.Messages() {
		h.log.received(message.Partition, message.Offset)
		session.MarkMessage(message, "")
	}
	return nil
}

func ibm(ctx context.Context, given settings, log *log) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = seconds(given.CommitInterval)
	config.Consumer.Group.Heartbeat.Interval = seconds(given.Heartbeat)
	config.Consumer.Group.Session.Timeout = seconds(given.SessionTimeout)
	strategy := sarama.NewBalanceStrategyRange()
	if given.Strategy == "cooperative-sticky" {
		strategy = sarama.NewBalanceStrategyCooperativeSticky()
	}
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	group, err := sarama.NewConsumerGroup(given.servers(), given.GroupID, config)
	fail(err)
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{given.Topic}, &handler{log}); err != nil && ctx.Err() == nil {
			fail(err)
		}
	}
	fail(group.Close())
}

func main() {
	var given settings
	fail(json.Unmarshal([]byte(os.Args[2]), &given))
	lines := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	_, _ = lines.ReadString('\n')
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		_, _ = lines.ReadString('\n')
		leave()
	}()
	log := &log{receipts: [][3]int64{}}
	if os.Args[1] == "sarama" {
		ibm(ctx, given, log)
	} else {
		franz(ctx, given, log)
	}
	fail(json.NewEncoder(os.Stdout).Encode(map[string]any{"receipts": log.receipts, "commits": []int64{}}))
}
